"""Every known difference between Spark's operators in Spark and under Flux, as docs/spark_operators.rst lists them."""

from __future__ import annotations

import random
import re
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from pyspark.sql import Row
from test_spark_rules import Doing, emitted, of_frames, of_rows, sizes

import flux
from flux.spark import MicroBatches, pandas_with_state, stateful_processor
from flux.spark.operators import session_settings
from flux.types.errors import FluxError, OperatorError, PlanError

ROOT = Path(__file__).parents[2]
NAMES = re.compile(r"\(``(tests/spark/\w+\.py)::(\w+)``\)")


def test_each_difference_names_a_test_that_exists() -> None:
    page = (ROOT / "docs" / "spark_operators.rst").read_text()
    listed = page[page.index("What is not\n") :].split("\n* ")[1:]
    for entry in listed:
        found = NAMES.search(" ".join(entry.split()))
        assert found, f"this difference has no test: {entry}"
        assert f"def {found[2]}(" in (ROOT / found[1]).read_text(), found[0]
    assert len(listed) >= 15


@pytest.mark.parametrize("kind", ["interval", "interval year to month"])
def test_a_type_without_a_python_value_is_refused_with_the_plan(kind: str) -> None:
    with pytest.raises(PlanError, match="cannot be stored as state under Flux"):
        stateful_processor(Doing(list, lambda h: h.getValueState("s", f"x {kind}")), "id string")
    with pytest.raises(PlanError, match=r"outputStructType.*(?i:interval)"):
        stateful_processor(Doing(list), f"id string, x {kind}")


def test_the_watermark_of_a_static_source_is_0() -> None:
    class Watermark(Doing):
        def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
            yield Row(id=key[0], v=timerValues.getCurrentWatermarkInMs())

    made = stateful_processor(Watermark(list), "id string, v long", "Update", "ProcessingTime")
    flow = flux.Dataflow("static")
    flow.source(flux.sources.Table([{"id": "a"}])).exchange("id", partitions=2).apply(made).sink(flux.sinks.Collect())
    assert flow.run(sites=1, availability="none").table["v"].to_pylist() == [0]


def test_a_row_of_the_output_that_is_older_than_the_watermark_is_emitted() -> None:
    class Old(Doing):
        def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
            yield Row(id=key[0], ts=datetime(2001, 1, 1, tzinfo=UTC), wm=timerValues.getCurrentWatermarkInMs())

    output = "id string, ts timestamp, wm long"
    made = stateful_processor(Old(list), output, "Append", "EventTime", eventTimeColumnName="ts", event_time="ts")
    rows = pa.table({"id": ["a", "a"], "ts": [datetime(2024, 1, day, tzinfo=UTC) for day in (1, 2)]})
    source = MicroBatches(flux.sources.Table(rows), rows=1, event_time="ts")
    flow = flux.Dataflow("old")
    flow.source(source).exchange("id", partitions=2).apply(made).sink(flux.sinks.Collect())
    table = flow.run(sites=1, availability="none").table
    assert table["ts"].to_pylist() == [datetime(2001, 1, 1, tzinfo=UTC)] * 2
    assert table["wm"].to_pylist()[1] > 1_700_000_000_000


@pytest.mark.parametrize(
    ("value", "kind", "got"),
    [
        (True, "long", None),
        (1.0, "long", None),
        (1, "boolean", None),
        (2**40, "int", None),
        (True, "double", None),
        (1, "string", None),
        (1, "double", 1.0),
        (1, "decimal(10,2)", Decimal("1.00")),
    ],
)
def test_a_value_of_another_type_is_not_stored_as_null(value: Any, kind: str, got: Any) -> None:
    def stored(state: Any, key: Any, rows: Any) -> Iterator[Row]:
        state.update((value,))
        yield Row(id=key[0], v=repr(state.get()[0]))

    def run() -> list[tuple[Any, ...]]:
        return of_rows(stored, "string", lambda handle: handle.getValueState("s", f"x {kind}"))

    if got is not None:
        assert run() == [("a", repr(got)), ("b", repr(got))]
        return
    with pytest.raises(OperatorError, match=r"field 'x': .* does not fit"):
        run()


def test_a_map_within_the_values_of_a_map_state_is_stored() -> None:
    def costs(state: Any, key: Any, rows: Any) -> Iterator[Row]:
        for row in rows:
            state.updateValue((row.n,), ({row.n: row.n / 2},))
        yield Row(id=key[0], v=repr([(entry[0], value[0]) for entry, value in state.iterator()]))

    found = of_rows(costs, "string", lambda h: h.getMapState("costs", "n int", "by map<int,double>"))
    assert found == [("a", "[(1, {1: 0.5}), (2, {2: 1.0}), (3, {3: 1.5})]"), ("b", "[(4, {4: 2.0})]")]


def test_each_key_begins_a_dataframe_and_is_called_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_settings.PandasSettings, "of_session", lambda zone: settings(zone, max_rows=2))
    expected = [("a", "[2, 1]"), ("b", "[1]")]
    assert of_frames("processor", sizes, "string") == of_frames("function", sizes, "string") == expected
    initial = [{"id": "a", "n": 0}]

    class Called(Doing):
        def handleInitialState(self, key: Any, initialState: Any, timerValues: Any) -> None:
            pass

    called = Called(lambda _, key, rows: [Row(id=key[0], v=sum(1 for _ in rows))])
    assert emitted(stateful_processor(called, "id string, v long", initialState=initial)) == [("a", 3), ("b", 1)]


def settings(zone: str, **changed: Any) -> session_settings.PandasSettings:
    return session_settings.PandasSettings(zone, **changed)


def test_nulls_of_another_key_make_whole_numbers_floats() -> None:
    rows = pa.table({"id": ["a", "b"], "n": pa.array([None, 2], pa.int32())})

    def kind(key: Any, frames: Any) -> Iterator[Any]:
        yield pd.DataFrame({"id": key, "v": [str(frame["n"].dtype) for frame in frames]})

    assert of_frames("processor", kind, "string", rows) == [("a", "float64"), ("b", "float64")]
    assert of_frames("function", kind, "string", rows) == [("a", "float64"), ("b", "int32")]  # As in Spark.


def test_texts_that_differ_are_two_keys() -> None:
    made = stateful_processor(
        Doing(lambda _, key, rows: [Row(id=key[0], v=sum(1 for _ in rows))]), "id string collate UTF8_LCASE, v long"
    )
    assert emitted(made, pa.table({"id": ["a", "A", "a"]})) == [("A", 1), ("a", 2)]


def failing(draws: bool) -> flux.Dataflow:
    def emit(_: Any, key: Any, rows: Any) -> Iterator[Row]:
        if not draws:
            raise ValueError("no such key")
        yield Row(id=key[0], v=random.getrandbits(60))

    flow = flux.Dataflow("failing")
    source = flow.source(MicroBatches(flux.sources.Table([{"id": key} for key in "abcd"]), rows=4))
    made = stateful_processor(Doing(emit), "id string, v long")
    source.exchange("id", partitions=2).apply(made).sink(flux.sinks.Collect())
    return flow


def test_an_error_ends_the_run_also_where_rows_may_be_skipped() -> None:
    with pytest.raises(OperatorError, match=r'no such key.*on_error="skip" drops single rows'):
        failing(draws=False).run(sites=2, on_error="skip")


def test_a_function_that_exits_ends_the_run() -> None:
    def leaving(key: Any, frames: Any, state: Any) -> Iterator[Any]:
        sys.exit(1)
        yield

    made = pandas_with_state(leaving, "id string, v long", "n long", "update", "NoTimeout")
    with pytest.raises(OperatorError, match="SystemExit: 1"):
        emitted(made)


def test_a_processor_that_draws_random_numbers_is_found() -> None:
    with pytest.raises(FluxError, match="differ"):
        failing(draws=True).run(sites=2)
