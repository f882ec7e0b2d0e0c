"""VWAP: what the example gives is what pandas gives, late trades and kills included."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import strategies as st

import flux
from experiments.examples import vwap
from flux.testing import check_operator

from .shapes import SHAPES, run_through_kills, with_columns

ROWS = 600
TRADES = vwap.trades(ROWS, seed=8)


def in_pandas(trades: pd.DataFrame) -> tuple[pd.DataFrame, int]:
    """The windows, by symbol and time, and how many trades were too late: the watermark before a row decides."""
    every = vwap.SECOND_MS // 4
    reached = ((trades.ts - vwap.LATENESS_MS) // every * every).cummax().ffill().shift(fill_value=-(10**9))
    trades = trades.assign(window_start=trades.ts // vwap.SECOND_MS * vwap.SECOND_MS)
    is_late = (trades.window_start + vwap.SECOND_MS <= reached).fillna(True)
    turnover = trades.price * trades.volume
    in_time = trades.assign(turnover=turnover, shares=trades.volume.where(turnover.notna()))[~is_late]
    windows = in_time.groupby(["symbol", "window_start"], as_index=False, dropna=False)
    sums = windows[["volume", "turnover", "shares"]].sum(min_count=1)
    sums.insert(2, "trades", windows.size()["size"].astype("Int64"))
    return sums.assign(vwap=sums.turnover / sums.shares).drop(columns=["turnover", "shares"]), int(is_late.sum())


def as_frame(report: flux.Report) -> Any:
    frame = nullable(report.table).sort_values(["symbol", "window_start"], ignore_index=True)
    return frame[["symbol", "window_start", "trades", "volume", "vwap"]]


def nullable(table: pa.Table) -> Any:
    """A frame in which integers may be null, as they may in Arrow."""
    return table.to_pandas(types_mapper={pa.int64(): pd.Int64Dtype(), pa.float64(): pd.Float64Dtype()}.get)


def some_null(name: str, remainder: int) -> list[Any]:
    """A column of which some values are not known, beside rows of which others are not."""
    return [None if n * 7 % 19 == remainder else value for n, value in enumerate(TRADES[name].to_pylist())]


COLUMNS = SHAPES | {
    "one key": {"symbol": ["KO"] * ROWS},
    "all keys distinct": {"symbol": [f"once {n}" for n in range(ROWS)]},
    "nulls": {name: some_null(name, place) for place, name in enumerate(TRADES.schema.names)},
    "out-of-order time": {"ts": TRADES["ts"].to_numpy() - np.random.default_rng(8).integers(0, 2_000, ROWS)},
}


@pytest.mark.long
@pytest.mark.parametrize("shape", COLUMNS)
def test_the_output_is_that_of_pandas_though_every_first_copy_dies(shape: str, tmp_path: Path) -> None:
    data = with_columns(TRADES, COLUMNS[shape])
    expected, late = in_pandas(nullable(data))
    report = run_through_kills(vwap.flow, data, shape, tmp_path)
    pd.testing.assert_frame_equal(as_frame(report), expected, check_exact=True)
    assert report.late == late > 0


def test_its_window_keeps_the_promises_of_an_operator() -> None:
    trade = st.fixed_dictionaries(
        {
            "symbol": st.sampled_from(["KO", "IBM", None]),
            "price": st.none() | st.integers(1, 9),
            "volume": st.none() | st.integers(0, 9),
            "ts": st.none() | st.integers(0, 30),
        }
    )
    aggregates = {"vwap": (vwap.weighted_mean, ("price", "volume"), "float64")}
    check_operator(
        flux.operators.TimeWindow,
        st.lists(trade, max_size=10),
        key="symbol",
        parameters={"time": "ts", "size_ms": 10, "aggregates": aggregates},
        event_time="ts",
        schema=vwap.trades(1).schema,
        examples=10,
    )
