"""State readers: the forks of a site that read its state for a copy elsewhere, which get SIGKILL.

Small states are copied without a fork, so a soak has every state read by one: see `always_fork`.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path

from experiments.soak.striker import Fault, Striker
from flux.site.state_transfer import snapshot

WATCH_S = 3.0
KILLS_MAX = 4


def always_fork() -> None:
    """Have every state read by a fork; call it before the run starts."""
    snapshot._LITTLE_BYTES = -1


class StateReaders:
    """Kills of the forks that read state, by `striker`."""

    def __init__(self, striker: Striker) -> None:
        self._striker = striker
        self.faults: tuple[Fault, ...] = (self.kill_readers,)

    def kill_readers(self) -> str | None:
        """A site dies, and so do readers of the state that its copies are rebuilt from."""
        site = self._striker.any_site()
        if site is None:
            return None
        donors = {name: pid for name in self._striker.watch.sites() if (pid := self._striker.pid(name)) is not None}
        donors.pop(site, None)
        self._striker.kill(site)
        killed = 0
        deadline = time.monotonic() + WATCH_S
        while time.monotonic() < deadline and killed < KILLS_MAX:
            for name, pid in donors.items():
                for child in children(pid):
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(child, signal.SIGKILL)
                        self._striker.note(name)
                        killed += 1
            if self._striker.watch.is_whole():
                break
        return "readers of state" if killed else "site"


def children(pid: int) -> list[int]:
    """The child processes of a process; none if it is gone."""
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except (FileNotFoundError, ProcessLookupError):
        return []
