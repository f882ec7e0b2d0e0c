"""Garbage: what a KeyedOperator leaves in cycles is found while a batch goes on."""

# ruff: noqa: RUF012 - operators declare `output` as users do, without ClassVar.

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

import flux
from flux.types.errors import OperatorError
from tests.operators.feeding import batch_of, opened, step_of

SCHEMA = pa.schema([("k", pa.int64())])


class Cycle:
    def __init__(self) -> None:
        self.itself = self


class Littering(flux.KeyedOperator):
    """Tells how much of what it made for rows before is still there."""

    output = {"left": "int64"}

    def __init__(self) -> None:
        self._made: weakref.WeakSet[Cycle] = weakref.WeakSet()

    def on_tuple(self, key: Any, row: Any, state: Any) -> tuple[Any, Any]:
        self._made.add(Cycle())
        return None, [{"left": len(self._made)}]


class Raising(flux.KeyedOperator):
    output = {"left": "int64"}

    def on_tuple(self, key: Any, row: Any, state: Any) -> tuple[Any, Any]:
        raise ValueError("no")


class Wrong(Raising):
    def on_tuple(self, key: Any, row: Any, state: Any) -> tuple[Any, Any]:
        return None, [{"other": 1}]


def test_garbage_of_a_batch_does_not_grow_with_its_rows() -> None:
    count = 50_000
    rows = batch_of([(1,)] * count, SCHEMA, [0] * count)
    out = opened(step_of(Littering, SCHEMA, ("k",)), [0]).process(rows)
    assert out is not None and max(out["left"]) < count // 2


@pytest.fixture(params=[True, False])
def looks(request: Any) -> Iterator[bool]:
    was = gc.isenabled()
    (gc.enable if request.param else gc.disable)()
    yield request.param
    (gc.enable if was else gc.disable)()


@pytest.mark.parametrize("operator", [Littering, Raising, Wrong])
def test_whether_python_looks_for_garbage_is_as_before_whatever_an_operator_does(operator: Any, looks: bool) -> None:
    hosted = opened(step_of(operator, SCHEMA, ("k",)), [0])
    try:
        hosted.process(batch_of([(1,)], SCHEMA, [0]))
    except OperatorError:
        assert operator is not Littering
    assert gc.isenabled() == looks
