"""Statistics: all that a policy of balance may know, as one value.

The unit of work is a row of the dataflow's main stage; rows of other stages count by what they cost relative to it.
Work is counted per position and not per second: it is then the same for every copy of a partition. A site's *time per
position* is the work per position of its copies divided by its speed. The site with the greatest time per position is
the one for which all others wait.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar, overload

from ..protocols.balance_messages import Round, Work
from ..protocols.messages import Move


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteStatistics:
    """One site: how fast it is, how much it has to do, how far it lags.

    `speed` is in work per busy second, known with the relative standard error `speed_error` from `samples` reports.
    Without a report it is the median of the others' speeds, and the error is infinite. A site whose speed goes up and
    down is `is_volatile`: `speed` is its average then, and `speed_now` the speed since the last change. `lag` is the
    part of its producers' pools that is kept for it, 1 if they wait for it. `is_reserved`: it gets no load, because it
    is a spare or is being drained.
    """

    name: str
    speed: float
    time_s: float
    speed_error: float = 0.0
    speed_now: float = 0.0
    samples: int = 10
    is_volatile: bool = False
    lag: float = 0.0
    utilisation: float = 0.0
    state_bytes: int = 0
    is_reserved: bool = False
    is_slow: bool = False

    @property
    def is_measured(self) -> bool:
        """Whether a report has said how fast it is."""
        return self.speed_error != float("inf")


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionStatistics:
    """One partition: its work per position, and the sites of its copies by slot, "" for a lost one."""

    stage: int
    partition: int
    work: float
    copies: tuple[str, ...]
    state_bytes: int = 0
    is_movable: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """How the sites compared at `at_s`: the site with the greatest time per position, and what it could be at best.

    `slow` are that site and those nearly as slow, and `lag` is the part of the pools that is kept for them together.
    `is_single`: no copy on that site has another one elsewhere. `is_left`: it is marked as slow, and the others go on
    without it. `is_volatile`: the speed of a site goes up and down, so sites are compared by their averages, and `lag`
    is that of the site that lags most. `lag_least` and `utilisation_least` are those of the other site that has least
    to do.
    """

    at_s: float
    top: str
    time_s: float
    ideal_s: float
    median_s: float
    speed_error: float
    samples: int
    lag: float
    lag_least: float
    has_new_site: bool = False
    is_volatile: bool = False
    is_single: bool = False
    is_left: bool = False
    utilisation_least: float = 1.0
    slow: frozenset[str] = frozenset()

    @property
    def gain_most(self) -> float:
        """The part of the greatest time that perfect balance would save."""
        return 1 - self.ideal_s / self.time_s if self.time_s > 0 else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceivedWork:
    """A site's report and when it arrived."""

    at_s: float
    work: Work


T = TypeVar("T")


class LazySequence(Sequence[T]):
    """Values that are made when they are first looked at: most plans end before that."""

    def __init__(self, make: Callable[[], Iterable[T]]) -> None:
        self._make = make

    @cached_property
    def _values(self) -> tuple[T, ...]:
        return tuple(self._make())

    @overload
    def __getitem__(self, index: int) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[T]: ...
    def __getitem__(self, index: int | slice) -> T | Sequence[T]:
        return self._values[index]

    def __len__(self) -> int:
        return len(self._values)

    def __iter__(self) -> Iterator[T]:
        return iter(self._values)


@dataclass(frozen=True, kw_only=True)
class Statistics:
    """What a policy is given at `at_s`; it was asked at `asked_s` before.

    `rounds` are the last ones, the newest at the end, and `reports` those of the last half minute that arrived after
    the last round ended. `moments` say how the sites compared in the last minute.

    >>> sites = [SiteStatistics(name=f"site-{n}", speed=3.0 - n, time_s=1.0) for n in (1, 2)]
    >>> partitions = [PartitionStatistics(stage=1, partition=p, work=1.0, copies=("site-1",)) for p in range(3)]
    >>> statistics = Statistics(at_s=0.0, sites=sites, partitions=partitions)
    >>> statistics.times_s(())
    {'site-1': 1.5, 'site-2': 0.0}
    >>> statistics.times_s([Move(stage=1, partition=0, slot=0, to="site-2")])
    {'site-1': 1.0, 'site-2': 1.0}
    """

    at_s: float
    sites: Sequence[SiteStatistics]
    partitions: Sequence[PartitionStatistics]
    asked_s: float = 0.0
    rounds: tuple[Round, ...] = ()
    reports: Sequence[ReceivedWork] = ()
    moments: tuple[Moment, ...] = ()

    def times_s(self, moves: Iterable[Move]) -> dict[str, float]:
        """The time per position of each site after `moves`, as far as it is known now."""
        to = {(move.stage, move.partition, move.slot): move.to for move in moves}
        work = {site.name: 0.0 for site in self.sites}
        for each in self.partitions:
            for slot, name in enumerate(each.copies):
                place = to.get((each.stage, each.partition, slot), name)
                if place in work:
                    work[place] += each.work
        return {site.name: work[site.name] / site.speed for site in self.sites}

    def gain(self, moves: Iterable[Move]) -> float:
        """The part of the greatest time per position that `moves` save; negative if they make it greater."""
        before, after = max(self.times_s(()).values(), default=0.0), max(self.times_s(moves).values(), default=0.0)
        return 1 - after / before if before > 0 else 0.0

    @property
    def round_ended_s(self) -> float:
        """When the moves of the last round ended; 0 before the first one."""
        return self.rounds[-1].ended_s or 0.0 if self.rounds else 0.0
