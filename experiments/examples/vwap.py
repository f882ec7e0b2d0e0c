"""The volume-weighted average price of each symbol in each second, from trades that come out of order.

Shows event time. A trade says when it happened, which is not when it comes: most are a little late, a few are very
late. `lateness_ms` is how long a second stays open for them. What comes later still is dropped and counted, the same
trades in every run, because the watermarks that close a second depend on the rows alone and not on a clock.

VWAP itself is an aggregate of one's own: a function of the two columns of a window.

    python -m experiments.examples.vwap --rows 20000 --kill
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

import flux
from experiments.examples.running import main

SYMBOLS = ("AAPL", "IBM", "KO", "MSFT", "ORCL")
SECOND_MS = 1_000
LATENESS_MS = 250


def trades(rows: int, seed: int = 0) -> pa.Table:
    """Trades in the order in which they come, a hundred to a second; prices are walks, in cents."""
    draw = np.random.default_rng(seed)
    symbol = draw.integers(0, len(SYMBOLS), rows)
    price = np.empty(rows, np.int64)
    for number in range(len(SYMBOLS)):
        own = symbol == number
        price[own] = 10_000 + 5_000 * number + np.cumsum(draw.integers(-3, 4, own.sum()))
    comes = np.cumsum(draw.integers(1, 20, rows))
    is_very_late = draw.random(rows) < 0.01
    delay = np.where(is_very_late, draw.integers(1_000, 3_000, rows), draw.integers(0, LATENESS_MS, rows))
    return pa.table(
        {
            "symbol": pa.array(np.array(SYMBOLS)[symbol]),
            "price": price,
            "volume": draw.integers(1, 50, rows) * 100,
            "ts": comes - delay,
        }
    )


def weighted_mean(price: Any, volume: Any) -> float | None:
    """What a share cost on average. Both are whole numbers, so the sums are exact; nulls are masked.

    A trade of which price or volume is not known does not count; None, which is null, if none does.
    """
    turnover = price * volume
    shares = np.ma.array(volume, mask=np.ma.getmaskarray(turnover)).sum()
    return float(turnover.sum() / shares) if shares else None


def flow(source: flux.sources.Source) -> flux.Dataflow:
    """One row for each symbol and second: symbol, window_start, window_end, trades, volume, vwap."""
    dataflow = flux.Dataflow("vwap")
    ticker = dataflow.source(source, event_time="ts", lateness_ms=LATENESS_MS, watermark_every_ms=SECOND_MS // 4)
    windows = ticker.exchange("symbol", partitions=8).apply(
        flux.operators.TimeWindow,
        time="ts",
        size_ms=SECOND_MS,
        aggregates={
            "trades": "count",
            "volume": ("sum", "volume"),
            "vwap": (weighted_mean, ("price", "volume"), "float64"),
        },
    )
    windows.sink(flux.sinks.Collect())
    return dataflow


if __name__ == "__main__":
    raise SystemExit(main(__doc__, trades, flow))
