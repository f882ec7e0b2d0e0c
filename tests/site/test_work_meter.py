"""What a site counts of its work, and what it reports."""

from __future__ import annotations

import time
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pytest
import trio
import trio.testing

import flux
from flux.hosting import host
from flux.model.batch import Batch
from flux.model.operator import OperatorStep
from flux.plan import Plan, Policy, Segment
from flux.protocols.balance_messages import Work
from flux.protocols.ingress import Ingress
from flux.protocols.inspection import kept_rows
from flux.protocols.messages import Consume, OutputRun
from flux.protocols.node import Node
from flux.protocols.pooler import Pooler
from flux.site.work_meter import MEASURES_EVERY_S, REPORT_EVERY_S, WorkMeter
from flux.system import idle_time

PARTITIONS = 4
COHORT = frozenset(range(PARTITIONS))


def plan_of(balance: str = "auto") -> Plan:
    segment = Segment(columns=("n",), partitions=PARTITIONS, availability="pairs", steps=())
    policy = Policy(balance=balance)
    return Plan(name="even", segments=(segment,), sites=2, standby=0, pool_rows=100, policy=policy)


def site() -> Node:
    """A site whose copies of all partitions are at the same position."""
    pooler = Pooler("site-1", 1, 100)
    node = Node("site-1", [pooler])
    pooler.cons.view = plan_of().view()
    list(pooler.cons.add_cohort(0, COHORT, 0))
    return node


def rows_of(*partitions: int) -> Batch:
    count = len(partitions)
    arrow = pa.RecordBatch.from_pydict({"n": list(range(count))})
    return Batch(arrow, np.arange(count), None, np.array(partitions, np.uint16))


def job(after: int, upto: int, cohort: int = 0, partitions: frozenset[int] = COHORT) -> Consume:
    return Consume(stage=1, cohort=cohort, partitions=partitions, after=after, upto=upto, frames=())


def test_rows_and_positions_of_all_steps_since_the_last_report_are_counted() -> None:
    meter, node = WorkMeter(plan_of()), site()

    meter.note_step(node, job(0, 10), rows_of(0, 0, 3), 0.25, {})
    meter.note_step(node, job(10, 15), rows_of(3, 2), 0.5, {})
    meter.note_step(node, job(15, 20), None, 0.0, {})

    [stage] = meter.take(node).stages
    assert (stage.positions, stage.rows, stage.busy_s) == (20, ((0, 2), (2, 1), (3, 2)), 0.75)
    assert stage.costs_s == () and stage.catching_up == ()
    [stage] = meter.take(node).stages
    assert (stage.positions, stage.rows, stage.busy_s) == (0, (), 0.0), "the next interval begins empty"


def test_rows_of_long_steps_are_counted_exactly() -> None:
    meter, node = WorkMeter(plan_of()), site()
    rows = rows_of(*np.repeat([0, 0, 0, 2, 3], 4_000))  # Of five rows three are of partition 0.

    for step in range(200):
        meter.note_step(node, job(step, step + 1), rows, 0.01, {})

    [stage] = meter.take(node).stages
    assert dict(stage.rows) == {0: 2_400_000, 2: 800_000, 3: 800_000}


def test_a_younger_cohort_advances_no_position_and_catches_up_for_the_whole_interval() -> None:
    meter, node = WorkMeter(plan_of()), site()

    meter.note_step(node, job(0, 10), rows_of(0), 0.1, {})
    meter.note_step(node, job(2, 9, cohort=5, partitions=frozenset({2})), rows_of(2, 2), 0.1, {})

    [stage] = meter.take(node).stages
    assert (stage.positions, stage.rows, stage.catching_up) == (10, ((0, 1), (2, 2)), (2,))
    [stage] = meter.take(node).stages
    assert stage.catching_up == (), "it has been merged into the oldest one"


def test_exact_costs_and_the_rest_by_rows_make_up_the_time_of_the_stage() -> None:
    meter, node = WorkMeter(plan_of()), site()

    meter.note_step(node, job(0, 10), rows_of(0, 0, 0, 1), 1.0, {0: 0.2, 1: 0.4})

    [stage] = meter.take(node).stages
    assert dict(stage.costs_s) == pytest.approx({0: 0.2 + 0.4 * 3 / 4, 1: 0.4 + 0.4 / 4})
    assert sum(cost for _, cost in stage.costs_s) == pytest.approx(stage.busy_s)


def test_calls_for_punctuations_alone_have_costs_too() -> None:
    meter, node = WorkMeter(plan_of()), site()

    meter.note_step(node, job(0, 10), None, 0.5, {1: 0.3})

    [stage] = meter.take(node).stages
    assert dict(stage.costs_s) == pytest.approx({1: 0.5})


def test_a_site_without_copies_reports_no_stage() -> None:
    assert WorkMeter(plan_of()).take(Node("site-3", [Pooler("site-3", 1, 100)])).stages == ()


def keys_of(stage: int) -> dict[int, int]:
    return {0: 5, 3: 1}


@pytest.mark.parametrize("balance", ["auto", "off"])
def test_measures_are_totals_since_the_run_began_also_where_nothing_is_balanced(balance: str) -> None:
    meter, node = WorkMeter(plan_of(balance)), site()
    meter.note_step(node, job(0, 10), rows_of(0, 3), 1.0, {})
    meter.take(node)
    meter.note_step(node, job(10, 20), rows_of(0), 0.5, {})

    for _ in range(2):
        [stage] = meter.measures(node, keys_of).stages
        assert (stage.partitions, stage.rows, stage.keys) == ((0, 1, 2, 3), (2, 0, 0, 1), (5, 0, 0, 1))
        assert stage.busy_s == 1.5
    assert meter.take(node).stages[0].rows == ((0, 1),), "what was measured is in the next interval, too"


def test_the_total_of_a_copy_that_arrives_is_where_it_was_and_its_work_is_not() -> None:
    donor, meter, node = WorkMeter(plan_of()), WorkMeter(plan_of()), site()
    donor.note_step(node, job(0, 10), rows_of(2, 2, 2), 0.1, {})
    meter.note_step(node, job(0, 10), rows_of(0), 0.1, {})

    meter.put_row_total(1, 2, donor.row_total(1, 2))
    meter.note_step(node, job(10, 20), rows_of(2), 0.1, {})

    assert meter.measures(node, keys_of).stages[0].rows == (1, 0, 4, 0)
    assert meter.take(node).stages[0].rows == ((0, 1), (2, 1))


def test_an_operator_per_partition_is_timed_and_the_other_forms_are_not() -> None:
    class Passes(flux.Operator):
        def process(self, batch: flux.Batch) -> flux.Batch:
            return batch

    class Keyed(flux.KeyedOperator):
        def on_tuple(self, key, row, state):  # type: ignore[no-untyped-def]
            return None, None

    class Pool(flux.PooledOperator):
        def process(self, batch: flux.Batch) -> flux.Batch:
            return batch

    costs = {}
    for factory in (Passes, Keyed, Pool):
        hosted = host(OperatorStep(factory, {}, factory.__name__, ("n",), PARTITIONS, 0, None))
        hosted.open(range(PARTITIONS))
        hosted.process(rows_of(0, 1))
        assert hosted.take_costs() == {}, "it was not asked for"
        hosted.time_partitions()
        hosted.process(rows_of(0, 3))
        costs[factory] = hosted.take_costs()
        assert hosted.take_costs() == {}
    assert costs[Passes].keys() == {0, 3} and min(costs[Passes].values()) >= 0
    assert costs[Keyed] == costs[Pool] == {}


def test_the_lag_of_a_consumer_is_what_the_pool_keeps_for_it() -> None:
    ingress = Ingress("ingress", 100)
    buffer = ingress.prod.buffer
    for dest in ((0, "site-1"), (0, "site-2"), (1, "egress")):
        buffer.entitle(dest)
    buffer.put(OutputRun(after=0, upto=10, rows=40, body=None))
    buffer.put(OutputRun(after=10, upto=20, rows=20, body=None))
    buffer.ack((0, "site-1"), 10)
    node = Node("ingress", [ingress])

    assert {dest: kept.lag for dest, kept in kept_rows(node).items()} == {"site-1": 0.2, "site-2": 0.6, "egress": 0.6}
    assert WorkMeter(plan_of()).take(node).lags == (("site-1", 0.2), ("site-2", 0.6))


def test_busy_is_the_time_in_which_the_loop_does_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that trio and the meter share makes the times exact."""
    clock = trio.testing.MockClock(autojump_threshold=0)
    reports: list[Work] = []
    meter, node = WorkMeter(plan_of()), site()

    async def main() -> None:
        waited = trio.current_time()
        monkeypatch.setattr("time.monotonic", lambda: trio.current_time() - waited)
        monkeypatch.setattr(idle_time, "watch", lambda: lambda: idle_s)
        idle_s = 0.0
        meter.start()
        clock.jump(0.06)
        meter.note_moving(0.02)
        idle_s = 0.01
        reports.append(meter.take(node))
        reports.append(meter.take(node))

    trio.run(main, clock=clock)
    first, second = reports
    assert (first.number, second.number) == (1, 2)
    assert (first.elapsed_s, first.moving_s, first.busy_s) == pytest.approx((0.06, 0.02, 0.03))
    assert (second.elapsed_s, second.moving_s, second.busy_s) == (0, 0, 0)


def test_a_loop_that_waits_is_idle_and_one_that_works_is_not() -> None:
    async def main() -> tuple[float, float]:
        idle_s = idle_time.watch()
        await trio.sleep(0.05)
        waited_s = idle_s()
        for _ in range(1000):
            await trio.lowlevel.checkpoint()
        return waited_s, idle_s() - waited_s

    waited_s, further_s = trio.run(main)
    assert waited_s >= 0.04
    assert further_s == 0, "a look at what is ready is no wait"


def test_reports_come_unasked(autojump_clock: trio.testing.MockClock) -> None:
    async def main() -> list[Work]:
        reports: list[Work] = []
        meter, node = WorkMeter(plan_of()), site()
        with trio.move_on_after(4.5 * REPORT_EVERY_S):
            await meter.report_regularly(lambda: node, lambda: None, reports.append)
        return reports

    assert [work.number for work in trio.run(main, clock=autojump_clock)] == [1, 2, 3, 4]


@pytest.mark.parametrize("works", [True, False])
def test_measures_are_reported_once_a_second(works: bool, autojump_clock: trio.testing.MockClock) -> None:
    async def main() -> list[float]:
        reported: list[float] = []
        meter, node = WorkMeter(plan_of()), site()
        with patch("time.monotonic", trio.current_time), trio.move_on_after(3.5 * MEASURES_EVERY_S):
            begun = trio.current_time()
            send_work = (lambda work: None) if works else None
            await meter.report_regularly(lambda: node, lambda: reported.append(trio.current_time() - begun), send_work)
        return reported

    assert trio.run(main, clock=autojump_clock) == pytest.approx([1, 2, 3], abs=0.21)


def test_the_work_of_an_ingress_has_no_busy_time() -> None:
    """It is compared with no site."""

    async def main() -> Work:
        reports: list[Work] = []
        meter, node = WorkMeter(plan_of()), Node("ingress", [Ingress("ingress", 100)])
        with trio.move_on_after(2 * REPORT_EVERY_S):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(meter.report_regularly, lambda: node, lambda: None, reports.append)
                end_s = time.monotonic() + REPORT_EVERY_S
                while time.monotonic() < end_s:  # It is busy all the time.
                    await trio.lowlevel.checkpoint()
        return reports[0]

    report = trio.run(main)
    assert report.elapsed_s >= REPORT_EVERY_S
    assert report.busy_s < 0.01


@pytest.fixture
def autojump_clock() -> trio.testing.MockClock:
    return trio.testing.MockClock(autojump_threshold=0)
