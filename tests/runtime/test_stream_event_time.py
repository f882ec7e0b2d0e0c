"""Event time that a step makes: windows of parsed rows close in an endless flow, and are exact through kills."""

from __future__ import annotations

import logging
import random
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest

import flux
from flux.operators import Distinct, GroupBy, SessionWindow, TimeWindow, TopK
from flux.testing import simulate

ROWS = 3_000
LATENESS_MS, EVERY_MS, WINDOW_MS = 40, 50, 500
COLUMNS = {"k": "string", "ts": "int64", "n": "int64"}
COUNTED = {"rows": "count", "total": ("sum", "n")}


def lines(offset: int, count: int) -> dict[str, Any]:
    """Lines of text out of order; every tenth is empty, and some are far too late."""
    made = []
    for n in range(offset, offset + count):
        draw = random.Random(n)
        at = 0 if n > 1_000 and n % 997 == 0 else n + draw.randint(0, LATENESS_MS)
        made.append("" if n % 10 == 3 else f"{'abcde'[n % 5]} {at} {n}")
    return {"line": made}


def parsed(row: Any) -> Iterator[dict[str, Any]]:
    """No row of an empty line; else two, of which the second happened a little earlier."""
    if row.line:
        k, ts, n = row.line.split()
        yield {"k": k, "ts": int(ts), "n": int(n)}
        yield {"k": k, "ts": int(ts) - 1, "n": -1}


def windows_of(stream: flux.Stream) -> flux.Stream:
    keyed = stream.exchange("k", partitions=4)
    return keyed.apply(TimeWindow, time="ts", size_ms=WINDOW_MS, aggregates=COUNTED)


def flow_of(source: flux.sources.Source) -> flux.Dataflow:
    flow = flux.Dataflow("parsed")
    stream = flow.source(source).flat_map(parsed, COLUMNS)
    windows_of(stream.event_time("ts", lateness_ms=LATENESS_MS, watermark_every_ms=EVERY_MS)).sink(flux.sinks.Collect())
    return flow


@pytest.fixture(scope="module")
def plain() -> flux.Report:
    """A run in which nothing fails."""
    return flow_of(flux.sources.Generator(lines, rows=ROWS)).run()


def test_windows_of_parsed_rows_close_while_an_endless_source_goes_on() -> None:
    with flow_of(flux.sources.Generator(lines, rate=20_000)).start() as run:
        run.wait_for_output(15, timeout=60)


def test_the_output_is_that_of_a_plain_run_though_the_ingress_is_killed_again_and_again(plain: flux.Report) -> None:
    with flow_of(flux.sources.Generator(lines, rows=ROWS, rate=3_000, batch_rows=37)).start(standby=1) as run:
        for victim, output in (("ingress", 2), ("site-1", 7), ("ingress", 15)):
            run.wait_for_output(output, timeout=60)
            run.kill(victim)
        report = run.wait(timeout=120)
    assert report.table.to_pylist() == plain.table.to_pylist()
    assert report.late == plain.late > 2
    assert report.inputs == plain.inputs == ROWS


def test_watermarks_among_parsed_rows_are_those_of_the_same_rows_as_a_source(plain: flux.Report) -> None:
    made = pa.Table.from_pylist([row for n in range(ROWS) for row in parsed(_Line(lines(n, 1)["line"][0]))])
    flow = flux.Dataflow("direct")
    source = flux.sources.Table(made, batch_rows=100)
    stream = flow.source(source, event_time="ts", lateness_ms=LATENESS_MS, watermark_every_ms=EVERY_MS)
    windows_of(stream).sink(flux.sinks.Collect())
    direct = flow.run()
    assert plain.table.to_pylist() == direct.table.to_pylist()
    assert plain.late == direct.late


class _Line:
    def __init__(self, line: str) -> None:
        self.line = line


def test_event_time_of_united_streams_holds_for_each_source() -> None:
    flow = flux.Dataflow("united")
    rows = [{"line": line} for line in lines(0, 900)["line"]]
    streams = [flow.source(flux.sources.Table(rows)).flat_map(parsed, COLUMNS) for _ in range(2)]
    odd, even = (streams[0].filter(lambda row, rest=rest: row.n % 2 == rest) for rest in (0, 1))
    united = odd.union(even, streams[1]).event_time("ts", lateness_ms=LATENESS_MS, watermark_every_ms=EVERY_MS)
    windows_of(united).sink(flux.sinks.Collect())
    assert sum(row["rows"] for row in flow.run().table.to_pylist()) == 2 * 2 * 810
    simulate(flow, seeds=3)


class Timed(flux.KeyedOperator):
    output = {"k": "string"}  # noqa: RUF012

    def on_tuple(self, key: Any, row: Any, state: Any) -> Any:
        self.set_timer(row.ts + 1)
        return None, None

    def on_timer(self, key: Any, time: int, state: Any) -> Any:
        return None, [{"k": key[0]}]


WAITING: dict[str, Callable[[flux.Stream], flux.Stream]] = {
    "TimeWindow": windows_of,
    "SessionWindow": lambda s: s.exchange("k").apply(SessionWindow, time="ts", gap_ms=5, aggregates={"n": "count"}),
    "GroupBy": lambda s: s.exchange("k").apply(GroupBy, aggregates={"n": "count"}, emit="watermarks"),
    "TopK": lambda s: s.exchange("k").apply(TopK, k=1, by="n"),
    "Distinct": lambda s: s.exchange("k").apply(Distinct, time="ts", size_ms=10),
    "Timed": lambda s: s.exchange("k").apply(Timed),
    "Join": lambda s: s.join(s.filter(bool), on="k", within={"ts": 5}),
}


@pytest.mark.parametrize("step", WAITING)
def test_an_endless_flow_without_event_time_into_what_waits_for_it_is_a_plan_error(step: str) -> None:
    flow = flux.Dataflow("silent")
    WAITING[step](flow.source(flux.sources.Lines("localhost", 9)).flat_map(parsed, COLUMNS)).sink(flux.sinks.Null())
    with pytest.raises(
        flux.PlanError, match=rf"'{step}' waits for event time.*Lines names none.*\.event_time\(\"ts\"\)"
    ):
        flow.explain()


@pytest.mark.parametrize("step", WAITING)
def test_with_event_time_or_an_end_it_is_none(step: str) -> None:
    endless, ends = flux.Dataflow("timed"), flux.Dataflow("ends")
    stream = endless.source(flux.sources.Lines("localhost", 9)).flat_map(parsed, COLUMNS).event_time("ts")
    WAITING[step](stream).sink(flux.sinks.Null())
    assert "event_time('ts', lateness_ms=0)" in endless.explain() and "until the end" not in endless.explain()
    WAITING[step](ends.source(flux.sources.Table([{"line": ""}])).flat_map(parsed, COLUMNS)).sink(flux.sinks.Null())
    ends.explain()


class Own(flux.sources.Source):
    """A source that says neither that it ends nor whether it emits watermarks."""

    schema = pa.schema({"k": pa.string(), "ts": pa.int64()})
    replays = False

    async def batches(self, context: Any, after: Any = None) -> AsyncIterator[flux.sources.SourceBatch]:
        yield flux.sources.SourceBatch(pa.record_batch({"k": ["a"], "ts": [1]}))


def test_a_source_that_might_emit_watermarks_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    class Emitting(Own):
        emits_time = True

    caplog.set_level(logging.WARNING, "flux")
    for source in (Own(), Emitting()):
        flow = flux.Dataflow("unknown")
        flow.source(source).exchange("k").apply(Timed).sink(flux.sinks.Null())
        assert ("warning: dataflow 'unknown', step 'Timed'" in flow.explain()) == (type(source) is Own)
        flow.run()
    [warning] = caplog.messages
    assert "'Timed' waits for event time, and Own names none" in warning and "emits_time = True" in warning


def test_event_time_that_cannot_be_is_a_plan_error() -> None:
    flow = flux.Dataflow("wrong")
    source = flow.source(flux.sources.Generator(lines)).flat_map(parsed, COLUMNS)
    with pytest.raises(flux.PlanError, match=r"follows exchange\('k'\): the ingress sets the watermarks"):
        windows_of(source).event_time("window_end")
    with pytest.raises(flux.PlanError, match="event_time names a column of its output, 'when'; it emits k, ts, n"):
        source.event_time("when")
    with pytest.raises(flux.PlanError, match="event_time='k' is string"):
        source.event_time("k")
    with pytest.raises(flux.PlanError, match="lateness_ms is a whole number"):
        source.event_time("ts", lateness_ms=-1)
    timed = source.event_time("ts")
    with pytest.raises(flux.PlanError, match="source Generator has event time already, its column 'ts'"):
        timed.map(lambda row: {"n": row.n}, {"n": "int64"}).event_time("n")
    table = flow.source(flux.sources.Table([{"n": 1}]), event_time="n")
    with pytest.raises(flux.PlanError, match="source Table has event time already"):
        table.event_time("n")


def test_a_column_that_an_undeclared_map_did_not_make_is_an_error_of_the_run() -> None:
    flow = flux.Dataflow("undeclared")
    flow.source(flux.sources.Table([{"n": 1}])).map(lambda row: {"m": 1}).event_time("ts").sink(flux.sinks.Null())
    with pytest.raises(flux.OperatorError, match="event time is the column 'ts'; the rows have m"):
        flow.run()
