"""Fraud features: each payment once and whole, with the features that pandas computes, through a kill."""

from __future__ import annotations

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import strategies as st

import flux
from experiments.examples import fraud, running
from flux.testing import check_operator


def in_pandas(payments: pd.DataFrame) -> pd.DataFrame:
    """The features by rolling windows of an hour, which leave out what happened exactly an hour before."""
    out = payments[["payment", "cents"]].copy()
    timed = payments.set_index(pd.to_datetime(payments.ts, unit="ms"))
    for key in ("card", "merchant"):
        for _, rows in timed.groupby(key, dropna=False):
            hour = rows.cents.rolling("1h")
            out.loc[rows.payment, f"{key}_count"] = hour.count().to_numpy()
            # Whole numbers: the sum is exact as a float too.
            out.loc[rows.payment, f"{key}_mean"] = (hour.sum().round() / hour.count()).to_numpy()
    out["times_usual"] = out.cents / out.merchant_mean.where(out.merchant_mean > 0)
    return out.astype({"card_count": "int64", "merchant_count": "int64"})


def adversarial() -> pa.Table:
    """Cards that are not known, one that pays all the time, many that pay once; one merchant; times that are equal.

    The merchant that is not known takes nothing, and the other nothing at first.
    """
    rows = 2_000
    return pa.table(
        {
            "payment": pa.array(range(rows)),
            "card": pa.array([(None, 7, 7, 1_000 + n)[n % 4] for n in range(rows)], pa.int64()),
            "merchant": pa.array([None if n % 50 == 0 else 1 for n in range(rows)], pa.int64()),
            "cents": pa.array([0 if n % 50 < 2 and n < 500 else 1 + n * 37 % 991 for n in range(rows)]),
            "ts": pa.array([n // 8 * fraud.HOUR_MS // 10 for n in range(rows)]),
        }
    )


@pytest.mark.parametrize("data", [fraud.payments(3_000, seed=7), adversarial()], ids=["random", "adversarial"])
def test_the_output_is_that_of_pandas_though_a_site_is_killed(data: pa.Table) -> None:
    expected = in_pandas(data.to_pandas())
    report = running.run_with_kill(data, fraud.flow, kill_at=len(expected) // 2)
    assert [failure.site for failure in report.failures] == [running.VICTIM]
    pd.testing.assert_frame_equal(report.table.to_pandas(), expected, check_exact=True)
    # Where nothing was taken, nothing is usual: that is unknown, and not NaN.
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
            "cents": st.integers(0, 9),
            "ts": st.integers(0, 5).map(lambda n: n * fraud.HOUR_MS // 2),
        }
    )
    check_operator(fraud.LastHour, st.lists(payment, max_size=10), key="card", examples=8)
