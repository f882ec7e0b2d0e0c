"""What a simulated cluster is made of: its sites, links and costs, and the load of other programs (thesis 4.2).

The thesis's cluster is the default: 32 sites of one processor each. Each has a pinned producer, 0.5 us a row of
80 bytes. They feed a window aggregate of one copy and without order, 45 us a row with a deviation of 3 us, 64
partitions of 800 KB a site. A loaded site shares its processor with a program that computes for 100 us and sleeps for
50 us: it is 57 % slower. That program turns far too often to be simulated turn by turn; it is a speed.

Departure: the thesis's producers are sources, and each generates what it likes. Here an ingress numbers all rows, as in
every dataflow of Flux. It deals them out to the producers; or it stands for all of them, because they are alike.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from ...protocols.messages import View
from ..dataflow import EGRESS, INGRESS, site

LOADED_SPEED = 0.43  # Of a site beside the program that takes 100 of every 150 us: 57 % slower.


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowSpell:
    """A time in which a site has only a part of its processor for the dataflow."""

    begin_s: float
    end_s: float
    speed: float


@dataclass(frozen=True, kw_only=True)
class ClusterSetting:
    """Everything that fixes a simulated cluster; equal settings give equal runs.

    The pool of a site's producer has `pool_rows`. With `pinned_producers` there is one on each site, as a stage of its
    own. Else the ingress stands for all of them: it has their pools together, and what they cost is charged to the
    rows that a site consumes. A pool that is `divided` is that of Exchange; `by_free_space` is River's queue: rows go
    where there is room, whatever their key. `batch_rows` are numbered at a time, and a step of the aggregate takes as
    many positions. `shares` are the parts of all rows that the partitions get; left out, all get the same.
    `source_rows` is the end of the stream; left out, it has none.
    """

    sites: int = 32
    pinned_producers: bool = False
    partitions_per_site: int = 64
    shares: tuple[float, ...] = ()
    pool_rows: int = 2_048
    divided: bool = False
    by_free_space: bool = False
    produce_s: float = 0.5e-6
    row_s: float = 45e-6
    row_deviation_s: float = 3e-6
    row_bytes: int = 80
    latency_s: float = 70e-6
    link_bytes_per_s: float = 125e6
    state_bytes: int = 800_000
    state_bytes_per_s: float = 31.25e6
    state_transfers_at_once: int = 2
    state_cost_s: float = 2e-3
    slow_spells: Mapping[str, tuple[SlowSpell, ...]] = field(default_factory=dict)
    batch_rows: int = 8_192
    report_s: float = 0.1
    sample_s: float = 0.1
    source_rows: int | None = None
    seed: int = 1

    def __post_init__(self) -> None:
        assert not self.shares or len(self.shares) == self.partitions, "a share for each partition"

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The names of the sites."""
        return tuple(map(site, range(self.sites)))

    @property
    def partitions(self) -> int:
        """The partitions of the aggregate."""
        return self.sites * self.partitions_per_site

    @property
    def producing(self) -> int:
        """The stage that feeds the aggregate: 0 if the ingress stands for all producers."""
        return 1 if self.pinned_producers else 0

    @property
    def consuming(self) -> int:
        """The stage of the aggregate."""
        return self.producing + 1

    @property
    def producer_pool_rows(self) -> int:
        """The pool of each process that feeds the aggregate."""
        return self.pool_rows if self.pinned_producers else self.pool_rows * self.sites

    @property
    def consumed_row_s(self) -> float:
        """What a row costs the site that consumes it, with the producing that is charged to no producer."""
        return self.row_s if self.pinned_producers else self.row_s + self.produce_s

    @property
    def unloaded_rate(self) -> float:
        """The rows per second of all sites without load, if all partitions get the same."""
        return self.sites / (self.row_s + self.produce_s)

    @cached_property
    def known_shares(self) -> tuple[float, ...]:
        """The part of all rows that each partition gets."""
        return self.shares or (1 / self.partitions,) * self.partitions

    @cached_property
    def plan(self) -> View:
        """The view that the controller starts from: partition p of the aggregate is on site p modulo their number."""
        names = self.names
        producers = (tuple((name,) for name in names),) if self.pinned_producers else ()
        aggregate = tuple((names[p % self.sites],) for p in range(self.partitions))
        return View(
            number=0,
            nodes=(INGRESS, *names, EGRESS),
            dead=frozenset(),
            copies=(((INGRESS,),), *producers, aggregate, ((EGRESS,),)),
            unordered=frozenset({self.consuming, self.consuming + 1}),
        )

    def speed(self, name: str, at_s: float) -> float:
        """The part of its processor that a site has at `at_s`."""
        for spell in self.slow_spells.get(name, ()):
            if spell.begin_s <= at_s < spell.end_s:
                return spell.speed
        return 1.0

    def finish(self, name: str, at_s: float, work_s: float) -> float:
        """When a site has done work that takes `work_s` at full speed, if it begins at `at_s`."""
        for spell in self.slow_spells.get(name, ()):
            if spell.end_s <= at_s:
                continue
            before_s = max(0.0, spell.begin_s - at_s)
            if work_s <= before_s:
                break
            at_s, work_s = at_s + before_s, work_s - before_s
            left_s = spell.end_s - at_s
            if work_s <= left_s * spell.speed:
                return at_s + work_s / spell.speed
            at_s, work_s = spell.end_s, work_s - left_s * spell.speed
        return at_s + work_s

    def sustained_rate(self, view: View, at_s: float) -> float:
        """The rows per second that a placement sustains at the speeds of `at_s`: one by the greatest time per row."""
        times_s = dict.fromkeys(self.names, 0.0)
        for (name,), share in zip(view.copies[self.consuming], self.known_shares, strict=True):
            times_s[name] += share * self.consumed_row_s
        if self.pinned_producers:
            times_s = {name: time_s + self.produce_s / self.sites for name, time_s in times_s.items()}
        return 1 / max(time_s / self.speed(name, at_s) for name, time_s in times_s.items())


def slow_down(
    names: Iterable[str], begin_s: float = 1.0, speed: float = LOADED_SPEED, end_s: float = float("inf")
) -> dict[str, tuple[SlowSpell, ...]]:
    """The spells of sites that are loaded from `begin_s` on."""
    return {name: (SlowSpell(begin_s=begin_s, end_s=end_s, speed=speed),) for name in names}


def rotate(
    names: Iterable[str], each_s: float, until_s: float, begin_s: float = 0.0, speed: float = LOADED_SPEED
) -> dict[str, tuple[SlowSpell, ...]]:
    """The spells of a load that stays `each_s` on each site and goes to the next.

    >>> rotate(["site-1", "site-2"], each_s=0.5, until_s=1.5)["site-1"][1].begin_s
    1.0
    """
    listed = list(names)
    spells: dict[str, tuple[SlowSpell, ...]] = dict.fromkeys(listed, ())
    number = 0
    while begin_s + number * each_s < until_s:
        name, at_s = listed[number % len(listed)], begin_s + number * each_s
        spells[name] = (*spells[name], SlowSpell(begin_s=at_s, end_s=at_s + each_s, speed=speed))
        number += 1
    return spells
