"""The operators that come with Flux keep the promises that check_operator checks, also for nulls, NaN and late rows."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import strategies as st
from operators.plain_aggregates import KEPT, RUNNING

import flux
from flux.batch import Batch
from flux.operator import Context
from flux.operators.join import Join, Joined
from flux.plan.sides import wide_names
from flux.testing import check_operator

FLOATS = st.floats(-9, 9) | st.sampled_from([-0.0, math.nan, math.inf])
EVENTS = st.lists(
    st.fixed_dictionaries(
        {
            "k": st.sampled_from([0.5, math.nan, None]),
            "host": st.integers(0, 1),
            "n": st.none() | st.integers(0, 3),
            "x": st.none() | FLOATS,
            "w": FLOATS,
            "ts": st.none() | st.integers(0, 60),
        }
    ),
    max_size=15,
)
SCHEMA = pa.schema(
    [("k", "float64"), ("host", "int32"), ("n", "int64"), ("x", "float64"), ("w", "float64"), ("ts", "int64")]
)
WINDOW = {"time": "ts", "size_ms": 20}


AGGREGATES = RUNNING | {"median": KEPT["median"]}

OPERATORS: dict[str, tuple[Any, dict[str, Any]]] = {
    "TimeWindow": (flux.operators.TimeWindow, {**WINDOW, "aggregates": AGGREGATES}),
    "TimeWindow that slides": (flux.operators.TimeWindow, {**WINDOW, "slide_ms": 8, "aggregates": AGGREGATES}),
    "GroupBy": (flux.operators.GroupBy, {"aggregates": RUNNING}),
    "GroupBy at watermarks": (flux.operators.GroupBy, {"aggregates": RUNNING, "emit": "watermarks"}),
    "TopK": (flux.operators.TopK, {"k": 2, "by": "n"}),
    "TopK by window": (flux.operators.TopK, {"k": 2, "by": "x", **WINDOW}),
    "Distinct": (flux.operators.Distinct, {"on": ("k", "n")}),
    "Distinct by window": (flux.operators.Distinct, {"on": ("k", "n"), **WINDOW}),
}


@pytest.mark.parametrize("name", OPERATORS)
def test_an_operator_of_the_library_passes(name: str) -> None:
    operator, parameters = OPERATORS[name]
    checked = check_operator(
        operator, EVENTS, key="k", parameters=parameters, schema=SCHEMA, event_time="ts", examples=8
    )
    assert "hash order" in checked.claims


def test_a_window_with_a_function_of_a_users_own_passes() -> None:
    parameters = {**WINDOW, "slide_ms": 10, "aggregates": {"spread": KEPT["spread"]}}
    checked = check_operator(
        flux.operators.TimeWindow, EVENTS, key="k", parameters=parameters, schema=SCHEMA, event_time="ts", examples=8
    )
    # A function is no parameter that processes with other hashes could be given.
    assert "round trip" in checked.claims and "hash order" in checked.not_checked


def test_windows_of_the_last_rows_pass() -> None:
    window = {"history": 3, "slide": 2, "value": "w"}
    checked = check_operator(
        flux.operators.CountWindow, EVENTS, key="host", parameters=window, schema=SCHEMA, examples=8
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
    assert check_operator(flux.operators.Sessions, packets, key=("src", "dst"), schema=schema, examples=8).claims


# Join has two inputs, which come to it as one, widened to the columns of both.

SIDE = pa.schema([("k", "float64"), ("ts", "int64"), ("n", "int64")])


class Pairs(Join):
    """`Join` of rows that say of which side they are, and are not widened yet."""

    joined = Joined.of(SIDE, SIDE, "k", {"ts": 5}, "_right")
    output = joined.output

    def open(self, context: Context) -> None:
        super().open(replace(context, parameters={"joined": self.joined}))

    def process(self, batch: Batch) -> Batch | None:
        side = batch.column("side")
        columns = [side]
        for number in (0, 1):
            is_own = pc.equal(side, pa.scalar(number, pa.uint8()))
            columns += [pc.if_else(is_own, batch.column(name), None) for name in SIDE.names]
        arrow = pa.RecordBatch.from_arrays(columns, wide_names(self.joined.sides))
        wide = Batch(arrow, batch.sn, batch.sub, batch.partition, batch.level, batch.output, batch.step)
        return super().process(wide)


class PairsByRows(Pairs):
    """The same with a bound on the number of rows between."""

    joined = Joined.of(SIDE, SIDE, "k", 3, "_right")


@pytest.mark.parametrize("operator", [Pairs, PairsByRows])
def test_joins_pass(operator: Any) -> None:
    row = st.fixed_dictionaries(
        {
            "side": st.integers(0, 1),
            "k": st.sampled_from([0.0, -0.0, math.nan, None]),
            "ts": st.none() | st.integers(0, 30),
            "n": st.integers(0, 9),
        }
    )
    schema = pa.schema([("side", "uint8"), *SIDE])
    rows = st.lists(row, max_size=12)
    checked = check_operator(operator, rows, key="k", schema=schema, event_time="ts", examples=12)
    assert "hash order" in checked.claims
