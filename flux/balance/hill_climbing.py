"""`HillClimbing`: the thesis's policy, as it is printed (thesis 4.4.3).

Rounds of two phases: statistics are collected, then partitions move. Sites are sorted by utilisation, and the most and
the least utilised are paired, and so on towards the middle. From each pair one partition moves, the one with the most
rows that makes the difference less. The next collection takes as long as the moves took, so that at most half the time
goes into moves; without a move it takes half as long as the last one, and never less than `collect_min_s`.

Departure: U'_r is U_r (1 + N_p / T_r), because the printed T_d contradicts the derivation above it.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass

from ..protocols.messages import Move
from ..types.errors import PlanError
from .balance_policy import Proposal
from .statistics import PartitionStatistics, Statistics

_Parts = dict[tuple[int, int], PartitionStatistics]
COLLECTIONS_MAX = 100_000  # Collections without a move that are counted one by one, while they still get shorter.


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectedWork:
    """The statistics of one site in one collection phase: its utilisation, and the rows of each of its copies."""

    site: str
    utilisation: float
    rows: Counter[tuple[int, int]]

    @property
    def total(self) -> int:
        """T_j of the thesis."""
        return sum(self.rows.values())


@dataclass(frozen=True, kw_only=True)
class HillClimbing:
    """The thresholds of chapter 4; those of chapter 5 are 1.15, 0.925 and 0.25 s.

    >>> HillClimbing(imbalance=0.9)
    Traceback (most recent call last):
    flux.types.errors.PlanError: imbalance is a ratio of utilisations, 1 or more, got 0.9
    """

    imbalance: float = 1.2
    utilisation: float = 0.9
    collect_min_s: float = 0.25

    def __post_init__(self) -> None:
        if self.imbalance < 1:
            raise PlanError(f"imbalance is a ratio of utilisations, 1 or more, got {self.imbalance!r}")
        if not 0 < self.utilisation <= 1:
            raise PlanError(f"utilisation is a part of the time, over 0 and at most 1, got {self.utilisation!r}")
        if self.collect_min_s <= 0:
            raise PlanError(f"collect_min_s is a time in seconds, over 0, got {self.collect_min_s!r}")

    def plan(self, statistics: Statistics) -> Proposal:
        """Return one move for each pair of sites that is out of balance, at the end of a collection phase."""
        phase = self._ended_phase(statistics)
        if phase is None:
            return Proposal()
        sites = sorted(self._collect(statistics, *phase), key=lambda site: (-site.utilisation, site.site))
        if not sites:
            return Proposal()
        average = sum(site.utilisation for site in sites) / len(sites)
        parts: _Parts = {}
        moves = []
        for donor, receiver in zip(sites[: len(sites) // 2], reversed(sites), strict=False):
            if not self._is_out_of_balance(donor, receiver, average):
                break
            parts = parts or {(part.stage, part.partition): part for part in statistics.partitions}
            move = self._move(parts, donor, receiver)
            if move is not None:
                moves.append(move)
        most, least = sites[0], sites[-1]
        why = f"utilisation of {most.site} {most.utilisation:.2f}, of {least.site} {least.utilisation:.2f}"
        return Proposal(moves, why=why, gain_expected=statistics.gain(moves) if moves else 0.0)

    def _ended_phase(self, statistics: Statistics) -> tuple[float, float] | None:
        """The collection phase that ended since the policy was asked last, as its beginning and end."""
        last = statistics.rounds[-1] if statistics.rounds else None
        begin_s = statistics.round_ended_s
        length_s = max(self.collect_min_s, (last.took_s or 0.0) if last else 0.0)
        for _ in range(COLLECTIONS_MAX):
            end_s = begin_s + length_s
            if end_s > statistics.at_s + 1e-9:
                return None
            if length_s == self.collect_min_s:
                whole = int((statistics.at_s + 1e-9 - begin_s) / length_s)  # The rest are of equal length.
                begin_s, end_s = begin_s + (whole - 1) * length_s, begin_s + whole * length_s
                return (begin_s, end_s) if end_s > statistics.asked_s + 1e-9 else None
            following_s = max(self.collect_min_s, length_s / 2)
            if statistics.asked_s + 1e-9 < end_s and end_s + following_s > statistics.at_s + 1e-9:
                return begin_s, end_s
            begin_s, length_s = end_s, following_s
        return None

    def _collect(self, statistics: Statistics, begin_s: float, end_s: float) -> list[CollectedWork]:
        busy_s: dict[str, float] = defaultdict(float)
        elapsed_s: dict[str, float] = defaultdict(float)
        rows: dict[str, Counter[tuple[int, int]]] = {site.name: Counter() for site in statistics.sites}
        for received in statistics.reports:
            work = received.work
            if begin_s < received.at_s <= max(end_s, statistics.at_s):
                busy_s[work.node] += work.busy_s
                elapsed_s[work.node] += work.elapsed_s
                for stage in work.stages:
                    rows[work.node].update({(stage.stage, partition): count for partition, count in stage.rows})
        return [
            CollectedWork(site=site.name, utilisation=busy_s[site.name] / elapsed_s[site.name], rows=rows[site.name])
            for site in statistics.sites
            if not site.is_reserved and elapsed_s[site.name] > 0
        ]

    def _is_out_of_balance(self, donor: CollectedWork, receiver: CollectedWork, average: float) -> bool:
        ratio = donor.utilisation / max(receiver.utilisation, 1e-9)
        return donor.utilisation >= average and ratio >= self.imbalance and receiver.utilisation <= self.utilisation

    def _move(self, parts: _Parts, donor: CollectedWork, receiver: CollectedWork) -> Move | None:
        """The first partition of the donor, by rows, that makes the difference of both utilisations less."""
        difference = donor.utilisation - receiver.utilisation
        for place, count in sorted(donor.rows.items(), key=lambda item: (-item[1], item[0])):
            part = parts[place]
            if not part.is_movable or donor.site not in part.copies or receiver.site in part.copies or not count:
                continue
            at_donor = donor.utilisation * (1 - count / donor.total)
            at_receiver = self.at_receiver(donor, receiver, count)
            if abs(at_donor - at_receiver) < difference and at_receiver <= 1:
                slot = part.copies.index(donor.site)
                return Move(stage=part.stage, partition=part.partition, slot=slot, to=receiver.site)
        return None

    def at_receiver(self, donor: CollectedWork, receiver: CollectedWork, count: int) -> float:
        """U'_r: what the utilisation of the receiver would be with `count` more rows."""
        # A receiver without rows has no rate of its own: the donor's is the best guess.
        rate = receiver.utilisation / receiver.total if receiver.total else donor.utilisation / donor.total
        return receiver.utilisation + rate * count
