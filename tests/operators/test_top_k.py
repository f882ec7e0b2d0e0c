"""TopK against a plain loop and pandas: whole rows, by rank, at watermarks or once for each window."""

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
from flux.operators import TopK
from flux.types.errors import PlanError
from tests.operators.feeding import PARTITIONS, step_of
from tests.operators.timeline import Timeline, cut_places, played

SCHEMA = pa.schema([("k", pa.string()), ("x", pa.float64()), ("ts", pa.int64()), ("n", pa.int64()), ("m", pa.int64())])
DIRECTIONS = ("ascending", "descending")
VALUES = st.none() | st.integers(0, 4).map(float) | st.sampled_from([-0.0, math.nan, math.inf, -math.inf])
ROWS = st.lists(st.tuples(st.sampled_from(["a", "b", "c", None]), VALUES, st.none() | st.integers(0, 99)), max_size=50)
MOVES = st.lists(st.integers(0, PARTITIONS - 1), max_size=12)


def batch_of(rows: list[tuple[Any, ...]]) -> pa.RecordBatch:
    numbered = [(*row, n, n % 3) for n, row in enumerate(rows)]
    columns = [pa.array([row[i] for row in numbered], field.type) for i, field in enumerate(SCHEMA)]
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


class Plain:
    """The first rows of each key and window, in a plain loop."""

    def __init__(self, k: int, largest: bool, size: int | None, by_n: int = 0, ties: bool = False) -> None:
        self.k, self.sign, self.size, self.by_n, self.ties = k, -1 if largest else 1, size, by_n, ties
        self.held: dict[Any, list[tuple[Any, ...]]] = {}
        self.result: dict[Any, list[tuple[Any, ...]]] = {}
        self.out: list[tuple[int, tuple[Any, ...]]] = []
        self.late = 0

    def add(self, row: tuple[Any, ...], watermark: float) -> None:
        key, x, ts, *_ = row
        window = None
        if self.size is not None:
            window = None if ts is None else ts // self.size
            if window is None or (window + 1) * self.size <= watermark:
                self.late += 1
                return
        if x is not None and x == x:
            rows = self.held.setdefault((window, key), [])
            rows.append(row)
            rows.sort(key=self.place)
            rows[:] = [row for row in rows if self.rank(row, rows) <= self.k]

    def place(self, row: tuple[Any, ...]) -> tuple[float, int]:
        return self.sign * row[1], self.by_n * (row[3] % 3)

    def rank(self, row: tuple[Any, ...], rows: list[tuple[Any, ...]]) -> int:
        before = [each for each in rows if self.place(each) < self.place(row)] if self.ties else rows[: rows.index(row)]
        return len(before) + 1

    def mark(self, sn: int, watermark: float) -> None:
        for place in list(self.held):
            if self.size is None:
                rows = self.held[place]
                if rows == self.result.get(place):
                    continue
                self.result[place] = list(rows)
            elif (place[0] + 1) * self.size <= watermark:
                rows = self.held.pop(place)
            else:
                continue
            self.out += [(sn, (*row, self.rank(row, rows))) for row in rows]


@settings(deadline=None, max_examples=60)
@given(
    rows=ROWS,
    k=st.integers(1, 4),
    largest=st.booleans(),
    size=st.none() | st.integers(1, 40),
    prune_at=st.sampled_from([1, 3, 16_384]),
    by_n=st.sampled_from([0, 1, -1]),
    ties=st.booleans(),
    data=st.data(),
)
def test_the_first_rows_of_each_key_are_those_of_a_plain_loop(
    rows: list[Any],
    k: int,
    largest: bool,
    size: int | None,
    prune_at: int,
    by_n: int,
    ties: bool,
    data: st.DataObject,
) -> None:
    told = EventTime(column="ts", lateness_ms=data.draw(st.integers(0, 20)), every_ms=data.draw(st.integers(1, 20)))
    batch = batch_of(rows)
    timeline = Timeline.of(batch, ("k",), told)
    windowed = {} if size is None else {"time": "ts", "size_ms": size}
    order: dict[str, Any] = {"by": "x", "largest": largest}
    if by_n:
        order = {"by": {"x": DIRECTIONS[largest], "m": DIRECTIONS[by_n < 0]}}
    parameters: dict[str, Any] = {"k": k, "ties": "all" if ties else "first", **order, **windowed}
    step = step_of(TopK, SCHEMA, ("k",), **parameters)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("flux.operators.top_k._PRUNE_FROM_ROWS", prune_at)
        found, late = played(step, timeline, data.draw(cut_places(len(rows))), data.draw(MOVES))
        assert repr(played(step, timeline)) == repr((found, late))
    plain, watermark, punctuations = Plain(k, largest, size, by_n, ties), -math.inf, list(timeline.punctuations)
    for sn, row in zip(timeline.sn.tolist(), batch.to_pylist(), strict=True):
        plain.add(tuple(row.values()), watermark)
        if punctuations[0].sn == sn + 1 and punctuations[0].kind == "watermark":
            mark = punctuations.pop(0)
            watermark = mark.value if mark.value is not None else math.inf
            plain.mark(mark.sn, watermark)
    plain.mark(punctuations[0].sn, math.inf)
    assert late == plain.late
    assert sorted(map(repr, found)) == sorted(map(repr, plain.out))


@pytest.mark.parametrize("keys", [1, 500, 20_000])
def test_the_first_rows_are_those_of_pandas(keys: int) -> None:
    rng = np.random.default_rng(keys)
    count = 20_000
    key = rng.permutation(count) if keys == count else rng.integers(0, keys, count)
    frame = pd.DataFrame({"k": key, "x": rng.integers(0, 900, count), "n": range(count)})
    expected = frame.sort_values(["k", "x", "n"], ascending=[True, False, True]).groupby("k").head(3)
    rows = pa.RecordBatch.from_pandas(frame, preserve_index=False)
    step = step_of(TopK, rows.schema, ("k",), k=3, by="x")
    found, _ = played(step, Timeline.of(rows, ("k",), None), range(0, count, 999), [1, 0])
    got = sorted((row for _, row in found), key=lambda row: (row[0], row[-1]))
    assert [row[:3] for row in got] == list(expected.itertuples(index=False, name=None))


def test_keys_stand_in_order_and_ranks_in_theirs() -> None:
    rows = [("b", 1.0, 1), ("a", 1.0, 1), (None, 5.0, 1), ("a", 3.0, 1), ("a", 3.0, 1)]
    timeline = Timeline.of(batch_of(rows), ("k",), None)
    timeline.partition[:] = 2
    found = [(row[0], row[3], row[5]) for _, row in played(step_of(TopK, SCHEMA, ("k",), k=2, by="x"), timeline)[0]]
    assert found == [("a", 3, 1), ("a", 4, 2), ("b", 0, 1), (None, 2, 1)]


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ({"k": 0}, "k is how many rows"),
        ({"by": "nope"}, "by='nope' must be a column of numbers"),
        ({"by": "k"}, "got string"),
        ({"by": 3}, "by is the column"),
        ({"size_ms": 5}, "are given both or neither"),
        ({"by": []}, "by is the column"),
        ({"by": ["x", "x"]}, "a list of different columns"),
        ({"by": {"x": "up"}}, "by is the column.*got {'x': 'up'}, True"),
        ({"by": {"x": "ascending"}, "largest": False}, "leave largest out"),
        ({"by": ["x", "k"]}, "by='k' must be a column of numbers, dates or times; got string"),
        ({"ties": "some"}, "ties is 'first' or 'all'; got 'some'"),
    ],
)
def test_what_cannot_be_asked_for_is_refused_with_the_plan(wrong: dict[str, Any], text: str) -> None:
    with pytest.raises(PlanError, match=text):
        step_of(TopK, SCHEMA, ("k",), **({"k": 2, "by": "x"} | wrong))
