"""Distinct against a plain loop: the first row of each key, for ever or once in each window."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flux.model.event_time import EventTime
from flux.operators import Distinct
from flux.types.errors import PlanError
from tests.operators.feeding import PARTITIONS, step_of
from tests.operators.timeline import Timeline, cut_places, played

SCHEMA = pa.schema([("k", pa.float64()), ("name", pa.string()), ("ts", pa.int64()), ("n", pa.int64())])
ROWS = st.lists(
    st.tuples(
        st.sampled_from([0.0, -0.0, 1.5, math.nan, None]),
        st.sampled_from(["a", "b", None]),
        st.none() | st.integers(0, 99),
    ),
    max_size=50,
)
MOVES = st.lists(st.integers(0, PARTITIONS - 1), max_size=12)


def batch_of(rows: list[tuple[Any, ...]]) -> pa.RecordBatch:
    numbered = [(*row, n) for n, row in enumerate(rows)]
    columns = [pa.array([row[i] for row in numbered], field.type) for i, field in enumerate(SCHEMA)]
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


def plain(rows: list[tuple[Any, ...]], told: EventTime, size: int | None) -> tuple[list[int], int]:
    """The numbers of the rows that pass, and how many were late."""
    seen, passed, late, watermark = set(), [], 0, -math.inf
    for n, (k, name, ts) in enumerate(rows):
        key = ("nan" if k != k else k, name, None if size is None or ts is None else ts // size)
        if size is not None and (ts is None or (ts // size + 1) * size <= watermark):
            late += 1
        elif key not in seen:
            seen.add(key)
            passed.append(n)
        if ts is not None:
            watermark = max(watermark, (ts - told.lateness_ms) // told.every_ms * told.every_ms)
    return passed, late


@settings(deadline=None, max_examples=60)
@given(ROWS, st.none() | st.integers(1, 40), st.integers(0, 20), st.integers(1, 20), st.data())
def test_the_first_row_of_each_key_passes_as_it_is(
    rows: list[Any], size: int | None, lateness: int, every: int, data: st.DataObject
) -> None:
    told = EventTime(column="ts", lateness_ms=lateness, every_ms=every)
    timeline = Timeline.of(batch_of(rows), ("k",), told)
    windowed = {} if size is None else {"time": "ts", "size_ms": size}
    step = step_of(Distinct, SCHEMA, ("k",), on=("k", "name"), **windowed)
    found, late = played(step, timeline, data.draw(cut_places(len(rows))), data.draw(MOVES))
    passed, late_rows = plain(rows, told, size)
    assert late == late_rows
    expected = [(int(timeline.sn[n]), (*rows[n], n)) for n in passed]
    assert repr(found) == repr(expected)


@pytest.mark.parametrize("keys", [1, 500, 20_000])
def test_what_passes_is_what_pandas_does_not_drop(keys: int) -> None:
    rng = np.random.default_rng(keys)
    key = rng.permutation(20_000) if keys == 20_000 else rng.integers(0, keys, 20_000)
    frame = pd.DataFrame({"k": key, "n": range(20_000)})
    rows = pa.RecordBatch.from_pandas(frame, preserve_index=False)
    found, _ = played(
        step_of(Distinct, rows.schema, ("k",)), Timeline.of(rows, ("k",), None), range(0, 20_000, 999), [1]
    )
    assert [row for _, row in found] == list(frame.drop_duplicates("k").itertuples(index=False, name=None))


@pytest.mark.parametrize(
    ("parameters", "text"),
    [
        ({"on": ("name",)}, "may be in different partitions"),
        ({"on": ("k", "nope")}, "expected a key column 'nope'"),
        ({"time": "ts"}, "are given both or neither"),
        ({"time": "name", "size_ms": 10}, "expected timestamps"),
    ],
)
def test_what_cannot_be_asked_for_is_refused_with_the_plan(parameters: dict[str, Any], text: str) -> None:
    with pytest.raises(PlanError, match=text):
        step_of(Distinct, SCHEMA, ("k",), **parameters)
