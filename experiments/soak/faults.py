"""Faults: what is done to a run at random, at any moment, so long as no partition loses its last finished copy.

A fault may strike while copies of the last one are being rebuilt. Each returns what it was, or None if nobody can be
spared for it now. Whom it struck, and when, is noted: a fault may have struck where there was nothing to lose.
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

Fault = Callable[[], str | None]


@dataclass(frozen=True)
class Strike:
    """One process was killed or stopped at a moment of the monotonic clock."""

    at: float
    held: bool  # Whether it was a site with a copy, or no site.


def has_something_to_lose(strikes: list[Strike], unacknowledged_rows: list[int]) -> bool:
    """Whether a fault counts, by its strikes and the rows that were on their way at each.

    Without any strike it does not: whom it was to strike had died of the fault before.
    """
    held = all(strike.held for strike in strikes)
    return bool(strikes) and held and min(unacknowledged_rows) >= UNACKNOWLEDGED_MIN


class Faults:
    """Faults to the run `run`; `draw` decides which."""

    def __init__(self, run: flux.Run, watch: Watch, draw: random.Random) -> None:
        self.strikes: list[Strike] = []  # Of all faults so far.
        self._run = run
        self._watch = watch
        self._draw = draw
        self._faults: tuple[Fault, ...] = (
            self.kill_a_site,
            self.kill_an_end,
            self.kill_two_sites,
            self.kill_a_site_and_an_end,
            self.kill_the_new_site,
            self.stop_a_site,
        )

    def next(self) -> Fault:
        """Any of them."""
        return self._draw.choice(self._faults)

    def kill_a_site(self) -> str | None:
        """One that holds copies."""
        victims = self._to_spare(1)
        if not victims:
            return None
        self._kill(*self._draw.choice(victims))
        return "site"

    def kill_an_end(self) -> str | None:
        """The ingress, the egress or the controller."""
        name = self._draw.choice(ENDS)
        self._kill(name)
        return name

    def kill_two_sites(self) -> str | None:
        """Two that share no partition; one, if there are none such."""
        pairs = self._to_spare(2)
        if not pairs:
            return self.kill_a_site()
        self._kill(*self._draw.choice(pairs))
        return "two sites at once"

    def kill_a_site_and_an_end(self) -> str | None:
        """One just behind the other."""
        victims = self._to_spare(1)
        if not victims:
            return None
        end = self._draw.choice(ENDS)
        [site] = self._draw.choice(victims)
        for name in self._draw.sample([site, end], 2):
            self._kill(name)
            self._pause(0.05)
        return f"site and {end}"

    def kill_the_new_site(self) -> str | None:
        """A site dies, and then one on which its copies are rebuilt."""
        fault = self.kill_a_site()
        if fault is None:
            return None
        self._pause(0.5)
        building = {standby.node for standby in self._watch.view().standby}
        new = [site for site in self._watch.sites() if site in building and self._can_lose({site})]
        if not new:
            return fault
        self._kill(self._draw.choice(new))
        return "site and its successor"

    def stop_a_site(self) -> str | None:
        """Past the time in which it is taken for dead; then it wakes up, and finds out."""
        victims = self._to_spare(1)
        if not victims:
            return None
        [name] = self._draw.choice(victims)
        [pid] = [process.pid for process in self._run.status().processes if process.name == name]
        assert pid is not None
        self._note(name)
        os.kill(pid, signal.SIGSTOP)
        self._watch.until(lambda: not self._watch.view().alive(name), f"{name}, which was stopped, to be missed")
        self._pause(0.5)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)
        self._watch.until(lambda: name not in self._watch.sites(), f"{name}, which was stopped too long, to end")
        return "stopped site"

    def _kill(self, *names: str) -> None:
        for name in names:
            self._note(name)
            try:
                self._run.kill(name)
            except ValueError:  # It has died of the fault before, a moment ago.
                self.strikes.pop()

    def _note(self, name: str) -> None:
        held = name in ENDS or self._watch.held(name)  # First: that takes a moment.
        self.strikes.append(Strike(time.monotonic(), held))

    def _pause(self, most_s: float) -> None:
        time.sleep(self._draw.uniform(0.0, most_s))

    def _to_spare(self, count: int) -> list[tuple[str, ...]]:
        """So many sites with copies that may all be lost at once."""
        return [some for some in itertools.combinations(self._watch.holders(), count) if self._can_lose(set(some))]

    def _can_lose(self, victims: set[str]) -> bool:
        """Whether each partition has a finished copy elsewhere. Only deaths make copies fewer: the view may be old."""
        view = self._watch.view()
        left = set(self._watch.sites()) - view.dead - victims
        operators = [stage for number, stage in enumerate(view.copies) if not view.is_end(number)]
        return all(left & set(copies) for stage in operators for copies in stage)
