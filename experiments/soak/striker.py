"""Striker: kills processes of a run and notes each strike; shared by all kinds of faults.

A fault spares the last finished copy of each partition. The process that it struck, and when, is noted: a fault may
have struck where there was nothing to lose.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass

import flux
from experiments.soak.watching import UNACKNOWLEDGED_MIN, Watch
from flux.plan.plan import CONTROLLER, EGRESS, INGRESS

ENDS = (INGRESS, EGRESS, CONTROLLER)

# A fault returns its kind, or None if no process can be spared for it now.
Fault = Callable[[], str | None]


@dataclass(frozen=True)
class Strike:
    """One process was killed, stopped or limited at a moment of the monotonic clock."""

    at: float
    held: bool  # Whether it was a site with a copy, or no site.


def has_something_to_lose(strikes: list[Strike], unacknowledged_rows: list[int]) -> bool:
    """Whether a fault counts, by its strikes and the rows in flight at each.

    Without any strike it does not: the process that it was to strike had died of the fault before.
    """
    held = all(strike.held for strike in strikes)
    return bool(strikes) and held and min(unacknowledged_rows) >= UNACKNOWLEDGED_MIN


class Striker:
    """Strikes processes of `run`; `draw` decides which."""

    def __init__(self, run: flux.Run, watch: Watch, draw: random.Random) -> None:
        self.run = run
        self.watch = watch
        self.draw = draw
        self.strikes: list[Strike] = []  # Of all faults up to now.

    def kill(self, *names: str) -> None:
        """Kill processes, one after the other; one that has died of the fault before is left out."""
        for name in names:
            self.note(name)
            try:
                self.run.kill(name)
            except ValueError:
                self.strikes.pop()

    def kill_at_once(self, *names: str) -> None:
        """Kill processes from outside, all of them before the run can notice the first."""
        pids = [pid for name in names if (pid := self.pid(name)) is not None]
        for name in names:
            self.note(name)
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.watch.until(lambda: all(self.watch.ended(pid) for pid in pids), f"{', '.join(names)}, killed, to be gone")

    def pid(self, name: str) -> int | None:
        """The process of that name, if it is up."""
        processes = self.run.status().processes
        return next((each.pid for each in processes if each.name == name and each.state == "up"), None)

    def note(self, name: str) -> None:
        """Note that a process is struck now."""
        held = name in ENDS or self.watch.held(name)  # First: that takes a moment.
        self.strikes.append(Strike(time.monotonic(), held))

    def pause(self, most_s: float) -> None:
        """Wait for a random time."""
        time.sleep(self.draw.uniform(0.0, most_s))

    def any_process(self) -> str | None:
        """Any process that can be spared; sites and ends alike."""
        sites = [name for (name,) in self.to_spare(1)]
        return self.draw.choice([*sites, *ENDS])

    def any_site(self) -> str | None:
        """A site with copies that can be spared."""
        sites = self.to_spare(1)
        return self.draw.choice(sites)[0] if sites else None

    def to_spare(self, count: int) -> list[tuple[str, ...]]:
        """So many sites with copies that may all be lost at once."""
        return [some for some in itertools.combinations(self.watch.holders(), count) if self.can_lose(set(some))]

    def can_lose(self, victims: set[str]) -> bool:
        """Whether each partition has a finished copy elsewhere. Only deaths make copies fewer: the view may be old."""
        view = self.watch.view()
        left = set(self.watch.sites()) - view.dead - victims
        operators = [stage for number, stage in enumerate(view.copies) if not view.is_end(number)]
        return all(left & set(copies) for stage in operators for copies in stage)
