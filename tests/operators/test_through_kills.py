"""Every operator of the library in real processes of which two die, on rows that nobody wishes for, against DuckDB."""

from __future__ import annotations

import math
from collections.abc import Callable
from decimal import Context, Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import flux
from experiments.dmz import Sessions
from flux.operators import CountWindow, Distinct, GroupBy, SessionWindow, TimeWindow, TopK
from tests.operators.in_duckdb import PARTITIONS, Batch, Row, differ
from tests.operators.plain_aggregates import KEPT, OF_ANY_TYPE, RUNNING
from tests.runtime.through_kills import through_kills

ROWS = 1_200
LATENESS_MS, EVERY_MS, SIZE_MS, SLIDE_MS = 30, 25, 100, 40
GAP_MS = 9
OFFSET_MS, OVER_ALL = 35, {"n": "count", "most": ("max", "i")}
NEAR_MS, NEAR_ROWS = 20, 15
ANY_ORDER = "pairs, and rows in none"  # Where the latter are emitted is tested with the join.
FIRST = 3
TIED = {"w": "ascending", "host": "descending"}
HISTORY, SLIDE = 3, 2
EXACT = Context(prec=40)
SIZES = (1, 0, 7, 60, 0, 200, 31)  # Of batches: some are empty.


# Of the floats `x` all that there are, and some of the integers `i`.
OF_INTEGERS: dict[str, Any] = {
    "whole": ("sum", "i"),
    "whole_mean": ("avg", "i"),
    "whole_var": ("variance", "i"),
    "whole_least": ("min", "i"),
}
SO_FAR = RUNNING | OF_INTEGERS | OF_ANY_TYPE
OF_WINDOWS = SO_FAR | KEPT

KEYS: dict[str, Callable[[Any], pa.Array]] = {
    "few keys": lambda draw: pa.array(draw.choice([0.0, -0.0, 1.5, -7.0, math.nan, None], ROWS).tolist(), pa.float64()),
    "one key": lambda draw: pa.array(["only"] * ROWS),
    "all keys distinct": lambda draw: pa.array([None, *draw.permutation(ROWS)[1:].tolist()], pa.int64()),
}


def arrivals(keys: str) -> pa.Table:
    """Rows out of order, some far too late, some without a time; with nulls and NaN in every column that may have them.

    Floats are eighths: their sums are the same in any order.
    """
    draw = np.random.default_rng(len(keys))
    t = np.arange(ROWS) + draw.integers(-40, 40, ROWS) - 300 * (draw.random(ROWS) < 0.02)
    x = draw.integers(-8_000, 8_000, ROWS) / 8
    x[(draw.random(ROWS) < 0.06) & (np.arange(ROWS) > ROWS * 3 // 4)] = math.nan  # From then on sums so far are NaN.
    w = np.where(draw.random(ROWS) < 0.1, math.nan, draw.integers(-80, 80, ROWS) / 8)
    key = KEYS[keys](draw)
    number = np.arange(ROWS)
    host = {"few keys": number * 7 % 5, "one key": number * 0, "all keys distinct": number}[keys].astype(np.int32)
    packets = draw.choice(["S1", "S2", "E.", "x."], ROWS)
    return pa.table(
        {
            "number": number,
            "k": key,
            "t": pa.array(t, mask=draw.random(ROWS) < 0.02),
            "x": pa.array(x, mask=draw.random(ROWS) < 0.1),
            "i": pa.array(draw.integers(-(2**40), 2**40, ROWS), mask=draw.random(ROWS) < 0.1),
            "s": pa.array(draw.choice(["", "a", "ab", "b", "ä", "z"], ROWS), mask=draw.random(ROWS) < 0.3),
            "d": decimals(draw),
            "w": pa.array(w, mask=draw.random(ROWS) < 0.4),
            "host": pa.array(host, mask=draw.random(ROWS) < 0.1),
            "src": pa.array(host, mask=draw.random(ROWS) < 0.1),
            "dst": pa.array(draw.integers(0, 2, ROWS, np.int32), mask=draw.random(ROWS) < 0.1),
            "data": pa.array(
                [packet.encode() for packet in packets.tolist()], pa.binary(), mask=draw.random(ROWS) < 0.1
            ),
            "ts": pa.array(t * 3, mask=draw.random(ROWS) < 0.1),
        }
    )


def decimals(draw: np.random.Generator) -> pa.Array:
    """Decimals of up to 30 digits, some of them null."""
    digits = draw.integers(-(10**15), 10**15, (ROWS, 2)).tolist()
    values = [None if draw.random() < 0.2 else Decimal(a * 10**15 + b).scaleb(-4, EXACT) for a, b in digits]
    return pa.array(values, pa.decimal128(32, 4))


def is_left(batch: Any) -> Any:
    return batch["number"] % 3 == 0


def is_right(batch: Any) -> Any:
    return batch["number"] % 3 != 0


def flow_of(source: flux.sources.Source) -> flux.Dataflow:
    """One stream that feeds every operator of the library, each with a sink of its own, in the order of `expected`."""
    flow = flux.Dataflow("everything")
    rows = flow.source(source, event_time="t", lateness_ms=LATENESS_MS, watermark_every_ms=EVERY_MS)
    keyed = rows.exchange("k", partitions=PARTITIONS)
    window = {"time": "t", "size_ms": SIZE_MS}
    left = rows.filter(is_left, batch=True).select("k", "t", l="number")
    right = rows.filter(is_right, batch=True).select("k", "t", r="number")
    for told in (
        keyed.apply(TimeWindow, **window, aggregates=OF_WINDOWS),
        keyed.apply(TimeWindow, **window, slide_ms=SLIDE_MS, aggregates=OF_WINDOWS),
        rows.exchange(partitions=1).apply(TimeWindow, **window, offset_ms=OFFSET_MS, aggregates=OVER_ALL),
        keyed.apply(SessionWindow, time="t", gap_ms=GAP_MS, aggregates=OF_WINDOWS),
        keyed.apply(GroupBy, aggregates=SO_FAR),
        keyed.apply(GroupBy, aggregates=OF_WINDOWS, emit="watermarks"),
        keyed.apply(TopK, k=FIRST, by="x").select("k", "number", "rank"),
        keyed.apply(TopK, k=FIRST, by="x", **window).select("k", "number", "rank"),
        keyed.apply(TopK, k=FIRST, by=TIED, ties="all", **window).select("k", "number", "rank"),
        keyed.apply(Distinct, on=("k", "dst")).select("number"),
        keyed.apply(Distinct, **window).select("number"),
        rows.exchange("host", partitions=PARTITIONS).apply(CountWindow, history=HISTORY, slide=SLIDE, value="w"),
        keyed.apply(CountWindow, history=HISTORY, slide=SLIDE, aggregates=OF_WINDOWS),
        rows.exchange("src", "dst", partitions=PARTITIONS).apply(Sessions),
        left.join(right, on="k", within={"t": NEAR_MS}, partitions=PARTITIONS).select("l", "r"),
        left.join(right, on="k", within=NEAR_ROWS, partitions=PARTITIONS).select("l", "r"),
        left.join(right, on="k", within={"t": NEAR_MS}, partitions=PARTITIONS, how="outer").select("l", "r"),
    ):
        told.sink(flux.sinks.Collect())
    return flow


def expected(rows: pa.Table) -> tuple[dict[str, list[Row]], int]:
    """What each operator tells, and how many rows were late for one of them."""
    batch = Batch(rows, LATENESS_MS, EVERY_MS)
    near = f"abs(l_t - r_t) <= {NEAR_MS} AND earlier_t >= later_watermark - {NEAR_MS}"
    told = {
        "tumbling windows": batch.windows(SIZE_MS, SIZE_MS),
        "sliding windows": batch.windows(SIZE_MS, SLIDE_MS),
        "windows over all keys": batch.windows_over_all(SIZE_MS, OFFSET_MS),
        "session windows": batch.session_windows(GAP_MS),
        "groups": batch.running(),
        "groups at watermarks": batch.running_at_marks(),
        "first rows at watermarks": batch.top_at_marks(FIRST),
        "first rows of windows": batch.top_of_windows(FIRST, SIZE_MS),
        "ties of windows": batch.ties_of_windows(FIRST, SIZE_MS),
        "distinct": batch.distinct("k, dst"),
        "distinct in windows": batch.distinct("k", SIZE_MS),
        "count windows": batch.count_windows(HISTORY, SLIDE),
        "aggregates of count windows": batch.count_window_aggregates(HISTORY, SLIDE),
        "sessions": batch.sessions(),
        "pairs by time": batch.pairs(near),
        "pairs by rows": batch.pairs(f"abs(l_sn - r_sn) <= {NEAR_ROWS}"),
        ANY_ORDER: batch.pairs_and_others(near),
    }
    late = 4 * batch.late(SIZE_MS, SIZE_MS) + batch.late(SIZE_MS, SLIDE_MS) + batch.late_for_sessions(GAP_MS)
    return told, late + 2 * batch.below_watermark() + batch.late_over_all(SIZE_MS, OFFSET_MS)


@pytest.mark.parametrize("keys", ["few keys", *(pytest.param(k, marks=pytest.mark.long) for k in list(KEYS)[1:])])
def test_every_operator_tells_what_duckdb_does_though_two_sites_die(keys: str, tmp_path: Path) -> None:
    rows = arrivals(keys)
    told, late = expected(rows)
    report = through_kills(flow_of, rows, tmp_path, SIZES)
    for (what, wanted), table in zip(told.items(), report.tables, strict=True):
        found = [tuple(row.values()) for row in table.to_pylist()]
        if what == ANY_ORDER:
            found, wanted = sorted(found, key=repr), sorted(wanted, key=repr)
        assert not (difference := differ(found, wanted)), f"{what}, {difference}"
    assert report.late == late > 0
