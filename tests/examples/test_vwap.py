"""VWAP: what the example gives is what pandas gives, late trades and a kill included."""

from __future__ import annotations

from typing import Any

import pandas as pd
from hypothesis import strategies as st

import flux
from experiments.examples import running, vwap
from flux.testing import check_operator


def in_pandas(trades: pd.DataFrame) -> tuple[pd.DataFrame, int]:
    """The windows, by symbol and time, and how many trades were too late: the watermark before a row decides."""
    every = vwap.SECOND_MS // 4
    reached = ((trades.ts - vwap.LATENESS_MS) // every * every).cummax().shift(fill_value=-(10**9))
    trades = trades.assign(window_start=trades.ts // vwap.SECOND_MS * vwap.SECOND_MS)
    is_late = trades.window_start + vwap.SECOND_MS <= reached
    in_time = trades[~is_late].assign(turnover=trades.price * trades.volume)
    windows = in_time.groupby(["symbol", "window_start"], as_index=False).agg(
        trades=("ts", "size"), volume=("volume", "sum"), turnover=("turnover", "sum")
    )
    return windows.assign(vwap=windows.turnover / windows.volume).drop(columns="turnover"), int(is_late.sum())


def as_frame(report: flux.Report) -> Any:
    frame = report.table.to_pandas().sort_values(["symbol", "window_start"], ignore_index=True)
    return frame[["symbol", "window_start", "trades", "volume", "vwap"]]


def test_the_output_is_that_of_pandas_though_a_site_is_killed() -> None:
    data = vwap.trades(3_000, seed=7)
    expected, late = in_pandas(data.to_pandas())
    report = running.run_with_kill(data, vwap.flow, kill_at=len(expected) // 2)
    assert [failure.site for failure in report.failures] == [running.VICTIM]
    pd.testing.assert_frame_equal(as_frame(report), expected, check_exact=True)
    assert report.late == late > 0


def test_its_window_keeps_the_promises_of_an_operator() -> None:
    trade = st.fixed_dictionaries(
        {
            "symbol": st.sampled_from(["KO", "IBM"]),
            "price": st.integers(1, 9),
            "volume": st.integers(1, 9),
            "ts": st.integers(0, 30),
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
