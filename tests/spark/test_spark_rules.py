"""What Spark takes from processors and gives them: types, sizes of DataFrames, states that are deleted.

Each rule was seen in Spark 4.3; those that recordings show are in `cases.py`.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from pyspark.errors import PySparkRuntimeError
from pyspark.sql import Row
from pyspark.sql.streaming import StatefulProcessor

from flux.hosting import host
from flux.model.batch import Batch
from flux.model.operator import OperatorStep, Punctuation, output_of
from flux.spark import pandas_with_state, stateful_processor
from flux.types.errors import OperatorError

ROWS = pa.table({"id": ["a", "a", "a", "b"], "n": pa.array([1, 2, 3, 4], pa.int32())})
DATE = datetime.date(2024, 1, 2)


class Doing(StatefulProcessor):  # type: ignore[misc]  # pyspark is untyped here
    """Does in `init`, and for the rows of a key, what it is given."""

    def __init__(self, for_rows: Callable[..., Any], in_init: Any = None) -> None:
        self.for_rows, self.in_init = for_rows, in_init

    def init(self, handle: Any) -> None:
        self.state = self.in_init(handle) if self.in_init else None

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        return iter(self.for_rows(self.state, key, rows))


def emitted(made: type, rows: pa.Table = ROWS) -> list[tuple[Any, ...]]:
    """What an operator emits for one micro-batch."""
    [batch] = rows.combine_chunks().to_batches()
    hosted = host(OperatorStep(made, {}, "step", ("id",), 1, 0, output_of(made, {}, ("id",), batch.schema)))
    hosted.open([0])
    hosted.process(Batch(batch, np.arange(len(batch)), None, np.zeros(len(batch), np.uint16)))
    out = hosted.punctuate(Punctuation(len(batch), "batch", 0, frozenset({0})))
    return [] if out is None else [tuple(row.values()) for row in out.arrow.to_pylist()]


def of_rows(for_rows: Callable[..., Any], kind: str, in_init: Any = None) -> list[tuple[Any, ...]]:
    return emitted(stateful_processor(Doing(for_rows, in_init), f"id string, v {kind}"))


def of_frames(form: str, for_frames: Callable[[Any, Any], Any], kind: str, rows: pa.Table = ROWS) -> list[Any]:
    """The same in one of the two pandas forms."""
    output = f"id string, v {kind}"
    if form == "processor":
        return emitted(stateful_processor(Doing(lambda _, key, it: for_frames(key, it)), output, rows="pandas"), rows)
    return emitted(pandas_with_state(lambda key, it, state: for_frames(key, it), output, "n long"), rows)


FORMS = pytest.mark.parametrize("form", ["processor", "function"])


@pytest.mark.parametrize(
    ("value", "kind", "got"),
    [
        (True, "double", 1.0),
        (1, "double", 1.0),
        (1.0, "long", 1),
        (1.5, "long", 1),
        (1, "decimal(10,2)", Decimal("1.00")),
        (datetime.datetime(2024, 1, 2, 3), "date", DATE),
        ("x", "binary", b"x"),
        (b"x", "string", "x"),
        (5, "date", datetime.date(1970, 1, 6)),
        ([], "array<int>", []),
        ((1, 2), "array<int>", [1, 2]),
    ],
)
def test_a_row_is_converted_as_spark_converts_it(value: Any, kind: str, got: Any) -> None:
    assert of_rows(lambda _, key, rows: [Row(id=key[0], v=value)], kind) == [("a", got), ("b", got)]


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (True, "long"),
        (True, "int"),
        (True, "timestamp"),
        ([True], "array<long>"),
        (1, "boolean"),
        (DATE, "timestamp"),
        (DATE, "timestamp_ntz"),
        ([], "long"),
        ([], "string"),
        ("1", "long"),
        (1, "string"),
        (1.5, "decimal(10,2)"),
        (Decimal("1.234"), "decimal(10,2)"),
        (2**40, "int"),
    ],
)
def test_a_value_that_spark_refuses_in_a_row_is_refused(value: Any, kind: str) -> None:
    with pytest.raises(OperatorError, match=r"column 'v' of the output is .* does not fit.*outputStructType"):
        of_rows(lambda _, key, rows: [Row(id=key[0], v=value)], kind)


@pytest.mark.parametrize("method", ["put", "appendList"])
def test_an_empty_list_is_refused_as_the_value_of_a_list_state(method: str) -> None:
    with pytest.raises(OperatorError, match=r"Spark refuses an empty list; clear\(\) removes the state"):
        of_rows(
            lambda state, key, rows: [getattr(state, method)([])],
            "long",
            lambda handle: handle.getListState("l", "x int"),
        )


def keep_one_delete_one(handle: Any) -> tuple[Any, Any]:
    kept, dropped = handle.getValueState("kept", "n long"), handle.getValueState("dropped", "n long")
    handle.deleteIfExists("dropped")
    return kept, dropped


def test_a_state_that_init_asks_for_and_deletes_is_no_hindrance() -> None:
    def count(states: Any, key: Any, rows: Any) -> Iterator[Row]:
        states[0].update((sum(1 for _ in rows),))
        yield Row(id=key[0], v=states[0].get()[0])

    assert of_rows(count, "long", keep_one_delete_one) == [("a", 3), ("b", 1)]


@pytest.mark.parametrize("form", ["Value", "List", "Map"])
def test_a_state_that_was_deleted_cannot_be_used(form: str) -> None:
    uses: dict[str, list[Callable[[Any], Any]]] = {
        "Value": [lambda s: s.get(), lambda s: s.exists(), lambda s: s.update((1,)), lambda s: s.clear()],
        "List": [lambda s: list(s.get()), lambda s: s.put([(1,)]), lambda s: s.appendValue((1,)), lambda s: s.clear()],
        "Map": [
            lambda s: s.getValue((1,)),
            lambda s: s.updateValue((1,), (1,)),
            lambda s: list(s.keys()),
            lambda s: s.removeKey((1,)),
        ],
    }

    def ask(handle: Any) -> Any:
        state = getattr(handle, f"get{form}State")("s", *["n long"] * (2 if form == "Map" else 1))
        handle.deleteIfExists("s")
        return state

    for use in uses[form]:
        with pytest.raises(OperatorError, match="state 's' was deleted by deleteIfExists in init"):
            of_rows(lambda state, key, rows, use=use: [use(state)], "long", ask)


def test_the_error_of_a_deleted_state_is_sparks_so_that_a_processor_may_catch_it() -> None:
    """As the basic processor of Spark's tests does."""

    def catch(states: Any, key: Any, rows: Any) -> Iterator[Row]:
        with pytest.raises(PySparkRuntimeError, match="Error checking value state exists"):
            states[1].exists()
        yield Row(id=key[0], v=1)

    assert of_rows(catch, "long", keep_one_delete_one) == [("a", 1), ("b", 1)]


def test_void_and_intervals_are_states_and_output() -> None:
    day = datetime.timedelta(days=1, seconds=5)

    def kept(state: Any, key: Any, rows: Any) -> Iterator[Row]:
        state.update((day, None))
        yield Row(id=key[0], v=state.get()[0])

    in_init = lambda handle: handle.getValueState("s", "a interval day to second, b void")  # noqa: E731
    assert of_rows(kept, "interval day to second", in_init) == [("a", day), ("b", day)]


@FORMS
@pytest.mark.parametrize("kind", ["string", "long", "array<int>"])
def test_an_empty_frame_is_no_rows(form: str, kind: str) -> None:
    def nothing(key: Any, frames: Any) -> Iterator[Any]:
        yield pd.DataFrame({"id": [], "v": []})
        yield pd.DataFrame()
        yield pd.DataFrame({"id": key, "v": [None]})

    assert of_frames(form, nothing, kind) == [("a", None), ("b", None)]


@FORMS
def test_an_empty_frame_with_other_columns_is_refused(form: str) -> None:
    with pytest.raises(OperatorError, match="the columns id, v were expected, got x"):
        of_frames(form, lambda key, frames: [pd.DataFrame({"x": []})], "long")


def test_the_types_and_names_of_a_frame_are_those_that_spark_makes_of_its_rows() -> None:
    """`transformWithStateInPandas` makes its DataFrames of tuples; `applyInPandasWithState` does not."""
    names, kinds = ["id", "my col", "_f", "n", "ok"], [pa.string(), pa.int32(), pa.float32(), pa.int32(), pa.bool_()]
    given = [dict(zip(names, row, strict=True)) for row in (("a", 1, 1.5, None, True), ("b", 1, 1.5, 2, None))]
    rows = pa.Table.from_pylist(given, pa.schema(list(zip(names, kinds, strict=True))))

    def types(key: Any, frames: Any) -> Iterator[Any]:
        [frame] = frames
        yield pd.DataFrame({"id": key, "v": [str(frame.dtypes.astype(str).to_dict())]})

    common = "{'id': 'object', '_1': 'int64', '_2': 'float64', 'n': 'float64', 'ok': "
    assert of_frames("processor", types, "string", rows) == [("a", f"{common}'bool'}}"), ("b", f"{common}'object'}}")]
    # Its types depend on its own rows only.
    common = "{'id': 'object', 'my col': 'int32', '_f': 'float32', 'n': "
    assert of_frames("function", types, "string", rows) == [
        ("a", f"{common}'float64', 'ok': 'bool'}}"),
        ("b", f"{common}'int32', 'ok': 'object'}}"),
    ]


def sizes(key: Any, frames: Any) -> Iterator[Any]:
    yield pd.DataFrame({"id": key, "v": [str([len(frame) for frame in frames])]})


def whole_numbers(key: Any, frames: Any) -> Iterator[Any]:
    yield pd.DataFrame({"id": key, "v": [5]})


@FORMS
def test_settings_of_the_session_are_those_of_the_plan(spark: Any, form: str) -> None:
    arrow, coercion = "spark.sql.execution.arrow.", "spark.sql.execution.pythonUDF.pandas.intToDecimalCoercionEnabled"
    assert of_frames(form, sizes, "string") == [("a", "[3]"), ("b", "[1]")]
    for name, value, expected in (("maxRecordsPerBatch", "2", "[2, 1]"), ("maxBytesPerBatch", "1b", "[1, 1, 1]")):
        spark.conf.set(arrow + name, value)
        try:
            assert of_frames(form, sizes, "string") == [("a", expected), ("b", "[1]")]
        finally:
            spark.conf.unset(arrow + name)
    with pytest.raises(OperatorError, match="decimal"):
        of_frames(form, whole_numbers, "decimal(10,2)")
    spark.conf.set(coercion, "true")
    try:
        assert of_frames(form, whole_numbers, "decimal(10,2)") == [("a", Decimal("5.00")), ("b", Decimal("5.00"))]
    finally:
        spark.conf.unset(coercion)
