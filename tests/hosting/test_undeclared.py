"""Output that nobody declared: a value comes out as it went in, or is refused, whatever came before it.

The table says for every kind of value which others may follow it in a column: those of which the type, told by
themselves, is the same. So it does not matter which came first, and which site learnt of it.
"""

from __future__ import annotations

import datetime as dt
from collections import deque
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from flux.model.operator import KeyedOperator, Operator, PooledOperator, Punctuation
from flux.types.arrays import ColumnError, to_arrow_array
from flux.types.errors import OperatorError
from tests.operators.feeding import batch_of, opened, step_of

SCHEMA = pa.schema({"n": pa.int64()})
NOON = dt.datetime(2024, 1, 1, 12)
INTS, FLOATS = "int, large int, np.int64", "float, whole float, -0.0, np.float64"
BYTES, TIMES = "bytes, bytearray, np.bytes_", "datetime, midnight, Timestamp"

# Of each kind: a value, and which kinds may follow it. None may, and it tells nothing.
TABLE: dict[str, tuple[Any, str]] = {
    "int": (1, INTS),
    "large int": (2**53 + 1, INTS),
    "np.int64": (np.int64(3), INTS),
    "np.int8": (np.int8(3), "np.int8"),
    "float": (1.5, FLOATS),
    "whole float": (2.0, FLOATS),
    "-0.0": (-0.0, FLOATS),
    "np.float64": (np.float64(0.1), FLOATS),
    "np.float32": (np.float32(1.5), "np.float32, whole np.float32"),
    "whole np.float32": (np.float32(2), "np.float32, whole np.float32"),
    "bool": (True, "bool, np.bool_"),
    "np.bool_": (np.bool_(True), "bool, np.bool_"),
    "str": ("a", "str, np.str_"),
    "np.str_": (np.str_("a"), "str, np.str_"),
    "bytes": (b"a", BYTES),
    "bytearray": (bytearray(b"a"), BYTES),
    "np.bytes_": (np.bytes_(b"a"), BYTES),
    "date": (dt.date(2024, 1, 1), "date"),
    "datetime": (NOON, TIMES),
    "midnight": (NOON.replace(hour=0), TIMES),
    "Timestamp": (pd.Timestamp(NOON), TIMES),
    "np.datetime64": (np.datetime64("2024-01-01T12:00:01"), "np.datetime64"),
    "aware": (NOON.replace(tzinfo=dt.UTC), "aware, of zone UTC"),
    "of zone UTC": (NOON.replace(tzinfo=ZoneInfo("UTC")), "aware, of zone UTC"),
    "of a zone": (NOON.replace(tzinfo=ZoneInfo("Europe/Berlin")), "of a zone"),
    "time": (dt.time(12), "time"),
    "timedelta": (dt.timedelta(1), "timedelta"),
    "np.timedelta64": (np.timedelta64(5, "s"), "np.timedelta64"),
    "Decimal": (Decimal("1.5"), "Decimal, longer Decimal"),
    "longer Decimal": (Decimal("12345.5"), "Decimal, longer Decimal"),
    "whole Decimal": (Decimal("15"), "whole Decimal"),
    "list": ([1], "list, tuple, deque, array"),
    "tuple": ((1,), "list, tuple, deque, array"),
    "deque": (deque([1]), "list, tuple, deque, array"),
    "array": (np.array([1]), "list, tuple, deque, array"),
    "list of floats": ([1.5], "list of floats"),
    "list of bools": ([True], "list of bools"),
    "list of texts": (["a"], "list of texts"),
    "list of bytes": ([b"a"], "list of bytes"),
    "dict": ({"a": 1}, "dict"),
    "dict of bool": ({"a": True}, "dict of bool"),
    "dict of two": ({"a": 1, "b": 1}, "dict of two"),
}


class Told(PooledOperator):
    """Emits what it is told to."""

    values: list[Any] = []  # noqa: RUF012

    def process(self, batch: Any) -> Any:
        return batch.emit({"v": self.values[: len(batch)]})


def told(values: list[Any], cut: int) -> list[Any]:
    """What comes out of a column of these values, cut into two batches there."""
    hosted = opened(step_of(Told, SCHEMA))
    out: list[Any] = []
    for start, stop in ((0, cut), (cut, len(values))):
        Told.values = values[start:stop]
        if start < stop:
            made = hosted.process(batch_of([(n,) for n in range(start, stop)], SCHEMA, [0] * (stop - start), start))
            assert made is not None
            out += made.arrow.column(0).to_pylist()
    return out


def plain(value: Any) -> Any:
    """A value as Arrow gives it back: the same one, without what is numpy's."""
    if isinstance(value, np.datetime64 | np.timedelta64):
        return value.astype("M8[us]" if isinstance(value, np.datetime64) else "m8[us]").item()
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    if isinstance(value, pd.Timestamp):
        return value.to_pydatetime()
    if isinstance(value, tuple | deque):
        return list(value)
    return bytes(value) if isinstance(value, bytearray) else value


def is_same(came: Any, value: Any) -> bool:
    kept = plain(value)
    return type(came) is type(kept) and bool(came == kept) and str(came) == str(kept)


@pytest.mark.parametrize("first", TABLE)
def test_a_value_comes_out_as_it_went_in_or_is_refused_whatever_came_before_it(first: str) -> None:
    value, fits = TABLE[first]
    for second, (other, _) in TABLE.items():
        values = [None, value, None, other]
        for cut in range(4):
            if second in fits.split(", "):
                came = told(values, cut)
                assert came[0] is came[2] is None
                assert is_same(came[1], value) and is_same(came[3], other), f"{values} became {came}"
            else:
                with pytest.raises(OperatorError, match=r"output column 'v': expected .*Declare `output`") as caught:
                    told(values, cut)
                assert (caught.value.step, caught.value.partition, caught.value.row) == ("step", 0, 3)


BERLIN = NOON.replace(tzinfo=ZoneInfo("Europe/Berlin"))
MIXED = [
    *([1, True], ["a", b"a"], [dt.date(2024, 1, 1), 1], [NOON, 1.5], [dt.timedelta(1), 2], [b"a", "a"]),
    *([NOON, NOON.replace(tzinfo=dt.UTC)], [pd.Timestamp(NOON), pd.Timestamp(NOON, tz="UTC")], [1.5, Decimal("0.1")]),
    *([1, 2.0], [2.0, 1], [Decimal("1.5"), Decimal("1.55")], [NOON.replace(tzinfo=dt.UTC), BERLIN]),
    *([[1], {1}], [[1], bytearray(b"a")], [{"a": 1}, (1,)], [np.float32(1.5), 0.1], [0, -0.0]),
]


@pytest.mark.parametrize("values", MIXED, ids=repr)
def test_what_does_not_fit_is_refused_however_deep_it_is_nested(values: list[Any]) -> None:
    first, second = values
    for nested in (
        [[first], [second]],
        [[first, second]],
        [{"x": [first]}, {"x": [second]}],
        [[{"x": [first]}, {"x": [second]}]],
    ):
        for cut in range(len(nested)):
            with pytest.raises(OperatorError, match=r"'v': expected .*Declare `output`") as caught:
                told(nested, cut)
            assert caught.value.row == len(nested) - 1


@pytest.mark.parametrize("kind", [None, pa.timestamp("s"), pa.string(), pa.list_(pa.timestamp("s"))])
def test_scalars_of_numpy_that_arrow_cannot_stand_beside_each_other_are_refused(kind: Any) -> None:
    """Given these, Arrow ends the process."""
    deadly = [np.datetime64("2024-01-01T00:00:01"), np.int8(3)]
    for values in (deadly, [deadly], [1, *deadly]):
        with pytest.raises(ColumnError):
            to_arrow_array(values, None if kind is None else pa.field("v", kind))


@pytest.mark.parametrize("kind", [pa.date32(), pa.timestamp("us"), pa.duration("us")])
def test_a_number_beside_times_becomes_no_other_time_than_by_itself(kind: Any) -> None:
    time = {pa.date32(): NOON.date(), pa.timestamp("us"): NOON, pa.duration("us"): dt.timedelta(1)}[kind]
    field = pa.field("v", kind)
    for number in (1, 1.5, Decimal("1.5")):
        try:
            [alone] = to_arrow_array([number], field).to_pylist()
        except ColumnError:
            with pytest.raises(ColumnError):
                to_arrow_array([time, number], field)
        else:
            assert to_arrow_array([time, number], field).to_pylist() == [time, alone]


def test_an_error_names_the_row_whatever_the_form_of_the_operator() -> None:
    class ByKey(KeyedOperator):
        def on_tuple(self, key: Any, row: Any, state: Any) -> Any:
            return None, [{"v": 0}, {"v": True if row.n == 7 else row.n}]

    class ByPartition(Operator):
        def process(self, batch: Any) -> Any:
            return batch.emit({"v": [True if n == 7 else n for n in batch["n"].tolist()]})

    rows = batch_of([(n,) for n in (5, 6, 7, 8)], SCHEMA, [1, 1, 3, 1], first_sn=50)
    for operator in (ByKey, ByPartition):
        with pytest.raises(OperatorError, match=r"expected int64, got .*True is not of the type") as caught:
            opened(step_of(operator, SCHEMA, ("n",))).process(rows)
        assert (caught.value.step, caught.value.partition, caught.value.row) == ("step", 3, 52)


def test_an_error_of_what_a_punctuation_caused_names_the_partition() -> None:
    class AtEnd(Operator):
        def open(self, context: Any) -> None:
            self.partition = context.partition

        def process(self, batch: Any) -> None:
            return None

        def on_punctuation(self, p: Punctuation) -> Any:
            return {"v": ["a", b"a" if self.partition == 2 else "a"]}

    with pytest.raises(OperatorError, match=r"expected string, got .*b'a' is not of the type") as caught:
        opened(step_of(AtEnd, SCHEMA)).punctuate(Punctuation(9, "end"))
    assert (caught.value.partition, caught.value.row) == (2, 9)


@pytest.mark.parametrize("value", [Decimal("NaN"), Decimal("-Infinity"), Decimal("-0"), {1, 2}, pd.NaT], ids=repr)
def test_a_value_that_arrow_has_not_is_refused(value: Any) -> None:
    for values in ([value], [Decimal("1"), value], [[value]]):
        with pytest.raises(OperatorError, match="'v': expected"):
            told(values, 0)


@pytest.mark.parametrize(
    ("some", "nothing"),
    [
        (np.arange(1), np.array([])),
        (np.arange(1), np.ma.masked_all(1)),
        (["a"], pa.array([None], pa.int8())),
        ([[1]], pa.array([[None]], pa.list_(pa.string()))),
    ],
)
def test_an_array_of_another_type_with_nothing_in_it_fits(some: Any, nothing: Any) -> None:
    """numpy makes floats of an empty list, and who emits what a batch has given may have none."""

    class Arrays(PooledOperator):
        def process(self, batch: Any) -> Any:
            emitted = (some, nothing)[int(batch["n"][0])]
            return batch.emit({"v": emitted}, np.zeros(len(emitted), np.int64))

    hosted = opened(step_of(Arrays, SCHEMA))
    first, second = (hosted.process(batch_of([(n,)], SCHEMA, [0], n)) for n in range(2))
    assert first is not None and (second is None or second.arrow.schema == first.arrow.schema)
