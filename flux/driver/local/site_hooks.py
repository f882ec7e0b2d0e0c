"""SiteHooks: what sites that were not forked by the spawner add to the driver of a local run."""

from __future__ import annotations

from typing import Protocol

from ...wire.link import Link
from ..processes import Process


class SiteHooks(Protocol):
    """All hooks that a driver calls."""

    death_known_within_s: float = 0.3  # In this time the system reports how a process ended.

    def on_connected(self, process: Process, link: Link) -> None:
        """Note the connection of a process."""
        return None

    def on_disconnected(self, process: Process, link: Link) -> None:
        """Note the end of a connection. The spawner reports the end of the processes it forked."""
        return None

    def text_of_death(self, process: Process) -> str | None:
        """Return what to log about the death of a site that was not forked; None for other processes."""
        return None


class ForkedSites(SiteHooks):
    """All sites were forked by the spawner: nothing is added."""
