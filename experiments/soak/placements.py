"""Placements: kills while copies move by themselves, a site is slow, one is drained, or one joins.

In a soak with `--balance restless` a policy moves copies at random all the time, so that every fault meets moves.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import threading
import time
from collections.abc import Iterator

import flux
from experiments.soak.striker import ENDS, Fault, Striker
from flux.balance import Move, Statistics

REST_S = 0.3  # Between two rounds of the restless policy, so that the pairs are whole now and then.
MOVES_MAX = 3
MOVE_AWAITED_S = 2.0
SLOW_S = 1.0, 4.0
STOPPED_S, RUNNING_S = 0.1, 0.01  # Of each turn of a slow site: too short to be taken for dead.
DRAIN_TIMEOUT_S = 60.0


class Restless:
    """A policy that moves copies at random: good for nothing but faults."""

    def plan(self, statistics: Statistics) -> list[Move]:
        if statistics.rounds and statistics.at_s - statistics.round_ended_s < REST_S:
            return []
        draw = random.Random(statistics.at_s)  # A policy is pure: equal statistics, equal moves.
        takers = [site.name for site in statistics.sites if not site.is_reserved]
        parts = [part for part in statistics.partitions if part.is_movable and set(takers) - set(part.copies)]
        moves = []
        for part in draw.sample(parts, min(len(parts), draw.randint(1, MOVES_MAX))):
            to = draw.choice(sorted(set(takers) - set(part.copies)))
            slot = draw.randrange(len(part.copies))
            moves.append(Move(stage=part.stage, partition=part.partition, slot=slot, to=to))
        return moves


class Placements:
    """Kills while placements change, by `striker`."""

    def __init__(self, striker: Striker) -> None:
        self._striker = striker
        self.faults: tuple[Fault, ...] = (
            self.kill_during_a_move,
            self.kill_beside_a_slow_site,
            self.kill_during_a_drain,
            self.kill_as_a_site_joins,
        )

    def kill_during_a_move(self) -> str | None:
        """The donor, the giver or the taker of a copy that moves, or an end; any of them if nothing moves."""
        watch = self._striker.watch
        deadline = time.monotonic() + MOVE_AWAITED_S
        while not (moving := watch.view().standby) and time.monotonic() < deadline:
            time.sleep(0.002)
        view = watch.view()
        sites = {
            site
            for copy in moving
            for site in (copy.donor, copy.node, view.copies[copy.stage][copy.partition][copy.slot])
            if site in watch.sites() and self._striker.can_lose({site})
        }
        victim = self._striker.draw.choice([*sorted(sites), *ENDS])
        self._striker.kill(victim)
        return "move" if moving else victim

    def kill_beside_a_slow_site(self) -> str | None:
        """A site gets a tenth of its time for some seconds, and another one or an end dies meanwhile."""
        slow = self._striker.any_site()
        pid = None if slow is None else self._striker.pid(slow)
        if slow is None or pid is None:
            return None
        self._striker.note(slow)
        slow_s = self._striker.draw.uniform(*SLOW_S)
        with _slowed(pid, slow_s):
            self._striker.pause(slow_s)
            self._kill_another({slow})
        return "slow site"

    def kill_during_a_drain(self) -> str | None:
        """A site is drained, and it or another one or an end dies meanwhile."""
        holders = self._striker.watch.holders()
        if len(self._striker.watch.sites()) < 4 or not holders:
            return None
        leaving = self._striker.draw.choice(holders)
        drain = threading.Thread(target=self._drain, args=(leaving,), name=f"drain {leaving}")
        drain.start()
        try:
            self._striker.pause(0.3)
            if self._striker.draw.random() < 0.3 and self._striker.can_lose({leaving}):
                self._striker.kill(leaving)
            else:
                self._kill_another({leaving})
        finally:
            drain.join()
        return "drain"

    def kill_as_a_site_joins(self) -> str | None:
        """A site is added, and another one or an end dies while it takes its share."""
        new = self._striker.run.add_site()
        self._striker.pause(0.5)
        self._kill_another({new})
        return "join"

    def _drain(self, site: str) -> None:
        """Drain a site; it may die first, or have nowhere to go. An error of the run ends the soak without this."""
        with contextlib.suppress(ValueError, TimeoutError, flux.FluxError):
            self._striker.run.drain(site, timeout=DRAIN_TIMEOUT_S)

    def _kill_another(self, spared: set[str]) -> None:
        """Kill an end or a site that is not among these, whose copies are not needed meanwhile."""
        sites = [name for (name,) in self._striker.to_spare(1) if name not in spared]
        self._striker.kill(self._striker.draw.choice([*sites, *sites, *ENDS]))


@contextlib.contextmanager
def _slowed(pid: int, seconds: float) -> Iterator[None]:
    """Stop and continue a process by turns for so long, beside what is done in this block."""
    end = time.monotonic() + seconds

    def alternate() -> None:
        with contextlib.suppress(ProcessLookupError):
            while time.monotonic() < end:
                os.kill(pid, signal.SIGSTOP)
                time.sleep(STOPPED_S)
                os.kill(pid, signal.SIGCONT)
                time.sleep(RUNNING_S)

    slowing = threading.Thread(target=alternate, name="slow site")
    slowing.start()
    try:
        yield
    finally:
        slowing.join()
