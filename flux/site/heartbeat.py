"""Heartbeat: a thread that tells the controller that this process lives, however long its operator works.

It has a connection of its own, so that it waits for nothing but the kernel. A process that was stopped, or whose
machine hangs, falls silent. When the connection breaks it tries again for as long as the process lives.
"""

from __future__ import annotations

import socket
import threading
import time
from typing import Any

from ..wire import address, frames

BEAT_EVERY_S = 0.1
_SEND_TIMEOUT_S = 5.0


class Heartbeat:
    """Beats to whoever listens at `where`, under the name in `greeting`."""

    def __init__(self, where: str, greeting: dict[str, Any]) -> None:
        self._where = where
        self._greeting = frames.encode({**greeting, "beats": True})
        self._beat = frames.encode({"kind": "beat"})

    def start(self) -> None:
        """Begin; it ends with the process."""
        threading.Thread(target=self._live, name="flux-heartbeat", daemon=True).start()

    def _live(self) -> None:
        while True:
            try:
                with address.connect_blocking(self._where, _SEND_TIMEOUT_S) as sock:
                    sock.sendall(self._greeting)
                    self._beat_on(sock)
            except OSError:
                time.sleep(BEAT_EVERY_S)

    def _beat_on(self, sock: socket.socket) -> None:
        while True:
            sock.sendall(self._beat)
            time.sleep(BEAT_EVERY_S)
