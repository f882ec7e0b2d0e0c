"""Features for fraud detection: how busy have a card and a merchant been in the hour before each payment?

Shows a stream that feeds two branches, and their join. The same operator, `LastHour`, stands in both: once behind an
exchange by card, once by merchant, so the two halves of a payment's features are made on different sites. The join
brings them together again by the number of the payment: one row out for each payment, never a half, whoever dies.

Payments come a little out of order, and who decides about one cannot wait for others. So a payment counts those of the
hour before it, by their times, that have come by then. They are kept long enough for a payment that comes less than
`LATE_MS` behind the newest of its card or merchant. Of one further behind nothing is told: better than too little.

    python -m experiments.examples.fraud --rows 20000 --kill
"""

from __future__ import annotations

from bisect import insort
from typing import Any

import numpy as np
import pyarrow as pa

import flux
from experiments.examples.running import main

CARDS, MERCHANTS = 200, 20
HOUR_MS = 3_600_000
LATE_MS = HOUR_MS // 6


def payments(rows: int, seed: int = 0) -> pa.Table:
    """Payments as they come, one in half a minute or so: a little late, some of them very; few cards are used often."""
    draw = np.random.default_rng(seed)
    delay = np.where(draw.random(rows) < 0.05, draw.integers(0, 2 * HOUR_MS, rows), draw.integers(0, LATE_MS, rows))
    return pa.table(
        {
            "payment": np.arange(rows),
            "card": (CARDS * draw.random(rows) ** 3).astype(np.int64),
            "merchant": draw.integers(0, MERCHANTS, rows),
            "cents": draw.integers(100, 50_000, rows),
            "ts": np.cumsum(draw.integers(1, 60_000, rows)) - delay,
        }
    )


class LastHour(flux.KeyedOperator):
    """For each payment, how many its key has had in the hour up to it, itself included, and their mean amount.

    The state of a key is a list of (time, amount), by time. It goes from site to site as it is; nothing has to be said.
    """

    output = {"payment": "int64", "cents": "int64", "count": "int64", "mean": "float64"}  # noqa: RUF012

    def on_tuple(self, key: Any, row: Any, state: Any) -> Any:
        told = {"payment": row.payment, "cents": row.cents, "count": None, "mean": None}
        if row.ts is None or row.cents is None:
            return state, [told]
        recent: list[tuple[int, int]] = [] if state is None else state
        insort(recent, (row.ts, row.cents))
        newest, _ = recent[-1]
        if row.ts > newest - LATE_MS:
            hour = [cents for ts, cents in recent if row.ts - HOUR_MS < ts <= row.ts]
            told |= {"count": len(hour), "mean": sum(hour) / len(hour)}
        return [paid for paid in recent if paid[0] > newest - LATE_MS - HOUR_MS], [told]


def times_usual(batch: Any) -> Any:
    """The amount as a multiple of what the merchant took on average; null where that is nothing, or not known."""
    return batch["cents"] / np.ma.masked_equal(batch["merchant_mean"], 0)


def flow(source: flux.sources.Source) -> flux.Dataflow:
    """One row for each payment: its number and amount, and its features."""
    dataflow = flux.Dataflow("fraud")
    paid = dataflow.source(source)
    by_card = paid.exchange("card", partitions=16).apply(LastHour)
    by_merchant = paid.exchange("merchant", partitions=8).apply(LastHour)
    both = by_card.select("payment", "cents", card_count="count", card_mean="mean").join(
        by_merchant.select("payment", merchant_count="count", merchant_mean="mean"), on="payment", within=0
    )
    names = ("payment", "cents", "card_count", "card_mean", "merchant_count", "merchant_mean")
    both.select(*names, times_usual=(times_usual, "float64")).sink(flux.sinks.Collect())
    return dataflow


if __name__ == "__main__":
    raise SystemExit(main(__doc__, payments, flow))
