"""More rows than the dataflow can process: the source waits, or rows are shed and counted. Real processes."""

from __future__ import annotations

import logging
import time
from typing import Any, ClassVar

import pytest

import flux

from .waiting import DEADLINE_S, wait_until

COUNT = 20_000
ROWS = [{"k": n % 13, "v": n} for n in range(COUNT)]


class Slow(flux.KeyedOperator):
    """It takes its time, so that the ingress runs out of room."""

    output: ClassVar = {"v": "int64", "nth": "int64"}

    def on_tuple(self, key: Any, row: Any, state: Any) -> Any:
        time.sleep(0.001)
        nth = (state or 0) + 1
        return nth, [{"v": row.v, "nth": nth}]


def flow_of(operator: Any, rate: float | None = None) -> flux.Dataflow:
    flow = flux.Dataflow("overload")
    rows = flow.source(flux.sources.Table(ROWS, rate=rate, batch_rows=100))
    rows.exchange("k", partitions=4).apply(operator).sink(flux.sinks.Collect())
    return flow


def check(report: flux.Report) -> None:
    """What was not shed is there once, in order, and every copy saw the same rows."""
    found = report.table.to_pylist()
    values = [row["v"] for row in found]
    assert values == sorted(set(values))
    assert report.outputs + report.shed == COUNT
    if not report.failures:  # An ingress that was killed may not have told all that it had numbered.
        assert report.inputs == report.outputs
    seen: dict[int, int] = {}
    for row in found:
        seen[row["v"] % 13] = seen.get(row["v"] % 13, 0) + 1
        assert row["nth"] == seen[row["v"] % 13]


def test_rows_for_which_there_is_no_room_are_shed_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "flux")
    report = flow_of(Slow, rate=10_000).run(sites=2, pool_rows=200, on_overload="shed")
    check(report)
    assert report.shed > 0
    assert report.outputs > 0
    assert report.to_dict()["shed"] == report.shed
    assert len([text for text in caplog.messages if "are shed" in text]) == 1


def test_an_ingress_that_is_started_again_leaves_out_what_was_shed() -> None:
    with flow_of(Slow, rate=5_000).start(sites=2, pool_rows=200, on_overload="shed") as run:
        for outputs in (200, 600):
            run.wait_for_output(outputs)
            wait_until(lambda: run.status().shed > 0, "rows are shed")
            run.kill("ingress")
        report = run.wait(timeout=DEADLINE_S)
    check(report)
    assert len(report.failures) == 2


def test_with_room_for_all_nothing_is_shed() -> None:
    class Quick(Slow):
        def on_tuple(self, key: Any, row: Any, state: Any) -> Any:
            return (state or 0) + 1, [{"v": row.v, "nth": (state or 0) + 1}]

    report = flow_of(Quick).run(sites=2, on_overload="shed")
    check(report)
    assert report.shed == 0


def test_with_a_limit_on_latency_every_row_is_there_once_also_when_the_ingress_dies() -> None:
    class Quick(Slow):
        def on_tuple(self, key: Any, row: Any, state: Any) -> Any:
            return (state or 0) + 1, [{"v": row.v, "nth": (state or 0) + 1}]

    flow = flux.Dataflow("limit")
    # One batch, which the ingress cuts: the source has no offsets within it.
    stream = flow.source(flux.sources.Table(ROWS, batch_rows=COUNT))
    stream.exchange("k", partitions=4).apply(Quick).sink(flux.sinks.Collect())
    with flow.start(sites=2, max_latency_ms=10) as run:
        for outputs in (1, 8_000):
            run.wait_for_output(outputs)
            run.kill("ingress")
        report = run.wait(timeout=DEADLINE_S)
    check(report)
    assert report.outputs == COUNT


def test_by_default_the_source_waits() -> None:
    rows = ROWS[:500]
    flow = flux.Dataflow("wait")
    stream = flow.source(flux.sources.Table(rows, batch_rows=50))
    stream.exchange("k", partitions=4).apply(Slow).sink(flux.sinks.Collect())
    report = flow.run(sites=2, pool_rows=100)
    assert [row["v"] for row in report.table.to_pylist()] == [row["v"] for row in rows]
    assert report.shed == 0
