"""What an operator has emitted is what it was then, whatever the operator does with it later."""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from flux.model.operator import KeyedOperator, Operator
from tests.operators.feeding import batch_of, opened, step_of

SCHEMA = pa.schema({"n": pa.int64()})


LISTS = {"v": pa.list_(pa.int64())}


@pytest.mark.parametrize(
    ("kind", "output"),
    [(bytearray, None), (deque, None), (list, None), (bytearray, {"v": "binary"}), (deque, LISTS), (list, LISTS)],
)
def test_what_an_operator_goes_on_with_comes_out_as_it_was(kind: Any, output: Any) -> None:
    """Its rows become columns when the batch has ended, and by then it has added to what it returned."""

    class Growing(KeyedOperator):
        def on_tuple(self, key: Any, row: Any, state: Any) -> Any:
            state = kind() if state is None else state
            state.append(row.n)
            return state, [{"v": state}]

    Growing.output = output
    schema = pa.schema({"k": pa.int64(), "n": pa.int64()})
    out = opened(step_of(Growing, schema, ("k",))).process(batch_of([(0, n) for n in range(3)], schema, [0] * 3))
    assert out is not None
    assert [list(value) for value in out.arrow.column("v").to_pylist()] == [[0], [0, 1], [0, 1, 2]]


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (pa.struct({"x": pa.int64(), "y": pa.list_(pa.int64())}), (1, [2])),
        (pa.map_(pa.string(), pa.int64()), [("a", 1)]),
        (pa.list_(pa.int64()), (1, 2)),
    ],
)
def test_a_tuple_stays_one_where_the_declared_type_takes_it(kind: Any, value: Any) -> None:
    class Tuples(KeyedOperator):
        output = {"v": kind}  # noqa: RUF012

        def on_tuple(self, key: Any, row: Any, state: Any) -> Any:
            return None, [{"v": value}]

    out = opened(step_of(Tuples, SCHEMA, ("n",))).process(batch_of([(1,)], SCHEMA, [0]))
    assert out is not None and out.arrow.column("v").equals(pa.array([value], kind))


@pytest.mark.parametrize(
    ("held", "output"),
    [
        (np.zeros(2, np.int64), {"v": "int64"}),
        (np.zeros(2, np.int64), None),
        (np.zeros(2, np.int64), {"v": "float64"}),
        (np.zeros(4, np.float32)[::2], None),
        (np.ma.MaskedArray(np.zeros(2, np.int16), [False, True]), None),
        (np.zeros((2, 3), np.uint8), {"v": pa.binary(3)}),
        (np.zeros(2, "M8[us]"), None),
        (np.zeros(2, bool), None),
    ],
)
def test_an_array_that_an_operator_goes_on_writing_to_comes_out_as_it_was(held: Any, output: Any) -> None:
    """Rows are kept until all have them, by the memory they are in."""

    class Writing(Operator):
        def process(self, batch: Any) -> Any:
            return batch.emit({"v": held})

    Writing.output = output
    out = opened(step_of(Writing, SCHEMA)).process(batch_of([(1,), (2,)], SCHEMA, [0, 0]))
    assert out is not None
    before = out.arrow.column("v").to_pylist()
    held[...] = 1
    assert out.arrow.column("v").to_pylist() == before


def test_an_array_that_cannot_be_written_to_is_not_copied() -> None:
    rows = batch_of([(1,), (2,)], SCHEMA, [0, 0])
    out = rows.emit({"v": rows["n"]})
    assert out is not None
    assert out.arrow.column("v").buffers()[1].address == rows.column("n").buffers()[1].address
