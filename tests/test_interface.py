"""The contract with users, line by line: what the design fixes under "What a user writes".

One test per clause, in the order of that section. A name is looked up inside the test that needs it, so that
one that is missing fails its own test alone. What is still to be built stands as a strict xfail with the
number of its issue: the body says how it will be used, and the day it works the mark has to go.
(One file of more than 500 lines, because the section it mirrors is one page.)
"""

# ruff: noqa: RUF012 - operators declare `output` as users do, without ClassVar.

from __future__ import annotations

import ast
import functools
import inspect
import json
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import trio

import flux
from experiments.dmz import Sessions
from tests.runtime.waiting import wait_until

ROOT = Path(__file__).parent.parent
DEADLINE_S = 60
pytestmark = pytest.mark.usefixtures("deadline")
ROWS = [{"k": index * 7919 % 13, "v": index} for index in range(300)]

# `later` is the same module, for names mypy cannot know yet.
later: Any = flux


def to_be_built(issue: int, what: str, *raises: type[BaseException]) -> pytest.MarkDecorator:
    return pytest.mark.xfail(strict=True, raises=raises or AttributeError, reason=f"issue {issue}: {what}")


# Small flows. Operators are made inside functions: any class, lambda or closure works in a local run.


def counting() -> type[Any]:
    class Counts(flux.KeyedOperator):
        output = {"k": "int64", "n": "int64"}

        def on_tuple(self, key: Any, row: Any, state: Any) -> Any:
            seen = (state or 0) + 1
            return seen, [{"k": key[0], "n": seen}]

    return Counts


def counted(rows: list[dict[str, int]] = ROWS) -> list[dict[str, int]]:
    """What `counting` must give: the same in a plain loop."""
    seen: Counter[int] = Counter()
    result = []
    for row in rows:
        seen[row["k"]] += 1
        result.append({"k": row["k"], "n": seen[row["k"]]})
    return result


def keyed(on_tuple: Callable[[Any, Any, Any], Any], **attributes: Any) -> type[Any]:
    return type(
        "Keyed",
        (flux.KeyedOperator,),
        {"on_tuple": lambda self, *a: on_tuple(*a), "output": None, **attributes},
    )


def flow_of(operator: Any, *, rate: float | None = None, sink: Any = None, **parameters: Any) -> Any:
    flow = flux.Dataflow("counts")
    events = flow.source(flux.sources.Table(ROWS, rate=rate))
    stream = events.exchange("k", partitions=8).apply(operator, **parameters)
    stream.sink(flux.sinks.Collect() if sink is None else sink)
    return flow


def output_of(operator: Any, **parameters: Any) -> list[Any]:
    rows: list[Any] = flow_of(operator, **parameters).run(sites=2).table.to_pylist()
    return rows


def a_stream() -> Any:
    return a_flow()[1]


def a_flow() -> tuple[Any, Any]:
    """A flow and its events."""
    flow = flux.Dataflow("some")
    return flow, flow.source(flux.sources.Table(ROWS))


def parameters_of(function: Any) -> dict[str, inspect.Parameter]:
    return {name: p for name, p in inspect.signature(function).parameters.items() if name != "self"}


# import flux


ERRORS = ["PlanError", "OperatorError", "DataLost", "StateError", "AuthError", "NoSites", "SourceEnded"]
NAMES = [
    *("Dataflow", "Operator", "KeyedOperator", "PooledOperator", "Batch"),
    *("sources.Table", "spark.Stream", "sinks.Collect", "sinks.Null"),
    *("sources.Generator", "sources.Files", "sources.Lines"),
    *("sinks.Parquet", "sinks.Jsonl", "sinks.Callback"),
    *("operators.SessionWindow", "operators.CountWindow", "FluxError", *ERRORS),
]


@functools.cache
def reached_by_import_flux() -> list[str]:
    # In a process of its own, because what another test imported would hide a name that is missing.
    look = "import flux, operator, sys\nfor name in sys.argv[1:]:\n    try: operator.attrgetter(name)(flux)\n"
    look += "    except AttributeError: pass\n    else: print(name)"
    command = [sys.executable, "-c", look, *NAMES]
    return subprocess.run(command, check=True, cwd=ROOT, stdout=subprocess.PIPE, text=True).stdout.split()


@pytest.mark.parametrize("name", NAMES)
def test_import_flux_is_enough_to_reach(name: str) -> None:
    assert name in reached_by_import_flux()


def packets(count: int) -> pa.Table:
    """Each pair of addresses starts and ends a session in turn; a session of pair p belongs to app p % 3."""
    rows, turn = [], Counter[int]()
    for ts in range(count):
        pair = ts * 31 % 11
        turn[pair] += 1
        data = (b"S" + bytes([pair % 3]) if turn[pair] % 2 else b"E\0").ljust(32, b".")
        rows.append({"src": pair % 5, "dst": pair, "data": data, "ts": ts})
    columns = {"src": pa.int32(), "dst": pa.int32(), "data": pa.binary(32), "ts": pa.int64()}
    return pa.Table.from_pylist(rows, pa.schema(list(columns.items())))


def window_stats(table: pa.Table) -> list[dict[str, Any]]:
    """What the flow of the design's example must give for these packets, in a plain loop."""
    opened: dict[Any, Any] = {}
    lasted: dict[Any, list[int]] = {}
    result = []
    for row in table.to_pylist():
        pair = row["src"], row["dst"]
        if row["data"][:1] == b"S":
            opened[pair] = row
        elif (start := opened.pop(pair, None)) is not None:
            app = start["data"][1], row["src"]
            last = lasted[app] = [*lasted.get(app, [])[-1:], row["ts"] - start["ts"]]
            if len(last) == 2:
                result.append({"app": app[0], "src": app[1], "max_dur": max(last), "avg_dur": sum(last) / 2})
    return result


@functools.cache
def example() -> tuple[Any, pa.Table]:
    """The example that opens the section, run once for all the tests that look at its report."""
    batches = packets(400)
    flow = flux.Dataflow("dmz")
    events = flow.source(flux.sources.Table(batches))
    stats = (
        events.exchange("src", "dst", partitions=32)
        .apply(Sessions)
        .exchange("app", "src", partitions=32)
        .apply(flux.operators.CountWindow, history=2, slide=1)
    )
    stats.sink(flux.sinks.Collect())
    return flow.run(sites=4, standby=1), batches


def test_the_example_gives_what_a_plain_loop_gives() -> None:
    report, batches = example()
    assert report.table.to_pylist() == window_stats(batches)


def test_start_holds_the_run_open_and_a_killed_site_changes_no_output() -> None:
    with flow_of(counting(), rate=300).start(sites=3) as run:
        run.wait_for_output(30)
        run.kill("site-2")
        report = run.wait()
    assert report.table.to_pylist() == counted()
    [failure] = report.failures
    assert failure.site == "site-2"
    assert failure.detected_after_s >= 0
    assert failure.when_s > 0


def test_open_cluster_is_the_same_for_trio_with_methods_awaited() -> None:
    async def main() -> Any:
        async with later.open_cluster(flow_of(counting()), sites=2) as run:
            await run.wait_for_output(10)
            return await run.wait()

    assert trio.run(main).table.to_pylist() == counted()


# Streams.


def test_exchange_takes_columns_and_these_settings() -> None:
    taken = parameters_of(a_stream().exchange)
    assert taken["columns"].kind is inspect.Parameter.VAR_POSITIONAL
    assert {"partitions", "availability", "order", "by", "balance"} <= set(taken)
    assert (taken["order"].default, taken["by"].default, taken["balance"].default) == ("sn", "hash", True)


@pytest.mark.parametrize("where", ["run", "start"])
def test_sites_standby_and_availability_are_said_once_for_the_run(where: str) -> None:
    function = getattr(flux.Dataflow, where)
    assert inspect.signature(function).bind("self", sites=4, standby=1, availability="none", balance="off")


def test_one_copy_gives_the_same_output_as_pairs() -> None:
    assert flow_of(counting()).run(sites=2, availability="none").table.to_pylist() == counted()


@pytest.mark.parametrize(
    ("columns", "settings", "says"),
    [
        (["nowhere"], {}, "nowhere"),
        (["k"], {"partitions": 0}, "partitions"),
        (["k"], {"availability": "triples"}, "triples"),
        (["k"], {"order": "random"}, "random"),
        (["k"], {"by": "taste"}, "taste"),
        (["k"], {"balance": "auto"}, "balance"),
    ],
)
def test_an_exchange_that_cannot_be_is_a_plan_error_that_names_it(
    columns: list[str], settings: dict[str, Any], says: str
) -> None:
    def run() -> None:
        flow, events = a_flow()
        events.exchange(*columns, **settings).apply(counting()).sink(flux.sinks.Null())
        flow.run(sites=2)

    with pytest.raises(flux.PlanError, match=says):
        run()


@pytest.mark.parametrize("by", ["range", "any"])
def test_rows_are_routed_by_range_or_to_whoever_has_room(by: str) -> None:
    class Same(flux.Operator):
        output = {"v": "int64"}

        def process(self, batch: Any) -> Any:
            return batch.emit({"v": batch["v"]})

    flow, events = a_flow()
    events.exchange("k", partitions=8, by=by).apply(Same).sink(flux.sinks.Collect())
    assert [row["v"] for row in flow.run(sites=2).table.to_pylist()] == list(range(300))


@pytest.mark.parametrize(
    ("step", "argument", "first"),
    [
        ("map", lambda row: {"w": 1}, [{"w": 1}, {"w": 1}]),
        ("filter", lambda row: True, ROWS[:2]),
        ("flat_map", lambda row: [{"w": 1}, {"w": 2}], [{"w": 1}, {"w": 2}]),
        ("select", "v", [{"v": 0}, {"v": 1}]),
    ],
)
def test_steps_without_repartitioning_join_their_segment(step: str, argument: Any, first: list[Any]) -> None:
    flow, events = a_flow()
    getattr(events, step)(argument).sink(flux.sinks.Collect())
    assert flow.run(sites=2).table.to_pylist()[:2] == first


def test_streams_are_joined_on_columns_within_a_bound() -> None:
    assert {"on", "within"} <= set(parameters_of(a_stream().join))


def test_a_stream_may_feed_several_operators_and_streams_may_be_united() -> None:
    flow, events = a_flow()
    one, two = (events.exchange("k", partitions=4).apply(counting()) for _ in range(2))
    one.union(two).sink(flux.sinks.Collect())
    united = flow.run(sites=2).table.to_pylist()
    assert Counter(map(str, united)) == Counter(map(str, counted() * 2))


def test_a_sink_is_ordered_unless_told() -> None:
    assert parameters_of(a_stream().sink)["order"].default == "sn"


def test_a_sink_may_take_rows_first_come_first_served() -> None:
    flow, events = a_flow()
    events.exchange("k", partitions=8, order="any").apply(counting()).sink(flux.sinks.Collect(), order="any")
    assert Counter(map(str, flow.run(sites=2).table.to_pylist())) == Counter(map(str, counted()))


def test_a_flow_explains_its_plan() -> None:
    assert "Counts" in flow_of(counting()).explain()


# Sources and sinks.


def test_a_source_may_tell_event_time_and_how_late_rows_may_come() -> None:
    taken = parameters_of(flux.Dataflow.source)
    assert taken["event_time"].default is None and taken["lateness_ms"].default == 0
    assert "watermark_every_ms" in taken
    assert flux.driver.report.Report(outputs=0).late == 0


def test_a_keyed_operator_may_set_timers() -> None:
    assert list(parameters_of(flux.KeyedOperator.on_timer)) == ["key", "time", "state"]
    assert list(parameters_of(flux.KeyedOperator.set_timer)) == ["time"]
    assert parameters_of(flux.KeyedOperator.cancel_timer)["time"].default is None


def test_table_takes_data_rate_and_batch_rows() -> None:
    taken = parameters_of(flux.sources.Table)
    assert {name: p.default for name, p in taken.items() if name != "data"} == {
        "rate": None,
        "batch_rows": None,
    }


@pytest.mark.parametrize("form", ["table", "batch", "tables", "generator", "dicts"])
def test_table_takes_data_in_every_form(form: str) -> None:
    table = pa.Table.from_pylist(ROWS)
    data: Any = {
        "table": table,
        "batch": table.to_batches()[0],
        "tables": [table.slice(0, 100), table.slice(100)],
        "generator": (table.slice(start, 100) for start in range(0, 300, 100)),
        "dicts": ROWS,
    }[form]
    source = flux.sources.Table(data)
    assert source.schema.names == ["k", "v"]
    flow = flux.Dataflow("forms")
    flow.source(source).exchange("k", partitions=8).apply(counting()).sink(flux.sinks.Collect())
    assert flow.run(sites=2).table.to_pylist() == counted()


def test_batch_boundaries_do_not_show_in_the_output() -> None:
    flow = flux.Dataflow("cut")
    events = flow.source(flux.sources.Table(ROWS, batch_rows=7))
    events.exchange("k", partitions=8).apply(counting()).sink(flux.sinks.Collect())
    assert flow.run(sites=2).table.to_pylist() == counted()


@pytest.mark.parametrize(
    ("source", "taken"),
    [
        ("Generator", {"fn", "rows", "rate"}),
        ("Files", {"path", "format", "follow"}),
        ("Lines", {"host", "port"}),
    ],
)
def test_other_sources_take(source: str, taken: set[str]) -> None:
    assert taken <= set(parameters_of(getattr(flux.sources, source)))


def test_files_are_read_as_they_were_written(tmp_path: Path) -> None:
    pq.write_table(pa.Table.from_pylist(ROWS), tmp_path / "rows.parquet")
    flow = flux.Dataflow("files")
    events: Any = flow.source(flux.sources.Files(tmp_path / "rows.parquet", format="parquet"))
    events.exchange("k", partitions=8).apply(counting()).sink(flux.sinks.Collect())
    assert flow.run(sites=2).table.to_pylist() == counted()


def test_a_spark_stream_is_a_source() -> None:
    assert issubclass(flux.spark.Stream, flux.sources.Source)
    assert next(iter(parameters_of(flux.spark.Stream))) == "df"


def test_spark_also_runs_sites() -> None:
    assert list(parameters_of(flux.spark.Cluster))[:3] == ["spark", "sites", "standby"]


@pytest.mark.parametrize("name", ["stateful_processor", "pandas_with_state"])
def test_spark_also_runs_its_own_stateful_operators(name: str) -> None:
    assert parameters_of(getattr(flux.spark, name))


def test_spark_reads_an_egress_as_a_streaming_source() -> None:
    from pyspark.sql.datasource import DataSource

    from flux.spark.source.writer import FluxSink as FluxDataSource

    readers = ("streamReader", "simpleStreamReader")
    assert any(getattr(FluxDataSource, name) is not getattr(DataSource, name) for name in readers)


def test_null_throws_rows_away_but_counts_them() -> None:
    report = flow_of(counting(), sink=flux.sinks.Null()).run(sites=2)
    assert report.outputs == len(ROWS)


@pytest.mark.parametrize("sink", ["Parquet", "Jsonl"])
def test_sinks_on_disk_hold_the_output(sink: str, tmp_path: Path) -> None:
    path = tmp_path / "out"
    flow_of(counting(), sink=getattr(flux.sinks, sink)(path)).run(sites=2)
    if sink == "Parquet":
        rows = pq.read_table(path).to_pylist()
    else:
        rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert rows == counted()


def test_a_callback_is_a_sink() -> None:
    assert list(parameters_of(flux.sinks.Callback)) == ["fn"]


# Operators.


@pytest.mark.parametrize(
    ("form", "method", "takes"),
    [
        ("Operator", "open", ["context"]),
        ("Operator", "process", ["batch"]),
        ("Operator", "on_punctuation", ["p"]),
        ("Operator", "close", []),
        ("Operator", "get_state", []),
        ("Operator", "install_state", ["state"]),
        ("KeyedOperator", "on_tuple", ["key", "row", "state"]),
        ("PooledOperator", "process", ["batch"]),
        ("PooledOperator", "get_partition_state", ["pid"]),
        ("PooledOperator", "install_partition_state", ["pid", "state"]),
        ("PooledOperator", "drop_partition", ["pid"]),
        ("PooledOperator", "partition_info", []),
    ],
)
def test_an_operator_form_has(form: str, method: str, takes: list[str]) -> None:
    assert list(parameters_of(getattr(getattr(flux, form), method))) == takes


@pytest.mark.parametrize("form", ["dict", "schema"])
def test_output_is_declared_as_a_dict_or_a_schema(form: str) -> None:
    declared = {"n": "int32"}
    output: Any = declared if form == "dict" else pa.schema([("n", pa.int32())])
    operator = keyed(lambda key, row, state: (None, [{"n": row.v}]), output=output)
    assert flow_of(operator).run(sites=2).table.schema.field("n").type == pa.int32()


def test_output_not_declared_is_taken_from_the_first_rows() -> None:
    operator = keyed(lambda key, row, state: (None, [{"twice": row.v * 2}]))
    assert output_of(operator) == [{"twice": row["v"] * 2} for row in ROWS]


def test_output_that_changes_later_is_an_operator_error() -> None:
    operator = keyed(lambda key, row, state: (None, [{"x": row.v if row.v < 200 else "many"}]))
    with pytest.raises(flux.OperatorError):
        output_of(operator)


def test_output_must_be_declared_before_a_further_exchange() -> None:
    def run() -> None:
        flow, events = a_flow()
        undeclared = events.exchange("k", partitions=4).apply(keyed(lambda key, row, state: (None, None)))
        undeclared.exchange("k", partitions=4).apply(counting()).sink(flux.sinks.Null())
        flow.run(sites=2)

    with pytest.raises(flux.PlanError, match="output"):
        run()


def test_an_operator_is_made_without_arguments_and_opened_with_its_place() -> None:
    class Place(flux.Operator):
        output = {
            "k": "int64",
            "partition": "int64",
            "partitions": "int64",
            "shift": "int64",
            "opened": "int64",
        }

        def __init__(self) -> None:
            self.opened = 0

        def open(self, context: Any) -> None:
            self.context = context
            self.opened += 1

        def process(self, batch: Any) -> Any:
            place = (
                self.context.partition,
                self.context.partitions,
                self.context.parameters["shift"],
                self.opened,
            )
            names = ("partition", "partitions", "shift", "opened")
            filled = {name: [value] * len(batch) for name, value in zip(names, place, strict=True)}
            return batch.emit({"k": batch["k"]} | filled)

        def get_state(self) -> None:
            return None  # What it has is not state.

        def install_state(self, state: Any) -> None:
            assert state is None

    rows = output_of(Place, shift=3)
    assert [row["k"] for row in rows] == [row["k"] for row in ROWS]
    assert {(row["partitions"], row["shift"], row["opened"]) for row in rows} == {(8, 3, 1)}
    # Every key has one partition, and the keys are spread over more than one.
    places = {(row["k"], row["partition"]) for row in rows}
    assert len(places) == 13
    assert 1 < len({partition for _, partition in places}) <= 8


def test_the_end_of_the_stream_is_a_punctuation_that_may_emit_columns() -> None:
    class Totals(flux.Operator):
        output = {"total": "int64"}

        def open(self, context: Any) -> None:
            self.total = 0

        def process(self, batch: Any) -> None:
            self.total += int(batch["v"].sum())

        def on_punctuation(self, p: Any) -> Any:
            return {"total": [self.total]} if p.kind == "end" else None

        def get_state(self) -> int:
            return self.total

        def install_state(self, state: int) -> None:
            self.total = state

    rows = output_of(Totals)
    assert len(rows) == 8
    assert sum(row["total"] for row in rows) == sum(row["v"] for row in ROWS)


def test_state_moves_in_pieces_to_a_standby_between_init_trans_and_end_trans(tmp_path: Path) -> None:
    class Pieces(flux.Operator):
        output = {"k": "int64", "n": "int64"}

        def open(self, context: Any) -> None:
            self.seen: Counter[int] = Counter()

        def process(self, batch: Any) -> Any:
            counts = []
            for k in batch["k"].tolist():
                self.seen[k] += 1
                counts.append(self.seen[k])
            return batch.emit({"k": batch["k"], "n": counts})

        def get_state(self) -> Iterator[list[int]]:
            for k, n in self.seen.items():
                yield [k, n]

        def install_state(self, state: Any) -> None:
            k, n = state
            self.seen[k] = n

        def init_trans(self) -> None:
            (tmp_path / "init_trans").touch()

        def end_trans(self) -> None:
            (tmp_path / "end_trans").touch()

    def rows_that_wait_for_the_move() -> Iterator[pa.Table]:
        yield pa.Table.from_pylist(ROWS[:200])
        while not (tmp_path / "moved").exists():
            time.sleep(0.01)
        yield pa.Table.from_pylist(ROWS[200:])

    flow = flux.Dataflow("counts")
    counts = flow.source(flux.sources.Table(rows_that_wait_for_the_move())).exchange("k", partitions=8).apply(Pieces)
    counts.sink(flux.sinks.Collect())
    with flow.start(sites=2, standby=1) as run:
        run.wait_for_output(30)
        run.kill("site-1")
        wait_until(lambda: len(run.status().failures) == 1 and run.status().whole, "site-1 was not replaced")
        (tmp_path / "moved").touch()
        report = run.wait(timeout=60)
    assert report.table.to_pylist() == counted()
    assert report.failures[0].recovered_after_s is not None
    assert report.failures[0].bytes_moved > 0
    assert {path.name for path in tmp_path.iterdir()} == {"init_trans", "end_trans", "moved"}


def test_a_key_is_a_tuple_also_for_one_column_and_its_state_is_none_at_first() -> None:
    operator = keyed(lambda key, row, state: (1, [{"key": str(key), "new": state is None}]))
    rows = output_of(operator)
    assert {row["key"] for row in rows} == {f"({k},)" for k in range(13)}
    assert sum(row["new"] for row in rows) == 13


def test_returning_none_as_state_forgets_the_key() -> None:
    # Counts to two and forgets: a third row of a key is its first again.
    operator = keyed(
        lambda key, row, state: (1 if state is None else None, [{"n": 1 if state is None else 2}]),
        output={"n": "int64"},
    )
    assert [row["n"] for row in output_of(operator)] == [(row["n"] - 1) % 2 + 1 for row in counted()]


def test_a_keyed_operator_may_emit_nothing() -> None:
    operator = keyed(lambda key, row, state: (None, [{"v": row.v}] if row.v % 100 == 0 else None))
    assert output_of(operator) == [{"v": 0}, {"v": 100}, {"v": 200}]


def test_a_keyed_operator_needs_a_key() -> None:
    def run() -> None:
        flow, events = a_flow()
        events.exchange(by="any", partitions=4).apply(counting()).sink(flux.sinks.Null())
        flow.run(sites=2)

    with pytest.raises(flux.PlanError):
        run()


def test_a_pooled_operator_is_told_the_partition_of_each_row() -> None:
    class Where(flux.PooledOperator):
        output = {"k": "int64", "partition": "int64"}

        def process(self, batch: Any) -> Any:
            return batch.emit({"k": batch["k"], "partition": batch.partition.astype(np.int64)})

        def get_partition_state(self, pid: int) -> Any:
            return None

        def install_partition_state(self, pid: int, state: Any) -> None: ...

        def drop_partition(self, pid: int) -> None: ...

    rows = output_of(Where)
    assert [row["k"] for row in rows] == [row["k"] for row in ROWS]
    assert len({(row["k"], row["partition"]) for row in rows}) == 13


def a_batch(output: Any = None) -> Any:
    arrow = pa.record_batch({"src": [10, 20, 30], "app": ["web", None, "mail"], "n": [1, None, 3]})
    sn, partition = np.array([5, 7, 9], np.int64), np.zeros(3, np.uint16)
    return flux.Batch(arrow, sn, None, partition, output=output, step="Sessions")


def test_a_column_is_a_read_only_array() -> None:
    batch = a_batch()
    assert batch["src"].tolist() == [10, 20, 30]
    with pytest.raises(ValueError, match="read-only"):
        batch["src"][0] = 1


def test_strings_are_objects_and_nulls_are_masked() -> None:
    batch = a_batch()
    assert batch["app"].dtype == object
    assert np.ma.getmaskarray(batch["n"]).tolist() == [False, True, False]


def test_arrow_has_no_hidden_columns() -> None:
    assert a_batch().arrow.schema.names == ["src", "app", "n"]


def test_rows_are_named_tuples_of_python_values() -> None:
    first, second, _ = a_batch().rows()
    assert (first.src, first.app, type(first.n)) == (10, "web", int)
    assert second.app is None
    assert second.n is None


def test_the_length_of_a_batch_is_its_rows() -> None:
    assert len(a_batch()) == 3


@pytest.mark.parametrize("make", [np.array, pa.array, list])
def test_emit_takes_numpy_arrow_or_list_and_casts_to_the_declared_schema(make: Any) -> None:
    emitted = a_batch(pa.schema([("dur", pa.int32())])).emit({"dur": make([1, 2, 3])})
    assert emitted.arrow.schema.field("dur").type == pa.int32()
    assert emitted.arrow.column(0).to_pylist() == [1, 2, 3]


@pytest.mark.parametrize("values", [[2**40, 0, 0], [1.5, 0, 0], ["x", "y", "z"]])
def test_a_cast_that_is_not_safe_is_an_operator_error(values: list[Any]) -> None:
    with pytest.raises(flux.OperatorError, match="dur"):
        a_batch(pa.schema([("dur", pa.int32())])).emit({"dur": values})


def test_the_sequence_number_comes_from_the_origin() -> None:
    assert a_batch().emit({"x": [1, 2, 3]}, origin=[0, 2, 2]).sn.tolist() == [5, 9, 9]
    assert a_batch().emit({"x": [1, 2, 3]}).sn.tolist() == [5, 7, 9]


@pytest.mark.parametrize("origin", [[1, 0], [0, 3], [-1, 0], [0], None])
def test_an_origin_that_cannot_be_is_an_operator_error(origin: list[int] | None) -> None:
    with pytest.raises(flux.OperatorError):
        a_batch().emit({"x": [1, 2]}, origin=origin)


def test_columns_of_different_length_are_an_operator_error() -> None:
    with pytest.raises(flux.OperatorError):
        a_batch().emit({"x": [1, 2, 3], "y": [1]})


def test_emitting_nothing_is_none() -> None:
    assert a_batch().emit({"x": []}, origin=[]) is None


def test_wrap_makes_an_operator_of_a_class_that_knows_nothing_of_flux() -> None:
    class Existing:
        def __init__(self) -> None:
            self.seen: dict[int, int] = {}

        def update(self, row: dict[str, int]) -> dict[str, int]:
            self.seen[row["k"]] = self.seen.get(row["k"], 0) + 1
            return {"k": row["k"], "n": self.seen[row["k"]]}

        def getState(self) -> dict[int, int]:
            return self.seen

        def installState(self, state: dict[int, int]) -> None:
            self.seen.update(state)

    assert output_of(flux.wrap(Existing, process="update")) == counted()


def test_wrap_bytewax_runs_a_stateful_logic_unchanged() -> None:
    class Logic:
        def __init__(self, snapshot: int | None) -> None:
            self.seen = snapshot or 0

        def on_item(self, value: Any) -> tuple[list[dict[str, int]], bool]:
            self.seen += 1
            return [{"n": self.seen}], False

        def snapshot(self) -> int:
            return self.seen

    assert [row["n"] for row in output_of(flux.wrap_bytewax(Logic))] == [row["n"] for row in counted()]


LIBRARY = ["CountWindow", "TimeWindow", "SessionWindow", "GroupBy", "Join", "TopK", "Distinct"]


@pytest.mark.parametrize("name", LIBRARY)
def test_operators_of_the_library_are_pooled(name: str) -> None:
    assert issubclass(getattr(flux.operators, name), flux.PooledOperator)


def test_the_packet_sessions_keep_their_old_name_for_one_release_with_a_warning() -> None:
    with pytest.warns(DeprecationWarning, match=r"operators\.Sessions is called experiments\.dmz\.Sessions now"):
        old = flux.operators.Sessions
    flow = flux.Dataflow("old name")
    flow.source(flux.sources.Table(packets(60))).exchange("src", "dst").apply(old).sink(flux.sinks.Collect())
    flow.source(flux.sources.Table(packets(60))).exchange("src", "dst").apply(Sessions).sink(flux.sinks.Collect())
    by_old, by_new = flow.run(sites=2).tables
    assert by_old.equals(by_new) and by_old.num_rows
    assert "Sessions" not in flux.operators.__all__


def test_an_unknown_operator_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match=r"module 'flux\.operators' has no attribute 'Session'"):
        _ = flux.operators.Session


def test_nothing_is_unpickled() -> None:
    forbidden = {"pickle", "cloudpickle", "dill", "marshal", "shelve"}
    for path in [*ROOT.glob("flux/**/*.py"), *ROOT.glob("protocols/*.py")]:
        for node in ast.walk(ast.parse(path.read_text())):
            names: list[str] = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                names = [node.module or ""]
            assert forbidden.isdisjoint(name.split(".")[0] for name in names), f"{path} imports {names}"


# The run.


def test_wait_for_output_waits_sixty_seconds_and_tells_the_end_from_a_timeout() -> None:
    with flow_of(counting(), rate=300).start(sites=2) as run:
        taken = parameters_of(run.wait_for_output)
        assert list(taken) == ["n", "timeout"]
        assert taken["timeout"].default == 60
        with pytest.raises(TimeoutError):
            run.wait_for_output(300, timeout=0.05)
        with pytest.raises(flux.SourceEnded):
            run.wait_for_output(len(ROWS) + 1)


def test_kill_refuses_a_name_that_is_unknown_or_dead() -> None:
    with flow_of(counting(), rate=300).start(sites=2, standby=1) as run:
        with pytest.raises(ValueError, match="site-9"):
            run.kill("site-9")
        # Standbys continue the numbering.
        run.kill("site-3")
        with pytest.raises(ValueError, match="site-3"):
            run.kill("site-3")
        assert run.wait().table.to_pylist() == counted()


def test_a_run_can_be_stopped_before_its_source_has_ended() -> None:
    with flow_of(counting(), rate=1).start(sites=2) as run:
        run.stop()


@pytest.mark.parametrize("name", ["ingress", "egress", "controller"])
def test_a_killed_process_that_is_no_site_is_restarted_by_the_run(name: str) -> None:
    with flow_of(counting(), rate=150).start(sites=2) as run:
        run.wait_for_output(30)
        run.kill(name)
        assert run.wait().table.to_pylist() == counted()


def test_add_site_returns_the_new_name_and_drain_empties_a_site() -> None:
    with flow_of(counting(), rate=150).start(sites=2) as run:
        assert run.add_site() == "site-3"
        run.drain("site-1", timeout=10)
        with pytest.raises(ValueError, match="site-1"):
            run.kill("site-1")
        assert run.wait().table.to_pylist() == counted()


def test_status_is_a_snapshot() -> None:
    with flow_of(counting(), rate=150).start(sites=2) as run:
        text = json.dumps(run.status())
        assert "site-1" in text
        assert "site-2" in text


# The report.


def test_a_report_counts_and_holds_the_output_without_hidden_columns() -> None:
    report, batches = example()
    assert type(report.outputs) is int
    assert report.outputs == len(window_stats(batches))
    assert isinstance(report.table, pa.Table)
    assert report.table.schema.names == ["app", "src", "max_dur", "avg_dur"]


def test_a_report_lists_failures_moves_and_intervals() -> None:
    report, _ = example()
    assert report.failures == []
    assert report.moves == []
    assert report.timeline
    names = ("t_s", "input_rate", "output_rate", "latency_p50_ms", "latency_p99_ms", "events")
    assert all(hasattr(interval, name) for interval in report.timeline for name in names)


def test_a_failure_says_what_it_cost() -> None:
    from flux.driver.report import Failure

    names = ["site", "when_s", "detected_after_s", "output_gap_s", "recovered_after_s", "bytes_moved"]
    assert list(parameters_of(Failure)) == names


def test_a_report_is_a_document_and_a_picture(tmp_path: Path) -> None:
    report, _ = example()
    assert json.loads(json.dumps(report.to_dict()))["outputs"] == report.outputs
    report.plot(tmp_path / "run.png")
    assert (tmp_path / "run.png").stat().st_size > 10_000


# Errors.


@pytest.mark.parametrize("name", ERRORS)
def test_every_error_is_a_flux_error(name: str) -> None:
    assert issubclass(getattr(flux, name), flux.FluxError)


def test_an_operator_error_says_step_partition_and_row() -> None:
    error = flux.OperatorError("too large", step="Sums", partition=4, row=17)
    assert (error.step, error.partition, error.row) == ("Sums", 4, 17)
    assert str(error) == "step 'Sums', partition 4, row 17: too large"


def test_data_lost_says_partitions_and_what_is_safe() -> None:
    error = flux.DataLost(partitions=[("Sums", 4)], safe_upto=99)
    assert (error.partitions, error.safe_upto) == ([("Sums", 4)], 99)
    assert "Sums/4" in str(error)
    assert "99" in str(error)


def test_both_copies_lost_ends_the_run() -> None:
    def run_and_kill_all() -> None:
        with flow_of(counting(), rate=100).start(sites=2) as run:
            run.wait_for_output(20)
            run.kill("site-1")
            run.kill("site-2")
            run.wait()

    with pytest.raises((flux.DataLost, flux.NoSites)):
        run_and_kill_all()


def raising(at: int) -> type[Any]:
    def on_tuple(key: Any, row: Any, state: Any) -> Any:
        if row.v == at:
            raise ZeroDivisionError("the operator's own words")
        return None, [{"v": row.v}]

    return keyed(on_tuple, output={"v": "int64"})


def test_an_operator_that_raises_stops_the_run_with_the_row_and_its_place() -> None:
    with pytest.raises(flux.OperatorError, match="the operator's own words") as caught:
        output_of(raising(at=150))
    assert caught.value.step
    assert caught.value.partition is not None
    assert caught.value.row is not None


def test_on_error_skip_counts_instead() -> None:
    report = flow_of(raising(at=150)).run(sites=2, on_error="skip")
    assert [row["v"] for row in report.table.to_pylist()] == [v for v in range(300) if v != 150]
    assert report.skipped == 1
    [row] = report.skipped_rows
    assert row.row == 151
    assert "'v': 150" in row.values
    assert "the operator's own words" in row.error


def test_a_row_that_kills_both_copies_is_named_before_a_third_is_spent() -> None:
    def on_tuple(key: Any, row: Any, state: Any) -> Any:
        if row.v == 150:
            signal.raise_signal(signal.SIGKILL)
        return None, None

    flow = flow_of(keyed(on_tuple, output={"v": "int64"}))
    with pytest.raises(flux.OperatorError):
        flow.run(sites=4)


# The command line.


def flux_command(*arguments: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    command = [str(Path(sys.executable).parent / "flux"), *arguments]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=DEADLINE_S, check=False)


@functools.cache
def help_of(*arguments: str) -> str:
    done = flux_command(*arguments, "--help")
    assert done.returncode == 0, done.stderr
    return done.stdout


def offers(text: str, command: str) -> bool:
    return re.search(rf"(?m)^\s+{command}\b", text) is not None


def test_help_offers_run() -> None:
    assert offers(help_of(), "run")
    assert all(option in help_of("run") for option in ("--sites", "--standby", "--balance", "--json"))


def test_run_prints_one_json_document(tmp_path: Path) -> None:
    (tmp_path / "little.py").write_text(
        "import flux\n"
        "class Same(flux.Operator):\n"
        "    output = {'v': 'int64'}\n"
        "    def process(self, batch):\n"
        "        return batch.emit({'v': batch['v']})\n"
        "flow = flux.Dataflow('little')\n"
        "events = flow.source(flux.sources.Table([{'v': v} for v in range(100)]))\n"
        "events.exchange('v', partitions=4).apply(Same).sink(flux.sinks.Collect())\n"
    )
    done = flux_command("run", "little:flow", "--sites", "2", "--standby", "1", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["outputs"] == 100


def test_run_names_a_flow_it_cannot_find(tmp_path: Path) -> None:
    done = flux_command("run", "nowhere_at_all:flow", cwd=tmp_path)
    assert done.returncode != 0
    assert "nowhere_at_all" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("command", ["controller", "site", "status", "top", "kill", "drain"])
def test_help_offers_commands_for_a_cluster(command: str) -> None:
    assert offers(help_of(), command)


@pytest.mark.parametrize("command", ["check", "show", "replay", "mutate"])
def test_help_offers_spec(command: str) -> None:
    assert offers(help_of("spec"), command)


def test_spec_show_prints_a_machine() -> None:
    done = flux_command("spec", "show", "fh_prod")
    assert done.returncode == 0, done.stderr
    assert "3.13" in done.stdout


def test_help_offers_experiment() -> None:
    assert offers(help_of(), "experiment")


# Partitioning.


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (pa.array([7, -7], pa.int8()), pa.array([7, -7], pa.int64())),
        (pa.array([7], pa.uint64()), pa.array([7], pa.int16())),
        (pa.array([7.0, -3.0]), pa.array([7, -3])),
        (pa.array([-0.0]), pa.array([0.0])),
        (pa.array([0.5], pa.float32()), pa.array([0.5], pa.float64())),
        (pa.array(np.array([0x7FF8000000000001], np.uint64).view(np.float64)), pa.array([float("nan")])),
        (pa.array(["é", "b"]), pa.array(["é", "b"], pa.large_string())),
        (pa.array(["é", "b"]), pa.array(["é", "b"]).dictionary_encode()),
        (pa.array([b"ab"]), pa.array([b"ab"], pa.binary(2))),
        (pa.array([None], pa.int32()), pa.array([None], pa.string())),
        (pa.array([1], pa.timestamp("s")), pa.array([1000], pa.timestamp("ms"))),
    ],
)
def test_values_that_mean_the_same_have_the_same_partition(one: Any, other: Any) -> None:
    from flux.types.hashing import partition_of

    assert partition_of([one], 65_536).tolist() == partition_of([other], 65_536).tolist()
    beside = pa.array(["x"] * len(one))
    assert partition_of([one, beside], 65_536).tolist() == partition_of([other, beside], 65_536).tolist()


def test_the_partition_of_an_integer_is_that_of_the_published_vectors() -> None:
    from flux.types.hashing import partition_of

    # splitmix64's own vectors: the first output for the seeds 0 and 1234567.
    assert partition_of([pa.array([0])], 65_536).tolist() == [0xE220A8397B1DCDAF >> 48]
    assert partition_of([pa.array([1234567])], 65_536).tolist() == [6457827717110365317 >> 48]


# Testing one's own code.


def test_check_operator_finds_an_operator_that_depends_on_batching() -> None:
    import hypothesis.strategies as st

    from flux.testing import check_operator

    class Sizes(flux.Operator):
        output = {"size": "int64"}

        def process(self, batch: Any) -> Any:
            return batch.emit({"size": [len(batch)] * len(batch)})

    rows = st.lists(st.fixed_dictionaries({"k": st.integers(0, 9)}), min_size=1)
    check_operator(counting(), rows=rows)
    with pytest.raises(AssertionError):
        check_operator(Sizes, rows=rows)


def test_simulate_runs_a_flow_in_the_simulated_world() -> None:
    from flux.testing import simulate

    assert {"faults", "seeds"} <= set(parameters_of(simulate))
