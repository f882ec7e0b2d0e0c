"""Fraud features: each payment once and whole, with the features that DuckDB computes, whoever is killed.

It takes half a minute: each test is a run of real processes that die and are replaced.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import strategies as st

import flux
from experiments.examples import fraud
from flux.testing import check_operator

from .shapes import SHAPES, run_through_kills, with_columns

ROWS = 300
PAYMENTS = fraud.payments(ROWS, seed=7)


def in_duckdb(payments: pa.Table) -> list[tuple[Any, ...]]:
    """The features of all payments at once: `p` is the payment, `q` are those of its hour that came no later."""
    db = duckdb.connect()
    db.execute("SET threads TO 1")
    db.register("payments", payments.append_column("n", pa.array(range(payments.num_rows))))
    for key in ("card", "merchant"):
        # What is null is equal here; who has no time or no amount is neither counted nor told about.
        newest = f"max(CASE WHEN cents IS NOT NULL THEN ts END) OVER (PARTITION BY {key} ORDER BY n)"
        db.execute(f"""
            CREATE TABLE by_{key} AS
            WITH dated AS (SELECT *, ts > {newest} - {fraud.LATE_MS} AND cents IS NOT NULL AS is_told FROM payments)
            SELECT p.n, nullif(count(q.n), 0) AS count, sum(q.cents) / nullif(count(q.n), 0) AS mean
            FROM dated p LEFT JOIN payments q
            ON p.is_told AND q.n <= p.n AND q.{key} IS NOT DISTINCT FROM p.{key} AND q.cents IS NOT NULL
            AND q.ts > p.ts - {fraud.HOUR_MS} AND q.ts <= p.ts GROUP BY p.n""")
    return db.execute("""
        SELECT payment, cents, c.count, c.mean, m.count, m.mean, cents / nullif(m.mean, 0)
        FROM payments JOIN by_card c USING (n) JOIN by_merchant m USING (n) ORDER BY n""").fetchall()


SHUFFLED = np.random.default_rng(7).permutation(ROWS)
COLUMNS = SHAPES | {
    "one key": {
        "card": [7] * ROWS,
        "merchant": [1] * ROWS,
        "ts": [n // 8 * fraud.HOUR_MS // 10 for n in range(ROWS)],  # Many at a time, and some an hour apart.
    },
    # Some take nothing: there nothing is usual.
    "all keys distinct": {"card": range(ROWS), "merchant": range(ROWS), "cents": [n % 5 for n in range(ROWS)]},
    "nulls": {
        "card": [(None, 7, 7, n)[n % 4] for n in range(ROWS)],
        "merchant": [None if n % 5 == 0 else 1 for n in range(ROWS)],
        "cents": [None if n % 7 == 0 else n for n in range(ROWS)],
        "ts": [None if n % 11 == 0 else ts for n, ts in enumerate(PAYMENTS["ts"].to_pylist())],
    },
    "out-of-order time": {"card": [n % 3 for n in range(ROWS)], "ts": PAYMENTS["ts"].to_numpy()[SHUFFLED] // 8},
}


@pytest.mark.parametrize("shape", COLUMNS)
def test_the_output_is_that_of_duckdb_though_every_first_copy_dies(shape: str, tmp_path: Path) -> None:
    data = with_columns(PAYMENTS, COLUMNS[shape])
    report = run_through_kills(fraud.flow, data, shape, tmp_path)
    assert [tuple(row.values()) for row in report.table.to_pylist()] == in_duckdb(data)
    told = report.table["card_count"]
    assert told.null_count < ROWS
    assert told.null_count > 0 or shape in ("one key", "all keys distinct")


def test_a_payment_counts_those_of_its_hour_that_have_come_and_no_later_ones() -> None:
    hour, late = fraud.HOUR_MS, fraud.LATE_MS
    # The third comes late, but not too late; the fourth is as late as can be told, the fifth too late by a hair.
    ts = [0, hour, hour - 1, hour - late + 1, hour - late, hour]
    payments = {"payment": range(6), "card": [1] * 6, "merchant": [1] * 6, "cents": [1, 2, 3, 4, 5, 6], "ts": ts}
    report = fraud.flow(flux.sources.Table(pa.table(payments))).run(sites=2)
    assert report.table["card_count"].to_pylist() == [1, 1, 2, 2, None, 5]
    assert report.table["card_mean"].to_pylist() == [1.0, 2.0, 2.0, 2.5, None, 4.0]


def test_a_first_payment_of_nothing_is_no_multiple_of_what_is_usual() -> None:
    one = {"payment": [0], "card": [1], "merchant": [1], "cents": [0], "ts": [0]}
    report = fraud.flow(flux.sources.Table(pa.table(one))).run(sites=2)
    assert report.table.to_pylist() == [
        {
            **{"payment": 0, "cents": 0, "card_count": 1, "card_mean": 0.0},
            **{"merchant_count": 1, "merchant_mean": 0.0, "times_usual": None},
        }
    ]


def test_its_operator_keeps_its_promises() -> None:
    payment = st.fixed_dictionaries(
        {
            "payment": st.integers(0, 99),
            "card": st.none() | st.integers(0, 2),
            "cents": st.none() | st.integers(1, 9),
            "ts": st.none() | st.integers(0, 30).map(lambda n: n * fraud.LATE_MS // 2),
        }
    )
    check_operator(fraud.LastHour, st.lists(payment, max_size=10), key="card", examples=8)
