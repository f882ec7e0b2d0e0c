"""VWAP: what the example gives is what pandas gives, late trades and a kill included."""

from __future__ import annotations

from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import strategies as st

import flux
from experiments.examples import running, vwap
from flux.testing import check_operator


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


def adversarial() -> pa.Table:
    """Nulls in every column; most trades are of one symbol, many of one that comes once; some come far too late."""
    data = vwap.trades(2_000, seed=8).to_pydict()
    for n in range(2_000):
        data["symbol"][n] = ("KO", "KO", None, f"once {n}")[n % 4]
        for column, remainder in (("price", 1), ("volume", 2), ("ts", 3)):
            if n * 7 % 19 == remainder:
                data[column][n] = None
    return pa.table(data)


@pytest.mark.parametrize("data", [vwap.trades(3_000, seed=7), adversarial()], ids=["random", "adversarial"])
def test_the_output_is_that_of_pandas_though_a_site_is_killed(data: pa.Table) -> None:
    expected, late = in_pandas(nullable(data))
    report = running.run_with_kill(data, vwap.flow, kill_at=len(expected) // 2)
    assert [failure.site for failure in report.failures] == [running.VICTIM]
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
