"""The operators that come with Flux keep the promises that check_operator checks, also for nulls, NaN and late rows.

It takes about a minute: each check tries its operator on many inputs, and again in two processes of their own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import strategies as st

import flux
from experiments.dmz import Sessions
from flux.exchange.sides import widened_names
from flux.model.batch import Batch
from flux.model.operator import Context
from flux.model.punctuation import Punctuation
from flux.operators.join import Join, JoinSpec
from flux.testing import Checked, check_operator
from tests.operators.plain_aggregates import KEPT, RUNNING

SHAPES = ("few keys", "one key", "all keys distinct")


@dataclass
class Shaped:
    """Rows of few keys, of one, or each with a key of its own; `tried` are the shapes that were drawn."""

    columns: dict[str, st.SearchStrategy[Any]]
    key: tuple[str, ...]
    tried: set[str] = field(default_factory=set)

    def rows(self, shape: str | None = None) -> st.SearchStrategy[list[dict[str, Any]]]:
        """Rows of a shape; if none is given, of any, by their number."""
        drawn = st.lists(st.fixed_dictionaries(self.columns), min_size=5, max_size=15)
        return drawn.map(lambda rows: self._shaped(rows, shape or SHAPES[len(rows) % len(SHAPES)]))

    def _shaped(self, rows: list[dict[str, Any]], shape: str) -> list[dict[str, Any]]:
        self.tried.add(shape)
        for n, row in enumerate(rows):
            if shape == "one key":
                row.update({name: rows[0][name] for name in self.key})
            elif shape == "all keys distinct":
                row[self.key[-1]] = n
        return rows


FLOATS = st.floats(-9, 9) | st.sampled_from([-0.0, math.nan, math.inf])
EVENT = {
    "k": st.sampled_from([0.5, math.nan, None]),
    "host": st.none() | st.integers(0, 1),
    "n": st.none() | st.integers(0, 3),
    "x": st.none() | FLOATS,
    "w": st.none() | FLOATS,
    "ts": st.none() | st.integers(0, 60),
}
SCHEMA = pa.schema(
    [("k", "float64"), ("host", "int32"), ("n", "int64"), ("x", "float64"), ("w", "float64"), ("ts", "int64")]
)
WINDOW = {"time": "ts", "size_ms": 20}


AGGREGATES = RUNNING | {"median": KEPT["median"]}

OPERATORS: dict[str, tuple[Any, dict[str, Any]]] = {
    "TimeWindow": (flux.operators.TimeWindow, {**WINDOW, "aggregates": AGGREGATES}),
    "TimeWindow that slides": (flux.operators.TimeWindow, {**WINDOW, "slide_ms": 8, "aggregates": AGGREGATES}),
    "SessionWindow": (flux.operators.SessionWindow, {"time": "ts", "gap_ms": 8, "aggregates": RUNNING}),
    "SessionWindow with rows": (flux.operators.SessionWindow, {"time": "ts", "gap_ms": 8, "aggregates": AGGREGATES}),
    "GroupBy": (flux.operators.GroupBy, {"aggregates": RUNNING}),
    "GroupBy at watermarks": (flux.operators.GroupBy, {"aggregates": RUNNING, "emit": "watermarks"}),
    "TopK": (flux.operators.TopK, {"k": 2, "by": "n"}),
    "TopK by window": (flux.operators.TopK, {"k": 2, "by": "x", **WINDOW}),
    "Distinct": (flux.operators.Distinct, {"on": ("k", "n")}),
    "Distinct by window": (flux.operators.Distinct, {"on": ("k", "n"), **WINDOW}),
}


def check(operator: Any, rows: Shaped, schema: pa.Schema, **asked: Any) -> Checked:
    checked = check_operator(operator, rows.rows(), key=rows.key, schema=schema, examples=10, **asked)
    for shape in set(SHAPES) - rows.tried:  # Ten may miss one: what is drawn depends on names in the code.
        check_operator(operator, rows.rows(shape), key=rows.key, schema=schema, examples=3, **asked)
    return checked


# Each operator in one of its forms; `make test-all` tries all of them.
FORMS = {operator: name for name, (operator, _) in OPERATORS.items()}.values()
TRIED = [name if name in FORMS else pytest.param(name, marks=pytest.mark.long) for name in OPERATORS]


@pytest.mark.parametrize("name", TRIED)
def test_an_operator_of_the_library_passes(name: str) -> None:
    operator, parameters = OPERATORS[name]
    checked = check(operator, Shaped(EVENT, ("k",)), SCHEMA, parameters=parameters, event_time="ts")
    assert "hash order" in checked.claims


def test_a_window_with_a_function_of_a_users_own_passes() -> None:
    parameters = {**WINDOW, "slide_ms": 10, "aggregates": {"spread": KEPT["spread"]}}
    checked = check(flux.operators.TimeWindow, Shaped(EVENT, ("k",)), SCHEMA, parameters=parameters, event_time="ts")
    # A function is no parameter that processes with other hashes could be given.
    assert "round trip" in checked.claims and "hash order" in checked.not_checked


def test_windows_of_the_last_rows_pass() -> None:
    window = {"history": 3, "slide": 2, "value": "w"}
    checked = check(flux.operators.CountWindow, Shaped(EVENT, ("host",)), SCHEMA, parameters=window)
    assert "hash order" in checked.claims


@pytest.mark.long
def test_sessions_pass() -> None:
    starts_and_ends = st.sampled_from([b"S\x01", b"S\x02", b"E\x00", b"x\x00"])
    packet = {
        "src": st.none() | st.integers(0, 2),
        "dst": st.none() | st.integers(0, 2),
        "data": st.none() | starts_and_ends.map(lambda head: head.ljust(32, b".")),
        "ts": st.none() | st.integers(0, 1_000),
    }
    schema = pa.schema([("src", "int32"), ("dst", "int32"), ("data", pa.binary(32)), ("ts", "int64")])
    checked = check(Sessions, Shaped(packet, ("src", "dst")), schema)
    assert "hash order" in checked.claims


# Join has two inputs, which come to it as one, widened to the columns of both.

SIDE = pa.schema([("k", "float64"), ("ts", "int64"), ("n", "int64")])


class Pairs(Join):
    """`Join` of rows that say of which side they are, and are not widened yet."""

    joined = JoinSpec.of(SIDE, SIDE, "k", {"ts": 5}, "_right")
    output = joined.output

    def open(self, context: Context) -> None:
        super().open(replace(context, parameters={"joined": self.joined}))

    def process_with_punctuations(self, batch: Batch, punctuations: Sequence[Punctuation]) -> Batch | None:
        side = batch.column("side")
        columns = [side]
        for number in (0, 1):
            is_own = pc.equal(side, pa.scalar(number, pa.uint8()))
            columns += [pc.if_else(is_own, batch.column(name), None) for name in SIDE.names]
        arrow = pa.RecordBatch.from_arrays(columns, widened_names(self.joined.sides))
        wide = Batch(arrow, batch.sn, batch.sub, batch.partition, batch.level, batch.output, batch.step)
        return super().process_with_punctuations(wide, punctuations)


class PairsByRows(Pairs):
    """The same with a bound on the number of rows between."""

    joined = JoinSpec.of(SIDE, SIDE, "k", 3, "_right")


@pytest.mark.parametrize("operator", [Pairs, pytest.param(PairsByRows, marks=pytest.mark.long)])
def test_joins_pass(operator: Any) -> None:
    row = {
        "side": st.integers(0, 1),
        "k": st.sampled_from([0.0, -0.0, math.nan, None]),
        "ts": st.none() | st.integers(0, 30),
        "n": st.integers(0, 9),
    }
    schema = pa.schema([("side", "uint8"), *SIDE])
    assert "hash order" in check(operator, Shaped(row, ("k",)), schema, event_time="ts").claims
