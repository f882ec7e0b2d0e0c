"""Which columns tell event time, as far as the plan can know: a join forgets rows by those, and says so of others."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import flux
from flux.exchange.sides import widen
from flux.hosting import host
from flux.model.batch import Batch
from flux.model.punctuation import Punctuation
from flux.operators import Distinct, TimeWindow, TopK
from flux.plan.graph import StepNode
from flux.testing.flow_simulation import _scenario, make_small_plan
from flux.testing.flow_world import plain_outputs
from flux.testing.source_prefix import source_prefixes
from flux.types.hashing import partition_of

COLUMNS = {"k": "int64", "ts": "int64", "n": "int64"}
LATENESS_MS, EVERY_MS, BOUND_MS = 6, 2, 5


def same(row: Any) -> dict[str, Any]:
    return dict(row._asdict())


def once(row: Any) -> list[dict[str, Any]]:
    return [same(row)]


class Passing(flux.Operator):
    """Of a user, who says what he knows."""

    output = COLUMNS
    event_time = "ts"

    def process(self, batch: Batch) -> Batch | None:
        return batch.emit({name: batch[name] for name in COLUMNS})


class Silent(Passing):
    """Of one who does not."""

    event_time = None


WAYS: dict[str, Callable[[flux.Stream], flux.Stream]] = {
    "map": lambda rows: rows.map(same, COLUMNS, event_time="ts"),
    "map of batches": lambda rows: rows.map(
        lambda batch: {name: batch[name] for name in COLUMNS}, COLUMNS, batch=True, event_time="ts"
    ),
    "flat_map": lambda rows: rows.flat_map(once, COLUMNS, event_time="ts"),
    "flat_map that is renamed": lambda rows: (
        rows.flat_map(once, COLUMNS, event_time="ts").select("k", "n", at="ts").filter(bool).select("k", "n", ts="at")
    ),
    "an operator": lambda rows: rows.exchange("n", partitions=3).apply(Passing),
    "Distinct": lambda rows: rows.exchange("n", partitions=3).apply(Distinct),
    "Distinct in windows": lambda rows: (
        rows.map(same, COLUMNS, event_time="ts")
        .exchange("n", partitions=3)
        .filter(bool)
        .apply(Distinct, time="ts", size_ms=40)
    ),
}
UNKNOWN: dict[str, tuple[Callable[[flux.Stream], flux.Stream], str]] = {
    "map": (lambda rows: rows.map(same, COLUMNS), r"map\(same\) makes it: give that event_time='ts'"),
    "another column": (lambda rows: rows.map(same, COLUMNS, event_time="n"), r"map\(same\) makes it"),
    "an operator": (lambda rows: rows.exchange("n").apply(Silent), "Silent makes it: let it say `event_time = 'ts'`"),
    "behind Distinct": (lambda rows: rows.map(same, COLUMNS).exchange("n").apply(Distinct), r"map\(same\) makes it"),
    "one of two": (lambda rows: rows.union(rows.map(same, COLUMNS)), r"map\(same\) makes it"),
    "a select": (
        lambda rows: rows.select("k", "n", ts=(lambda batch: batch["ts"], "int64")),
        r"a function of select\(k, n, ts\) makes it: make it with map\(\.\.\., event_time='ts'\)",
    ),
    "the beginnings of windows": (
        lambda rows: (
            rows.exchange("k", "n")
            .apply(TimeWindow, time="ts", size_ms=10, aggregates={"c": "count"})
            .select("k", "n", ts="window_start")
        ),
        "TimeWindow makes it",
    ),
    # What is ranked in a window comes out at its end, and may have happened long before it.
    "rows of closed windows": (
        lambda rows: rows.exchange("k").apply(TopK, k=1, by="n", time="ts", size_ms=10).select("k", "ts", "n"),
        "TopK makes it",
    ),
    "pairs": (lambda rows: rows.join(rows, on="k", within={"ts": 1}).select("k", "ts", "n"), "Join makes it"),
}


def rows_of(moments: list[tuple[int, int]]) -> pa.Table:
    """(key, milliseconds that a row comes after it has happened) of each row; one happens each millisecond."""
    ts = [i + 100 - late for i, (_, late) in enumerate(moments)]
    return pa.table(
        {"k": pa.array([key for key, _ in moments], pa.int64()), "ts": pa.array(ts, pa.int64()), "n": range(len(ts))}
    )


def source_of(flow: flux.Dataflow, source: flux.sources.Source) -> flux.Stream:
    return flow.source(source, event_time="ts", lateness_ms=LATENESS_MS, watermark_every_ms=EVERY_MS)


def joined_by(flow: flux.Dataflow, rows: flux.Stream, way: Callable[[flux.Stream], flux.Stream]) -> flux.Stream:
    left = way(rows.filter(lambda row: row.n % 2 == 0))
    right = way(rows.filter(lambda row: row.n % 3 == 0))
    return left.join(right, on="k", within={"ts": BOUND_MS}, partitions=3)


def step_of(stream: flux.Stream) -> Any:
    [tail] = stream._tails
    assert isinstance(tail, StepNode)
    return tail.step


def pairs_in_duckdb(rows: pa.Table) -> list[tuple[int, int]]:
    with duckdb.connect() as db:
        db.register("arrived", rows)
        return db.execute(
            f"""SELECT l.n, r.n FROM arrived l JOIN arrived r ON l.k = r.k
            WHERE l.n % 2 = 0 AND r.n % 3 = 0 AND abs(l.ts - r.ts) <= {BOUND_MS} ORDER BY ALL"""
        ).fetchall()


def told_by(flow: flux.Dataflow, rows: int) -> list[dict[str, Any]]:
    """What comes to the sink in a plain run of the operators: one stage after the other, without processes."""
    plan = make_small_plan(flow, sites=2, standby=0, partitions=3)
    [output] = plain_outputs(_scenario(plan, source_prefixes(flow._logical.sources, rows, flow.name), {}, 0))
    return [row.value.arrow.to_pylist()[0] for row in output]


@pytest.mark.parametrize("way", WAYS)
@settings(max_examples=8, deadline=None)
@given(moments=st.lists(st.tuples(st.integers(0, 2), st.sampled_from([0, 0, 3, LATENESS_MS])), min_size=1, max_size=60))
def test_behind_what_says_its_event_time_no_pair_of_rows_in_time_is_missing(
    way: str, moments: list[tuple[int, int]]
) -> None:
    flow, rows = flux.Dataflow("pairs"), rows_of(moments)
    joined = joined_by(flow, source_of(flow, flux.sources.Table(rows)), WAYS[way])
    joined.sink(flux.sinks.Collect())

    assert step_of(joined).parameters["joined"].is_event_time and step_of(joined).kept is None
    found = sorted((row["n"], row["n_right"]) for row in told_by(flow, len(moments)))
    assert found == pairs_in_duckdb(rows)


SIZES = [(10, 10), (12, 4)]


@pytest.mark.parametrize(("size_ms", "slide_ms"), SIZES)
@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_the_ends_of_windows_tell_event_time_whatever_gaps_there_are(size_ms: int, slide_ms: int, data: Any) -> None:
    """Windows of two streams that end within a bound of each other; time may stand still, and leap over windows."""
    leaps = data.draw(st.lists(st.sampled_from([0, 1, 3, 25, 90]), min_size=2, max_size=40))
    late = data.draw(st.lists(st.integers(0, LATENESS_MS), min_size=len(leaps), max_size=len(leaps)))
    happened = np.cumsum(leaps) - late
    rows = pa.table({"k": np.arange(len(leaps)) % 2, "ts": happened, "n": np.arange(len(leaps))})
    flow = flux.Dataflow("windows")
    source = source_of(flow, flux.sources.Table(rows))
    parameters = {"time": "ts", "size_ms": size_ms, "slide_ms": slide_ms, "aggregates": {"c": "count"}}
    left, right = (
        source.filter(lambda row, of=of: row.n % of == 0).exchange("k", partitions=3).apply(TimeWindow, **parameters)
        for of in (1, 2)
    )
    joined = left.join(right, on="k", within={"window_end": size_ms}, partitions=3)
    joined.sink(flux.sinks.Collect())

    assert step_of(joined).parameters["joined"].is_event_time
    found = sorted(
        (row["k"], row["window_end"], row["c"], row["window_end_right"], row["c_right"])
        for row in told_by(flow, len(leaps))
    )
    with duckdb.connect() as db:
        db.register("arrived", rows)
        windows = f"""SELECT k, e, count(*) AS c FROM (
            SELECT k, unnest(range(({slide_ms} * floor(ts / {slide_ms}))::BIGINT + {slide_ms},
                                   ts + {size_ms} + 1, {slide_ms})) AS e, ts FROM arrived WHERE n % {{of}} = 0
        ) WHERE ts < e AND ts >= e - {size_ms} GROUP BY k, e"""
        wanted = db.execute(
            f"""SELECT k, l.e, l.c, r.e, r.c FROM ({windows.format(of=1)}) l JOIN ({windows.format(of=2)}) r USING (k)
            WHERE abs(l.e - r.e) <= {size_ms} ORDER BY ALL"""
        ).fetchall()
    assert found == wanted


def test_a_join_behind_a_map_that_says_its_event_time_keeps_what_is_near_and_no_more() -> None:
    flow = flux.Dataflow("endless")
    joined = joined_by(flow, source_of(flow, flux.sources.Table(rows_of([(0, 0)]))), WAYS["map"])
    assert _most_kept(step_of(joined), rows=5_000) < 1_000
    silent = joined_by(
        flow, source_of(flow, flux.sources.Table(rows_of([(0, 0)]))), lambda rows: rows.map(same, COLUMNS)
    )
    assert _most_kept(step_of(silent), rows=5_000) == 5_000


def _most_kept(step: Any, rows: int, piece: int = 50) -> int:
    """The most rows that a join has kept at once, of a stream in which one happens each millisecond."""
    hosted, schema, most = host(step), step.parameters["joined"].sides, 0
    hosted.open(range(3))
    for first in range(0, rows, piece):
        n = np.arange(first, first + piece)
        sides = [
            pa.record_batch({"k": n % 5, "ts": n, "n": n}).take(pa.array(np.flatnonzero(n % 2 == s))) for s in (0, 1)
        ]
        for side, part in enumerate(sides):
            partition = partition_of([part.column("k")], 3)
            hosted.process(Batch(widen(part, side, schema), part.column("n").to_numpy(), None, partition))
        hosted.punctuate(Punctuation(first + piece, "watermark", first + piece - LATENESS_MS, frozenset(range(3))))
        most = max(most, sum(hosted._instance.partition_info().values()))
    return most


# What cannot be known.


@pytest.mark.parametrize("case", UNKNOWN)
def test_what_the_plan_cannot_know_it_does_not_claim_and_says_why(case: str) -> None:
    make, why = UNKNOWN[case]
    flow = flux.Dataflow("unknown")
    rows = source_of(flow, flux.sources.Table(rows_of([(0, 0)])))
    joined = rows.join(make(rows), on="k", within={"ts": 5})
    joined.sink(flux.sinks.Null())

    assert not step_of(joined).parameters["joined"].is_event_time
    keeps = "keeps its rows until the end of the stream: the plan does not know that 'ts' is event time"
    assert re.search(f"(?m)^    {keeps}: .*{why}", flow.explain())


def test_without_watermarks_a_promise_lets_nothing_be_forgotten() -> None:
    flow = flux.Dataflow("timeless")
    rows = flow.source(flux.sources.Table(rows_of([(0, 0)])))
    joined = joined_by(flow, rows, WAYS["map"])
    joined.sink(flux.sinks.Null())
    assert not step_of(joined).parameters["joined"].is_event_time
    assert "no source has event time: use flow.source(..., event_time=...)" in flow.explain()


def test_a_join_that_forgets_says_nothing() -> None:
    flow = flux.Dataflow("known")
    joined_by(flow, source_of(flow, flux.sources.Table(rows_of([(0, 0)]))), WAYS["map"]).sink(flux.sinks.Null())
    assert "until the end" not in flow.explain()


@pytest.mark.parametrize(
    ("column", "says"),
    [
        ("when", r"map\(same\): event_time names a column of its output, 'when'; it emits k, ts, n"),
        ("x", r"map\(same\): event_time='x' is double; expected timestamps"),
    ],
)
def test_an_event_time_that_cannot_be_is_a_plan_error(column: str, says: str) -> None:
    flow = flux.Dataflow("wrong")
    rows = source_of(flow, flux.sources.Table(rows_of([(0, 0)])))
    output = COLUMNS | ({"x": "float64"} if column == "x" else {})
    with pytest.raises(flux.PlanError, match=says):
        rows.map(same, output, event_time=column)

    class Wrong(Passing):
        pass

    Wrong.output, Wrong.event_time = output, column
    with pytest.raises(flux.PlanError, match=says.replace(r"map\(same\)", "Wrong")):
        rows.exchange("n").apply(Wrong)


# Real runs.


def test_a_run_with_a_source_that_need_not_end_warns_of_what_is_kept(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "flux")
    whole = rows_of([(i % 5, 0) for i in range(100)])
    for source in (flux.sources.Table(whole), flux.sources.Table(iter(whole.to_batches()))):
        flow = flux.Dataflow("warned")
        joined_by(flow, source_of(flow, source), lambda rows: rows.map(same, COLUMNS)).sink(flux.sinks.Null())
        flow.run(sites=2)
    [warning] = [text for text in caplog.messages if "for ever" in text]
    assert warning == (
        "dataflow 'warned', stage 1, Join: it takes rows of a source that need not end, Table, and keeps them for "
        "ever: the plan does not know that 'ts' is event time: map(same) makes it: give that event_time='ts', if "
        "watermarks hold for what it makes"
    )


def gated(rows: pa.Table, gate: Path) -> Iterator[pa.RecordBatch]:
    """The second half waits for the file `gate`."""
    half = rows.num_rows // 2
    yield from rows.slice(0, half).to_batches(max_chunksize=70)
    while not gate.exists():
        time.sleep(0.01)
    yield from rows.slice(half).to_batches(max_chunksize=70)


def earlier(row: Any, by_ms: int) -> dict[str, Any]:
    return {**same(row), "ts": row.ts - by_ms * (row.n % 2)}


@pytest.mark.parametrize("way", ["map", "flat_map", "Distinct"])
def test_no_pair_is_missing_though_a_site_dies(way: str, tmp_path: Path) -> None:
    draw = np.random.default_rng(5)
    moments = list(
        zip(draw.integers(0, 4, 1_500).tolist(), draw.integers(0, LATENESS_MS + 1, 1_500).tolist(), strict=True)
    )
    rows, gate, flow = rows_of(moments), tmp_path / "gate", flux.Dataflow("killed")
    source = flux.sources.Table(gated(rows, gate), batch_rows=100)
    joined_by(flow, source_of(flow, source), WAYS[way]).sink(flux.sinks.Collect())

    with flow.start(sites=3, standby=1) as run:
        run.wait_for_output(200)
        run.kill("site-1")
        gate.touch()
        report = run.wait(timeout=120)

    found = sorted((row["n"], row["n_right"]) for row in report.table.to_pylist())
    assert found == pairs_in_duckdb(rows)
    assert report.late == 0 and [failure.site for failure in report.failures] == ["site-1"]


def test_rows_that_break_what_was_promised_of_them_are_counted_though_a_site_dies(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "flux")
    rows, gate, flow = rows_of([(i % 4, 0) for i in range(1_500)]), tmp_path / "gate", flux.Dataflow("broken")
    stream = source_of(flow, flux.sources.Table(gated(rows, gate), batch_rows=100))
    right = stream.map(partial(earlier, by_ms=50), COLUMNS, event_time="ts")
    stream.join(right, on="k", within={"ts": BOUND_MS}, partitions=3).sink(flux.sinks.Collect())

    with flow.start(sites=3, standby=1) as run:
        run.wait_for_output(1)
        run.kill("site-2")
        gate.touch()
        report = run.wait(timeout=120)

    # A mark stands behind each row that brings a further step.
    ts, said = rows["ts"].to_numpy(), rows["ts"].to_numpy() - 50 * (rows["n"].to_numpy() % 2)
    reached = np.maximum.accumulate((ts - LATENESS_MS) // EVERY_MS * EVERY_MS)
    assert report.late == int((said[1:] < reached[:-1]).sum()) > 700
    text = "rows arrive at step 'Join' when the watermark has passed their time: the report counts them"
    assert [message for message in caplog.messages if text in message]
