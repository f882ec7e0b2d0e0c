"""Time left: how long there is room for the rows that are kept for a site, until their producer waits for it.

Producers report how many rows they keep for each site, and how many they may keep. What they kept in the last seconds
says how fast that grows. A producer that has reached its bound waits for the site: rows go in as fast as the site takes
them. Its acks then make room for a few rows at a time, so the wait is over only when there is room for more than that.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from ..protocols.balance_messages import Work

GROWTH_WINDOW_S = 2.0
GROWTH_MIN_S = 0.3  # Reports of less time do not show how fast it grows.
WAIT_OVER_SHARE = 0.9  # Of the bound; a producer that waited does so until less than this is kept.


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptSample:
    """At `at_s`, in view `view`, a producer kept `rows` for a site, and could keep `rows_max`."""

    at_s: float
    rows: int
    rows_max: int
    view: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptForSite:
    """What is kept for a site by the producer that will wait for it first, and in how long.

    `time_left_s` is 0 if that producer waits, and None if what it keeps does not grow.
    """

    rows: int
    rows_max: int
    time_left_s: float | None

    @property
    def is_waited_for(self) -> bool:
        """Whether its producer waits."""
        return self.time_left_s == 0.0


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class KeptRows:
    """What every producer keeps for every site, by both names. A value: `observe` returns another one."""

    samples: Mapping[tuple[str, str], tuple[KeptSample, ...]] = field(default_factory=dict)
    waiting: frozenset[tuple[str, str]] = frozenset()

    def observe(self, work: Work, at_s: float) -> KeptRows:
        """Add what a report says, which arrived at `at_s`."""
        samples = {pair: known for pair, known in self.samples.items() if pair[0] != work.node}
        waiting = self.waiting
        if waiting:
            waiting = frozenset([pair for pair in waiting if pair[0] != work.node])
        begin_s = at_s - GROWTH_WINDOW_S
        for site, rows, rows_max in work.kept:
            pair = (work.node, site)
            last = self.samples.get(pair, ())
            if last and last[-1].rows_max != rows_max:
                last = ()  # Under another bound.
            elif last and last[0].at_s <= begin_s:
                last = last[bisect_right(last, begin_s, key=_time) :]
            samples[pair] = (*last, KeptSample(at_s=at_s, rows=rows, rows_max=rows_max, view=work.view))
            share = WAIT_OVER_SHARE if pair in self.waiting else 1.0
            if rows >= share * rows_max:
                waiting |= {pair}
        return KeptRows(samples=samples, waiting=waiting)

    def without(self, nodes: Iterable[str]) -> KeptRows:
        """Forget these producers, which are gone."""
        gone = frozenset(nodes)
        kept = {pair: known for pair, known in self.samples.items() if pair[0] not in gone}
        return replace(self, samples=kept, waiting=frozenset(pair for pair in self.waiting if pair in kept))

    def of(self, site: str, view: int = 0) -> KeptForSite | None:
        """Return what is kept for `site` by the producer that is the first to wait for it.

        None without a report of `view` or later: a producer that does not know of a slow site yet has another bound.
        """
        found = [
            KeptForSite(
                rows=known[-1].rows,
                rows_max=known[-1].rows_max,
                time_left_s=0.0 if pair in self.waiting else time_left_s(known),
            )
            for pair, known in self.samples.items()
            if pair[1] == site and known[-1].view >= view
        ]
        return min(found, key=_by_urgency, default=None)


def time_left_s(samples: Sequence[KeptSample]) -> float | None:
    """Return in how many seconds the bound is reached if what is kept grows on as it did; None if it does not grow.

    >>> rising = [KeptSample(at_s=float(t), rows=100 * t, rows_max=1_000) for t in range(3)]
    >>> time_left_s(rising), time_left_s(rising[:1]), time_left_s([*rising, replace(rising[0], at_s=3.0)])
    (8.0, None, None)
    """
    first, last = samples[0], samples[-1]
    if last.rows >= last.rows_max:
        return 0.0
    took_s, grown = last.at_s - first.at_s, last.rows - first.rows
    if took_s < GROWTH_MIN_S or grown <= 0:
        return None
    return (last.rows_max - last.rows) * took_s / grown


def _time(sample: KeptSample) -> float:
    return sample.at_s


def _by_urgency(kept: KeptForSite) -> tuple[float, float]:
    left_s = float("inf") if kept.time_left_s is None else kept.time_left_s
    return left_s, -kept.rows / max(kept.rows_max, 1)
