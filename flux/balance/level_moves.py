"""The moves that bring every site near the same time per position.

The *level* is the least that the greatest time per position can be: all work divided by all speed, or the heaviest
partition on the fastest site. From the site with the greatest time the heaviest copy goes that fits under the level
elsewhere. If none fits, the one goes that helps most, or two copies are exchanged. If that does not help either, a copy
is relayed: it goes to a third site, which gives another one away. So a fast site fills though it has a copy of all that
the slowest site holds.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import permutations

import numpy as np
import numpy.typing as npt

from ..protocols.messages import Move
from .statistics import Statistics

RECEIVERS_MAX = 8
STEPS_MAX = 1_000
EPSILON = 1e-9

_Numbers = npt.NDArray[np.intp]  # Of sites or partitions.


@dataclass(slots=True)
class _Step:
    """One copy of the top site goes to a receiver, and perhaps another one from there on; the greatest time after it.

    `back` is that other copy, and goes `to`: to the top site, or to a third one.
    """

    time_s: float
    partition: int
    receiver: int
    back: int = -1
    to: int = -1


def level_moves(statistics: Statistics, tolerance: float) -> list[Move]:
    """Moves after which no site is over the level by more than half the tolerance, or none helps any more."""
    return _Leveling(statistics, tolerance).moves()


class _Leveling:
    """A placement that is changed step by step: `on[p, s]` is the slot + 1 of partition p's copy on site s."""

    def __init__(self, statistics: Statistics, tolerance: float) -> None:
        self.tolerance = tolerance
        self.parts = list(statistics.partitions)
        sites = statistics.sites
        self.names = [site.name for site in sites]
        index = {name: s for s, name in enumerate(self.names)}
        self.work = np.array([part.work for part in self.parts])
        self.bytes = np.array([part.state_bytes for part in self.parts])
        self.movable = np.array([part.is_movable for part in self.parts], dtype=bool)
        self.speed = np.array([site.speed for site in sites])
        self.takers = np.array([not site.is_reserved for site in sites], dtype=bool)
        self.on = np.zeros((len(self.parts), len(sites)), dtype=np.int64)
        for p, part in enumerate(self.parts):
            for slot, name in enumerate(part.copies):
                if name in index:
                    self.on[p, index[name]] = slot + 1
        self.first = self.on.copy()
        self.time = (self.work @ (self.on > 0)) / self.speed

    def moves(self) -> list[Move]:
        if not self.takers.any() or not len(self.parts):
            return []
        total = float((self.work @ (self.on > 0)).sum())
        speeds = self.speed[self.takers]
        level = max(total / speeds.sum(), self.work.max() / speeds.max()) * (1 + self.tolerance / 2)
        for _ in range(STEPS_MAX):
            giver = int(self.time.argmax())
            if self.time[giver] <= level:
                break
            step = self._best(giver, level)
            if step is None:
                break
            self._take(step.partition, giver, step.receiver)
            if step.back >= 0:
                self._take(step.back, step.receiver, step.to)
        return self._result()

    def _best(self, giver: int, level: float) -> _Step | None:
        order = [int(s) for s in np.argsort(self.time, kind="stable") if self.takers[s] and s != giver]
        receivers = np.array(order[:RECEIVERS_MAX], dtype=np.intp)
        mine = np.flatnonzero((self.on[:, giver] > 0) & self.movable & (self.work > 0))
        if not len(receivers) or not len(mine):
            return None
        work = self.work[mine][:, None]
        allowed = self.on[np.ix_(mine, receivers)] == 0
        there = self.time[receivers][None, :] + work / self.speed[receivers][None, :]
        both = np.where(allowed, np.maximum(self.time[giver] - work / self.speed[giver], there), np.inf)
        helps = both < self.time[giver] * (1 - EPSILON)
        fits = helps & (there <= level)
        if fits.any():
            p = max(
                np.flatnonzero(fits.any(axis=1)), key=lambda i: (self.work[mine[i]], -self.bytes[mine[i]], -mine[i])
            )
            r = int(np.flatnonzero(fits[p])[0])  # The receivers are in order of their time.
            return _Step(float(both[p, r]), int(mine[p]), int(receivers[r]))
        at = np.unravel_index(int(both.argmin()), both.shape)
        single = _Step(float(both[at]), int(mine[at[0]]), int(receivers[at[1]])) if helps.any() else None
        # An exchange would move a copy to the giver.
        best = self._or_exchange(giver, receivers, mine, single) if self.takers[giver] else single
        return best or self._relay(giver, receivers, mine)

    def _or_exchange(self, giver: int, receivers: _Numbers, mine: _Numbers, single: _Step | None) -> _Step | None:
        best = single
        limit = self.time[giver] * (1 - self.tolerance / 8)
        for r in receivers:
            here = mine[self.on[mine, r] == 0]
            theirs = np.flatnonzero((self.on[:, r] > 0) & (self.on[:, giver] == 0) & self.movable)
            if not len(here) or not len(theirs):
                continue
            less = self.work[here][:, None] - self.work[theirs][None, :]
            both = np.maximum(self.time[giver] - less / self.speed[giver], self.time[r] + less / self.speed[r])
            both = np.where(less > 0, both, np.inf)
            p, q = np.unravel_index(int(both.argmin()), both.shape)
            if both[p, q] < min(limit, best.time_s * (1 - EPSILON) if best else np.inf):
                best = _Step(float(both[p, q]), int(here[p]), int(r), int(theirs[q]), giver)
        return best

    def _relay(self, giver: int, receivers: _Numbers, mine: _Numbers) -> _Step | None:
        best, least = None, self.time[giver] * (1 - self.tolerance / 8)
        for to, middle in permutations(receivers, 2):
            here = mine[self.on[mine, middle] == 0]
            theirs = np.flatnonzero((self.on[:, middle] > 0) & (self.on[:, to] == 0) & self.movable & (self.work > 0))
            if not len(here) or not len(theirs):
                continue
            given, passed = self.work[here][:, None], self.work[theirs][None, :]
            at_middle = self.time[middle] + (given - passed) / self.speed[middle]
            at_ends = np.maximum(self.time[giver] - given / self.speed[giver], self.time[to] + passed / self.speed[to])
            most = np.maximum(at_middle, at_ends)
            p, q = np.unravel_index(int(most.argmin()), most.shape)
            if most[p, q] < least:
                least = float(most[p, q])
                best = _Step(least, int(here[p]), int(middle), int(theirs[q]), int(to))
        return best

    def _take(self, p: int, giver: int, receiver: int) -> None:
        self.on[p, receiver], self.on[p, giver] = self.on[p, giver], 0
        self.time[giver] -= self.work[p] / self.speed[giver]
        self.time[receiver] += self.work[p] / self.speed[receiver]

    def _result(self) -> list[Move]:
        """The moves from the first placement to the last; copies of a partition that changed places did not move."""
        moves = []
        for p in np.flatnonzero(((self.on > 0) != (self.first > 0)).any(axis=1)):
            left = np.flatnonzero((self.first[p] > 0) & (self.on[p] == 0))
            came = np.flatnonzero((self.first[p] == 0) & (self.on[p] > 0))
            for giver, receiver in zip(left, came, strict=True):
                part = self.parts[p]
                slot = int(self.first[p, giver]) - 1
                moves.append(
                    (int(giver), Move(stage=part.stage, partition=part.partition, slot=slot, to=self.names[receiver]))
                )
        return self._in_turn(moves)

    @staticmethod
    def _in_turn(moves: list[tuple[int, Move]]) -> list[Move]:
        """One from each giver in turn, so that all get better together."""
        count: dict[int, int] = {}
        ranked = []
        for giver, move in moves:
            count[giver] = count.get(giver, 0) + 1
            ranked.append((count[giver], move))
        return [move for _, move in sorted(ranked, key=lambda item: item[0])]
