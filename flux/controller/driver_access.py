"""DriverAccess: what a kind of run adds to its controller: where the driver is, and what else is on the same port."""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Any, Protocol

from ..plan.plan import CONTROLLER
from ..site.config import ProcessConfig
from ..wire.connections import keep_dialling
from ..wire.link import Link


class DriverAccess(Protocol):
    """All hooks that a controller calls."""

    async def connect(self, note: Callable[[int, str], None]) -> socket.socket:
        """Return a connection to the driver; `note` logs what delays it."""
        raise NotImplementedError

    async def serve(self, link: Link, first: dict[str, Any]) -> bool:
        """Serve a connection that is not a node's; False if its first frame is one of a node."""
        return False


class DriverInProgram(DriverAccess):
    """A local run: the driver is in the user's program, and the port is only for nodes."""

    def __init__(self, config: ProcessConfig) -> None:
        self._config = config

    async def connect(self, note: Callable[[int, str], None]) -> socket.socket:
        where, own = self._config.address("program"), self._config.identity(CONTROLLER)
        return await keep_dialling(where, own, self._config.leader, note)
