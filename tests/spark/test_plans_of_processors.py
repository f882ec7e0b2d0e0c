"""What cannot be supported is refused when the plan is made, and an error in a processor says where it is."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date, time, timedelta
from time import time_ns
from typing import Any

import numpy as np
import pandas as pd
import processors as p
import pyarrow as pa
import pytest
from pyspark.sql import Row
from pyspark.sql.streaming import StatefulProcessor

import flux
from flux.hosting import host
from flux.model.batch import Batch
from flux.model.operator import OperatorStep, Punctuation, output_of
from flux.spark import MicroBatches, pandas_with_state, stateful_processor
from flux.spark.operators.handle import Declarations, Handle
from flux.spark.operators.key_timers import KeyTimers
from flux.types.errors import OperatorError, PlanError


class Doing(StatefulProcessor):  # type: ignore[misc]  # pyspark is untyped here
    """Does in `init` and for its rows what it is told to."""

    def __init__(self, in_init: Any = None, for_rows: Any = None) -> None:
        self.in_init, self.for_rows = in_init, for_rows

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.state = self.in_init(handle) if self.in_init else None

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        yield self.for_rows(self, key, rows)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"processor": dict}, "StatefulProcessor"),
        ({"processor": object()}, "StatefulProcessor"),
        ({"outputMode": "Complete"}, "'append' or 'update' in any case, got 'Complete'; Complete needs all keys"),
        ({"timeMode": "Wall"}, "timeMode is 'none' or 'processingtime' or 'eventtime'"),
        ({"timeMode": "EventTime"}, "event_time"),
        ({"event_time": "ts"}, "event_time"),
        ({"outputStructType": 5}, "StructType"),
        ({"outputStructType": "id strang"}, "'strang'"),
        ({"rows": "arrow"}, "'rows' or 'pandas'"),
        ({"eventTimeColumnName": "x"}, "the output has"),
        ({"initialState": 5}, "initialState"),
        ({"processor": Doing(lambda h: h.getValueState("s", "x int", 100))}, 'needs timeMode="ProcessingTime"'),
        (
            {"processor": Doing(lambda h: h.getValueState("s", "x int", -1)), "timeMode": "ProcessingTime"},
            "milliseconds above 0",
        ),
        ({"processor": Doing(lambda h: h.getMapState("s", "x array<int>", "y int"))}, "cannot be keys"),
        ({"processor": Doing(lambda h: [h.getValueState("s", "x int") for _ in "ab"])}, "twice"),
        ({"processor": Doing(lambda h: h.getMapState("s", "x string collate UTF8_LCASE", "y int"))}, "drop COLLATE"),
        ({"time_zone": "Middle/Earth"}, "Europe/Berlin"),
        ({"time_zone": 2}, "Europe/Berlin"),
        ({"processor": Doing(lambda h: h.registerTimer(5))}, "_processors.py:66) raised RuntimeError"),
        ({"processor": Doing(lambda h: 1 / 0)}, "_processors.py:67) raised ZeroDivisionError"),
    ],
)
def test_a_processor_that_cannot_run_is_refused(arguments: dict[str, Any], said: str) -> None:
    given = {"processor": p.RunningCount, "outputStructType": "id string", **arguments}
    with pytest.raises(PlanError, match="stateful_processor") as caught:
        stateful_processor(**given)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"func": 5}, "a function"),
        ({"outputMode": "complete"}, "'append' or 'update'"),
        ({"timeoutConf": "Soon"}, "ProcessingTimeTimeout"),
        ({"timeoutConf": "EventTimeTimeout"}, "event_time"),
        ({"stateStructType": "n"}, "stateStructType"),
        ({"time_zone": "Middle/Earth"}, "Europe/Berlin"),
    ],
)
def test_a_function_that_cannot_run_is_refused(arguments: dict[str, Any], said: str) -> None:
    given = {"func": p.absences, "outputStructType": "id string", "stateStructType": "n long", **arguments}
    with pytest.raises(PlanError, match="pandas_with_state") as caught:
        pandas_with_state(**given)
    assert said in str(caught.value)


def test_columns_that_are_not_in_the_input_are_refused_with_the_plan() -> None:
    rows = pa.schema({"id": pa.string(), "name": pa.string()})
    timed = stateful_processor(p.EventTimers, p.EventTimers.OUTPUT, "Update", "EventTime", event_time="ts")
    with pytest.raises(PlanError, match="event_time is 'ts', but the columns are id, name"):
        output_of(timed, {}, ("id",), rows)
    named = stateful_processor(p.EventTimers, p.EventTimers.OUTPUT, "Update", "EventTime", event_time="name")
    with pytest.raises(PlanError, match="holds string"):
        output_of(named, {}, ("id",), rows)
    initial = stateful_processor(p.Balances, p.Balances.OUTPUT, initialState=[{"name": "x"}])
    with pytest.raises(PlanError, match="initialState has the columns name"):
        output_of(initial, {}, ("id",), rows)
    with pytest.raises(PlanError, match="no parameters"):
        output_of(initial, {"x": 1}, ("id",), rows)


def told(key: Any, frames: Any, state: Any) -> Iterator[pd.DataFrame]:
    """For `applyInPandasWithState`: what the key and its rows look like."""
    for frame in frames:
        yield pd.DataFrame({"id": [f"{key[0]!r} {frame['n'].dtype}"]})


class Told(StatefulProcessor):  # type: ignore[misc]
    """The same in pandas, and once more when a timer fires."""

    def init(self, handle: Any) -> None:
        self.handle = handle

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[pd.DataFrame]:
        self.handle.registerTimer(1)
        yield from told(key, rows, None)

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[pd.DataFrame]:
        yield pd.DataFrame({"id": [f"expired {key.k!r}"]})


IN_PANDAS = [
    lambda: stateful_processor(Told, "id string", timeMode="ProcessingTime", rows="pandas"),
    lambda: pandas_with_state(told, "id string", "n long"),
]


@pytest.mark.parametrize("made", [lambda: stateful_processor(p.RunningCount, p.RunningCount.OUTPUT), *IN_PANDAS])
def test_an_operator_of_sparks_needs_a_key(made: Any) -> None:
    flow = flux.Dataflow("no key")
    stream = flow.source(flux.sources.Table([{"k": 1, "n": 1}]))
    with pytest.raises(PlanError, match=r'works by key: exchange .* not by="any"'):
        stream.exchange(by="any", partitions=2).apply(made())
    without = stream.exchange("k", partitions=2).map(lambda row: {"n": row.n}, output={"n": "int64"})
    with pytest.raises(PlanError, match=r"a step between the exchange and it drops k"):
        without.apply(made())


@pytest.mark.parametrize("made", IN_PANDAS)
@pytest.mark.parametrize("kind", [pa.list_(pa.uint8()), pa.month_day_nano_interval()], ids=str)
def test_a_type_that_pandas_cannot_have_from_spark_is_refused_with_the_plan(made: Any, kind: pa.DataType) -> None:
    rows = pa.schema({"k": pa.int64(), "n": kind})
    with pytest.raises(PlanError, match=r"Spark has no type for the column 'n'.*Cast it"):
        output_of(made(), {}, ("k",), rows)


ODD = {
    "uint8": ([1, 2], "1 int64", "1"),
    "uint16": ([1, 2], "1 int64", "1"),
    "uint32": ([1, 2], "1 int64", "1"),
    "uint64": ([1, 2**63], "Decimal('1') object", "Decimal('1')"),
    "float16": ([np.float16(1.5), np.float16(2)], "1.5 float64", "1.5"),
    "time32[s]": ([time(1), time(2)], "datetime.time(1, 0) object", "datetime.time(1, 0)"),
    "date64": ([date(2024, 5, 1), date(2024, 5, 2)], "datetime.date(2024, 5, 1) object", "datetime.date(2024, 5, 1)"),
}


@pytest.mark.parametrize("kind", ODD)
def test_types_that_spark_has_not_are_widened_for_pandas_and_are_keys_of_timers(kind: str) -> None:
    values, shown, fired = ODD[kind]
    arrow = pa.array(values, pa.type_for_alias(kind))
    rows = pa.record_batch({"k": arrow, "n": arrow})
    made = IN_PANDAS[0]()
    hosted = host(OperatorStep(made, {}, "step", ("k",), 1, 0, output_of(made, {}, ("k",), rows.schema)))
    hosted.open([0])
    assert hosted.process(Batch(rows, np.arange(2), None, np.zeros(2, np.uint16))) is None
    hosted.punctuate(Punctuation(3, "clock", 10, frozenset({0})))
    out = hosted.punctuate(Punctuation(4, "batch", 0, frozenset({0})))
    assert out is not None
    [first, _, *expired] = out.arrow["id"].to_pylist()
    assert first == shown and f"expired {fired}" in expired


@pytest.mark.parametrize(
    ("what", "said"),
    [
        (lambda handle: handle.getValueState("x", "x int"), "outside of init"),
        (lambda handle: handle.deleteIfExists("x"), "outside of init"),
        (lambda handle: handle.registerTimer(1), "without a current key"),
    ],
)
def test_the_handle_refuses_what_sparks_refuses(what: Any, said: str) -> None:
    handle = Handle(Declarations("it", "processingtime"), {}, KeyTimers(lambda key: key), 0)
    handle.seal()
    with pytest.raises(RuntimeError, match=said):
        what(handle)


def test_timers_need_a_time_mode() -> None:
    handle = Handle(Declarations("it", "none"), {}, KeyTimers(lambda key: key), 0)
    handle.key = ("x",)
    with pytest.raises(RuntimeError, match="timeMode"):
        handle.registerTimer(1)


def run(processor: Any, **arguments: Any) -> flux.Report:
    flow = flux.Dataflow("doing")
    source = MicroBatches(flux.sources.Table([{"id": "a", "n": n} for n in range(4)]), rows=2)
    operator = stateful_processor(processor, "id string, n long", **arguments)
    flow.source(source).exchange("id", partitions=2).apply(operator).sink(flux.sinks.Collect())
    return flow.run(sites=2)


def test_an_error_in_a_processor_names_the_line_the_key_and_the_micro_batch() -> None:
    def fail(self: Any, key: Any, rows: Any) -> Any:
        if next(rows).n == 2:
            raise KeyError("no such thing")
        return Row(id="a", n=1)

    with pytest.raises(OperatorError) as caught:
        run(Doing(for_rows=fail))
    text = str(caught.value)
    assert "step 'Doing'" in text
    assert "Doing.handleInputRows (" in text and "test_plans_of_processors.py" in text
    assert "KeyError: 'no such thing'; the key was ('a',), in micro-batch 1 of its partition" in text


def test_an_output_that_is_no_row_is_shown() -> None:
    with pytest.raises(OperatorError, match=r"a pyspark.sql.Row with the names id, n was expected.*got \('a', 1\)"):
        run(Doing(for_rows=lambda self, key, rows: ("a", 1)))


def test_fields_are_taken_by_name_and_missing_ones_are_null() -> None:
    report = run(Doing(for_rows=lambda self, key, rows: Row(n=sum(row.n for row in rows), other=1)))
    assert report.table.to_pylist() == [{"id": None, "n": 1}, {"id": None, "n": 5}]


def test_without_boundaries_all_rows_are_one_micro_batch_as_in_sparks_batch_mode() -> None:
    flow = flux.Dataflow("one batch")
    operator = stateful_processor(
        Doing(for_rows=lambda self, key, rows: Row(id="a", n=len(list(rows)))), "id string, n long"
    )
    source = flux.sources.Table([{"id": "a", "n": n} for n in range(4)], batch_rows=1)
    flow.source(source).exchange("id", partitions=2).apply(operator).sink(flux.sinks.Collect())
    assert flow.run(sites=2).table.to_pylist() == [{"id": "a", "n": 4}]


def test_a_list_in_a_group_state_that_is_changed_and_not_updated_stays_as_it_was() -> None:
    """What a function is given is a copy, as in Spark, where it comes from another process.

    Spark 4.3 itself fails on arrays in a GroupState: their type does not reach its worker whole.
    """

    def hoard(key: Any, frames: Any, state: Any) -> Iterator[pd.DataFrame]:
        [held] = state.getOption or ([],)
        before = str(held)
        held.extend(n for frame in frames for n in frame["n"].tolist())
        if len(held) % 2:
            state.update((held,))
        yield pd.DataFrame({"before": [before]})

    flow = flux.Dataflow("hoard")
    source = MicroBatches(flux.sources.Table([{"id": "a", "n": n} for n in range(4)]), rows=1)
    operator = pandas_with_state(hoard, "before string", "held array<long>")
    flow.source(source).exchange("id", partitions=2).apply(operator).sink(flux.sinks.Collect())
    assert [row["before"] for row in flow.run(sites=2).table.to_pylist()] == ["[]", "[0]", "[0]", "[0]"]


def test_without_boundaries_the_clock_is_that_of_the_end() -> None:
    """As in Spark's batch mode, where it is the time at which the query runs; both copies see the same."""
    begun_ms = time_ns() // 1_000_000
    flow = flux.Dataflow("one clock")
    source = flux.sources.Table([{"id": str(n)} for n in range(8)])
    operator = stateful_processor(p.Clocks, p.Clocks.OUTPUT, timeMode="ProcessingTime")
    flow.source(source).exchange("id", partitions=4).apply(operator).sink(flux.sinks.Collect())
    with flow.start(sites=2) as run:
        run.kill("site-1")
        table = run.wait().table.to_pylist()
    [clock_ms] = {row["clock"] for row in table}
    assert begun_ms <= clock_ms <= time_ns() // 1_000_000
    assert sorted(row["event"] for row in table) == ["expired"] * 8 + ["rows"] * 8


def test_without_boundaries_the_watermarks_of_the_flow_let_timers_fire() -> None:
    flow = flux.Dataflow("own watermarks")
    source = flux.sources.Table([{"id": "a", "value": 1, "ts": p.at(1)}, {"id": "b", "value": 2, "ts": p.at(40)}])
    operator = stateful_processor(p.EventTimers, p.EventTimers.OUTPUT, timeMode="EventTime", event_time="ts")
    stream = flow.source(source, event_time="ts").exchange("id", partitions=2)
    stream.apply(operator).sink(flux.sinks.Collect())
    found = [(row["id"], row["event"], row["clock_is_set"]) for row in flow.run(sites=2).table.to_pylist()]
    assert sorted(found) == [("a", "expired", True), ("a", "rows", True), ("b", "expired", True), ("b", "rows", True)]


@pytest.mark.parametrize("cut", [MicroBatches, lambda source: source])
def test_event_time_without_a_watermark_is_an_error_that_says_how_to_get_one(cut: Any) -> None:
    flow = flux.Dataflow("no watermark")
    source = cut(flux.sources.Table([{"id": "a", "ts": 1}]))
    operator = stateful_processor(Doing(), "id string", timeMode="EventTime", event_time="ts")
    flow.source(source).exchange("id", partitions=2).apply(operator).sink(flux.sinks.Collect())
    with pytest.raises(OperatorError, match=r"writes no watermark.*withWatermark\('ts'.*MicroBatches"):
        flow.run(sites=2)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"source": 5}, "a source"),
        ({"source": object.__new__(flux.spark.Stream)}, "its own micro-batches"),
        ({"rows": 0}, "rows"),
        ({"event_time": "x"}, "'x'"),
        ({"event_time": "id"}, "holds string"),
        ({"delay": "soon"}, "10 seconds"),
    ],
)
def test_micro_batches_refuse_what_they_cannot_cut(arguments: dict[str, Any], said: str) -> None:
    given = {"source": flux.sources.Table([{"id": "a", "n": 1}]), **arguments}
    with pytest.raises(PlanError, match=said):
        MicroBatches(**given)


def test_the_event_time_of_an_operators_input_says_nothing_of_what_it_emits() -> None:
    flow = flux.Dataflow("times")
    rows = flow.source(flux.sources.Table(pa.table({"id": ["a"], "ts": pa.array([1], pa.timestamp("us"))})))
    timed = stateful_processor(p.EventTimers, "id string, ts timestamp", "Update", "EventTime", event_time="ts")
    made = rows.exchange("id", partitions=2).apply(timed)
    made.join(made, on="id", within={"ts": timedelta(seconds=1)}).sink(flux.sinks.Null())
    assert "EventTimers makes it: let it say `event_time = 'ts'`" in flow.explain()
