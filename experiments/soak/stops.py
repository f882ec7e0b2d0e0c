"""Stops: processes that get SIGSTOP, and SIGCONT later."""

from __future__ import annotations

import contextlib
import os
import signal

from experiments.soak.striker import Fault, Striker

STOP_MAX_S = 4.0  # Some are taken for dead meanwhile, others are not.


class Stops:
    """Stops of sites and ends, by `striker`."""

    def __init__(self, striker: Striker) -> None:
        self._striker = striker
        self.faults: tuple[Fault, ...] = (self.stop_a_site, self.stop_for_a_while)

    def stop_a_site(self) -> str | None:
        """Past the time in which it is taken for dead; then it wakes up, and finds out."""
        name = self._striker.any_site()
        pid = None if name is None else self._striker.pid(name)
        if name is None or pid is None:
            return None
        watch = self._striker.watch
        self._striker.note(name)
        os.kill(pid, signal.SIGSTOP)
        watch.until(lambda: not watch.view().alive(name), f"{name}, which was stopped, to be missed")
        self._striker.pause(0.5)
        _resume(pid)
        watch.until(lambda: name not in watch.sites(), f"{name}, which was stopped too long, to end")
        return "stopped site"

    def stop_for_a_while(self) -> str | None:
        """Any process, for a random time; the run ends an end that it finds stopped, and starts it again."""
        name = self._striker.any_process()
        pid = None if name is None else self._striker.pid(name)
        if name is None or pid is None:
            return None
        self._striker.note(name)
        os.kill(pid, signal.SIGSTOP)
        self._striker.pause(STOP_MAX_S)
        _resume(pid)
        return "stopped for a while"


def _resume(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGCONT)
