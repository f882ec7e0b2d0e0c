"""Fraud features: each payment once and whole, with the features that pandas computes, whoever is killed."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import strategies as st

import flux
from experiments.examples import fraud
from flux.testing import check_operator

from .shapes import SHAPES, run_through_kills, with_columns

ROWS = 300
PAYMENTS = fraud.payments(ROWS, seed=7)


def in_pandas(payments: pd.DataFrame) -> pd.DataFrame:
    """The features by rolling windows of an hour, which leave out what happened exactly an hour before."""
    out = payments[["payment", "cents"]].copy()
    timed = payments.set_index(pd.to_datetime(payments.ts, unit="ms"))
    for key in ("card", "merchant"):
        known = payments[key].fillna(-1)
        # Key by key, as groups come.
        place = known.sort_values(kind="stable").index
        hour = timed.groupby(known.to_numpy()).cents.rolling("1h")
        # Whole numbers: the sum is exact as a float too.
        told = pd.DataFrame({"count": hour.count(), "total": hour.sum().round()}).set_index(place)
        out[f"{key}_count"] = told["count"].astype("int64")
        out[f"{key}_mean"] = told["total"] / told["count"]
    out["times_usual"] = out.cents / out.merchant_mean.where(out.merchant_mean > 0)
    return out


# Payments are in the order of their times by contract: no event time is told.
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
    },
}


@pytest.mark.parametrize("shape", COLUMNS)
def test_the_output_is_that_of_pandas_though_every_first_copy_dies(shape: str, tmp_path: Path) -> None:
    data = with_columns(PAYMENTS, COLUMNS[shape])
    report = run_through_kills(fraud.flow, data, shape, tmp_path)
    expected = in_pandas(data.to_pandas())
    pd.testing.assert_frame_equal(report.table.to_pandas(), expected, check_exact=True)
    # Where nothing was taken, what is usual is unknown, and not NaN.
    assert report.table["times_usual"].null_count == (expected.merchant_mean == 0).sum()
    assert not pc.any(pc.is_nan(report.table["times_usual"])).as_py()


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
            "cents": st.integers(1, 9),
            "ts": st.integers(0, 5).map(lambda n: n * fraud.HOUR_MS // 2),
        }
    )
    check_operator(fraud.LastHour, st.lists(payment, max_size=10), key="card", examples=8)
