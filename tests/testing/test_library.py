"""The operators that come with Flux keep the promises that check_operator checks."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import strategies as st

import flux
from flux.testing import check_operator

EVENTS = st.lists(
    st.fixed_dictionaries(
        {
            "k": st.integers(0, 2),
            "n": st.integers(0, 3),
            "x": st.none() | st.floats(-9, 9),
            "ts": st.integers(0, 60),
        }
    ),
    max_size=15,
)
SCHEMA = pa.schema([("k", "int64"), ("n", "int64"), ("x", "float64"), ("ts", "int64")])
AGGREGATES = {"rows": "count", "total": ("sum", "x"), "most": ("max", "x")}

OPERATORS: dict[str, tuple[Any, dict[str, Any]]] = {
    "TimeWindow": (flux.operators.TimeWindow, {"time": "ts", "size_ms": 20, "slide_ms": 10, "aggregates": AGGREGATES}),
    "GroupBy": (flux.operators.GroupBy, {"aggregates": AGGREGATES}),
    "TopK": (flux.operators.TopK, {"k": 2, "by": "n"}),
    "TopK by window": (flux.operators.TopK, {"k": 2, "by": "n", "time": "ts", "size_ms": 20}),
    "Distinct": (flux.operators.Distinct, {"on": ("k", "n")}),
    "CountWindow": (flux.operators.CountWindow, {"history": 2, "slide": 1, "value": "ts"}),
}


@pytest.mark.parametrize("name", OPERATORS)
def test_an_operator_of_the_library_passes(name: str) -> None:
    operator, parameters = OPERATORS[name]
    checked = check_operator(
        operator, EVENTS, key="k", parameters=parameters, schema=SCHEMA, event_time="ts", examples=15
    )
    assert "hash order" in checked.claims


def test_sessions_pass() -> None:
    starts_and_ends = st.sampled_from([b"S\x01", b"S\x02", b"E\x00", b"x\x00"])
    packet = st.fixed_dictionaries(
        {
            "src": st.integers(0, 2),
            "dst": st.integers(0, 2),
            "data": starts_and_ends.map(lambda head: head.ljust(32, b".")),
            "ts": st.integers(0, 1_000),
        }
    )
    schema = pa.schema([("src", "int32"), ("dst", "int32"), ("data", pa.binary(32)), ("ts", "int64")])
    packets = st.lists(packet, max_size=15)
    assert check_operator(flux.operators.Sessions, packets, key=("src", "dst"), schema=schema, examples=15).claims
