"""Joins and lookups by `check_operator`: batches, transfers of state and shared sites do not change what they emit."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import strategies as st

from flux.exchange.sides import SIDE, widened_names
from flux.operators import Join, Lookup, OuterJoin
from flux.operators.join_spec import JoinSpec, lookup_spec
from flux.testing import check_operator

LONG = pytest.mark.long
LEFT = pa.schema([("k", pa.float64()), ("ts", pa.int64()), ("v", pa.string())])
RIGHT = pa.schema([("k", pa.float64()), ("ts", pa.int64()), ("w", pa.int64())])
SCHEMA = pa.schema(
    [
        ("key", pa.float64()),
        *zip(widened_names((LEFT, RIGHT)), [pa.uint8(), *LEFT.types, *RIGHT.types], strict=True),
    ]
)
KEYS = st.sampled_from([0.0, 1.5, math.nan, None])
TIMES = st.none() | st.integers(0, 30)


@st.composite
def rows(draw: Any) -> dict[str, Any]:
    """A row of one side, as a join gets it; `key` is what partitions it, whatever its side."""
    side, key = draw(st.integers(0, 1)), draw(KEYS)
    value = draw(st.sampled_from(["a", "", None]) if side == 0 else st.none() | st.integers(0, 3))
    own = {"k": key, "ts": draw(TIMES), ("w" if side else "v"): value}
    empty = dict.fromkeys(SCHEMA.names)
    return {**empty, "key": key, SIDE: side, **{f"{side}.{name}": each for name, each in own.items()}}


def specs() -> dict[str, tuple[Any, JoinSpec]]:
    found: dict[str, tuple[Any, JoinSpec]] = {}
    for how, factory in (("inner", Join), ("left", OuterJoin), ("right", OuterJoin), ("outer", OuterJoin)):
        for within in ({"ts": 7}, 5, None):
            found[f"{how} within {within}"] = factory, JoinSpec.of(LEFT, RIGHT, "k", within, "_right", how)
    for how in ("left", "inner"):
        found[f"lookup {how}"] = Lookup, lookup_spec(LEFT, RIGHT, "k", "_right", how)
    return found


class Forgets(Lookup):
    """Does not transfer its rows."""

    def get_partition_state(self, pid: int) -> Iterator[Any]:
        yield from ()


def checked(factory: Any, spec: JoinSpec) -> Any:
    return check_operator(
        factory,
        st.lists(rows(), max_size=12),
        key="key",
        parameters={"joined": spec},
        schema=SCHEMA,
        event_time=None if spec.column is None else "0.ts",
        examples=15,
    )


QUICK = ("outer within {'ts': 7}", "lookup left")


@pytest.mark.parametrize("which", [which if which in QUICK else pytest.param(which, marks=LONG) for which in specs()])
def test_a_join_is_an_operator_like_any_other(which: str) -> None:
    factory, spec = specs()[which]
    assert checked(factory, spec).claims == ("repeats", "clock", "batching", "round trip")


@LONG
def test_a_join_that_does_not_transfer_its_rows_is_found() -> None:
    with pytest.raises(AssertionError, match="state"):
        checked(Forgets, lookup_spec(LEFT, RIGHT, "k", "_right", "left"))
