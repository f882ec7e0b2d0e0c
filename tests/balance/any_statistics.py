"""Statistics of every kind, for what must hold of all plans."""

from __future__ import annotations

from collections import Counter

from hypothesis import strategies as st

from flux.balance import Moment, Move, PartitionStatistics, ReceivedWork, SiteStatistics, Statistics
from flux.protocols.balance_messages import StageWork, Work


@st.composite
def any_statistics(draw: st.DrawFn) -> Statistics:
    """Up to six sites, some reserved, and partitions with one or two copies, some lost, some that may not move."""
    names = [f"site-{n}" for n in range(1, draw(st.integers(2, 6)) + 1)]
    speeds = {name: draw(st.floats(0.05, 4.0)) for name in names}
    reserved = {name for name in names if draw(st.integers(0, 5)) == 0}
    copies = draw(st.integers(1, 2))
    partitions = []
    for number in range(draw(st.integers(0, 24))):
        places = draw(st.lists(st.sampled_from(names), min_size=copies, max_size=copies, unique=True))
        if draw(st.integers(0, 9)) == 0:
            places[0] = ""
        work = draw(st.floats(0.0, 10.0))
        is_movable = draw(st.integers(0, 5)) > 0
        size = draw(st.integers(0, 3))
        partitions.append(
            PartitionStatistics(
                stage=1,
                partition=number,
                work=work,
                copies=tuple(places),
                state_bytes=size,
                is_movable=is_movable,
            )
        )
    load = {name: sum(part.work for part in partitions if name in part.copies) for name in names}
    sites = tuple(
        SiteStatistics(name=name, speed=speeds[name], time_s=load[name] / speeds[name], is_reserved=name in reserved)
        for name in names
    )
    reports = [ReceivedWork(at_s=9.9, work=_report(name, partitions, draw(st.floats(0.0, 0.5)))) for name in names]
    top = max(sites, key=lambda site: site.time_s)
    moment = Moment(
        at_s=1.0,
        top=top.name,
        time_s=top.time_s,
        ideal_s=top.time_s / 2,
        median_s=top.time_s,
        speed_error=0.0,
        samples=9,
        lag=1.0,
        lag_least=0.0,
        is_volatile=draw(st.booleans()),
    )
    return Statistics(at_s=10.0, sites=sites, partitions=partitions, reports=reports, moments=(moment,))


def _report(name: str, partitions: list[PartitionStatistics], busy_s: float) -> Work:
    rows = tuple((part.partition, round(100 * part.work)) for part in partitions if name in part.copies)
    stage = StageWork(stage=1, positions=100, rows=rows, busy_s=busy_s)
    return Work(node=name, number=1, view=1, elapsed_s=0.5, busy_s=busy_s, stages=(stage,))


def assert_allowed(statistics: Statistics, moves: list[Move]) -> None:
    """No two copies of a partition are on one site at any time, and none moves that may not or to where it may not."""
    reserved = {site.name for site in statistics.sites if site.is_reserved}
    names = {site.name for site in statistics.sites}
    places = {(part.stage, part.partition): list(part.copies) for part in statistics.partitions}
    movable = {(part.stage, part.partition) for part in statistics.partitions if part.is_movable}
    for move in moves:
        copies = places[move.stage, move.partition]
        assert (move.stage, move.partition) in movable
        assert move.to in names - reserved
        assert copies[move.slot] != ""
        # In this order no view has two copies on one site either.
        assert move.to not in copies, f"{move} of {copies}"
        copies[move.slot] = move.to
    assert max(Counter((m.stage, m.partition, m.slot) for m in moves).values(), default=1) == 1
