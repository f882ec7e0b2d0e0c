"""Joins and lookups against DuckDB: nulls, NaN, ties, time out of order, and empty input."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from flux.model.operator import OperatorStep
from flux.operators import Lookup
from flux.operators.join_spec import lookup_spec
from tests.operators.feeding import PARTITIONS, cuts, opened, tuples
from tests.operators.test_join import Event, joined_of, outputs
from tests.operators.test_lookup import LEFT, RIGHT
from tests.operators.test_lookup import batch_of as lookup_batch_of

LATENESS = 10
KEYS = st.sampled_from([0.0, -0.0, 1.5, math.nan, None])
_JOINS = {"inner": "JOIN", "left": "LEFT JOIN", "right": "RIGHT JOIN", "outer": "FULL JOIN"}


@st.composite
def timelines(draw: Any) -> list[Event]:
    """Rows of two sides, up to `LATENESS` out of order, with ties; and watermarks that make none of them late."""
    events: list[Event] = []
    newest = 0
    for _ in range(draw(st.integers(0, 30))):
        newest += draw(st.integers(0, 6))
        time = draw(st.none() | st.integers(0, LATENESS).map(lambda back, now=newest: now - back))
        events.append((draw(st.integers(0, 1)), draw(KEYS), time))
        if draw(st.integers(0, 3)) == 0:
            events.append((-1, None, newest - LATENESS))
    return [*events, (-2, None, 0)]


@cache
def database() -> Any:
    """A connection for all examples: to make one takes longer than an example."""
    connection = duckdb.connect()
    connection.execute("SET threads TO 1")
    return connection


def in_duckdb(events: Sequence[Event], how: str, near: str) -> list[tuple[Any, ...]]:
    """The rows of a join: key, time and number of ours, number and time of theirs."""
    connection = database()
    for side, name in enumerate(("a", "b")):
        rows = [(key, time, n) for n, (of, key, time) in enumerate(events) if of == side]
        table = pa.table(
            {
                "k": pa.array([row[0] for row in rows], pa.float64()),
                "ts": pa.array([row[1] for row in rows], pa.int64()),
                "n": pa.array([row[2] for row in rows], pa.int64()),
            }
        )
        connection.register(name, table)
    return connection.execute(
        f"""SELECT CASE WHEN a.n IS NULL THEN b.k ELSE a.k END, a.ts, a.n, b.n, b.ts
            FROM a {_JOINS[how]} b ON a.k = b.k AND {near}"""
    ).fetchall()


def comparable(rows: Any) -> list[str]:
    """Rows as text, in any order; minus zero is the key zero."""
    return sorted(repr(tuple(0.0 if value == 0 and value is not False else value for value in row)) for row in rows)


@pytest.mark.parametrize("how", _JOINS)
@settings(max_examples=12, deadline=None)
@given(events=timelines(), bound=st.integers(0, 12), data=st.data())
@example(events=[(-2, None, 0)], bound=0, data=None)
@example(events=[(0, 1.5, 3), (-2, None, 0)], bound=0, data=None)
@example(events=[(1, math.nan, 3), (1, None, None), (-2, None, 0)], bound=0, data=None)
def test_a_join_by_time_is_that_of_sql(how: str, events: list[Event], bound: int, data: Any) -> None:
    batches = [(0, len(events))] if data is None else data.draw(cuts(len(events)))
    moves = [] if data is None else data.draw(st.lists(st.integers(0, PARTITIONS - 1), max_size=len(batches)))
    found, _ = outputs(joined_of(pa.float64(), {"ts": bound}, how), events, batches, moves)
    expected = in_duckdb(events, how, f"abs(a.ts - b.ts) <= {bound}")
    assert comparable(row for _, row in found) == comparable(expected)


@pytest.mark.parametrize("how", _JOINS)
@settings(max_examples=12, deadline=None)
@given(events=timelines(), within=st.none() | st.integers(0, 6), data=st.data())
def test_a_join_by_rows_is_that_of_sql(how: str, events: list[Event], within: int | None, data: st.DataObject) -> None:
    batches = data.draw(cuts(len(events)))
    moves = data.draw(st.lists(st.integers(0, PARTITIONS - 1), max_size=len(batches)))
    found, _ = outputs(joined_of(pa.float64(), within, how), events, batches, moves)
    expected = in_duckdb(events, how, "TRUE" if within is None else f"abs(a.n - b.n) <= {within}")
    assert comparable(row for _, row in found) == comparable(expected)


@pytest.mark.parametrize("how", ["left", "inner"])
@settings(max_examples=12, deadline=None)
@given(
    events=st.lists(
        st.tuples(
            st.integers(0, 1),
            st.sampled_from(["a", "b", "", None]),
            st.sampled_from([0.5, math.nan]),
            st.none() | st.sampled_from(["x", "y"]),
        ),
        max_size=30,
    ),
    data=st.data(),
)
def test_a_lookup_is_an_asof_join_by_position(how: str, events: list[Any], data: st.DataObject) -> None:
    spec = lookup_spec(LEFT, RIGHT, {"k": "id"}, "_right", how)
    step = OperatorStep(Lookup, {"joined": spec}, "Lookup", spec.ours, PARTITIONS, 0, spec.output)
    hosted = opened(step)
    found: list[tuple[Any, ...]] = []
    for start, stop in data.draw(cuts(len(events))):
        out = hosted.process(lookup_batch_of(events[start:stop], start)) if stop > start else None
        found += [] if out is None else tuples(out)
    connection = database()
    numbered = list(enumerate(events))
    ours = [(key, n) for n, (side, key, *_) in numbered if not side]
    theirs = [(key, v, name, n) for n, (side, key, v, name) in numbered if side]
    connection.register("a", pa.table({"k": column(ours, 0, pa.string()), "n": column(ours, 1, pa.int64())}))
    kinds = {"k": pa.string(), "v": pa.float64(), "name": pa.string(), "n": pa.int64()}
    connection.register("b", pa.table({name: column(theirs, i, kind) for i, (name, kind) in enumerate(kinds.items())}))
    expected = connection.execute(
        f"""SELECT a.k, a.n, b.v, b.name FROM a ASOF {"LEFT" if how == "left" else ""} JOIN b
            ON a.k = b.k AND a.n >= b.n ORDER BY a.n"""
    ).fetchall()
    assert repr(found) == repr(expected)


def column(rows: Sequence[tuple[Any, ...]], place: int, kind: Any) -> Any:
    return pa.array([row[place] for row in rows], kind)
