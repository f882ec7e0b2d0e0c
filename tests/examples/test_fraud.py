"""Fraud features: each payment once and whole, with the features that pandas computes, through a kill."""

from __future__ import annotations

import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import strategies as st

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
    out["times_usual"] = out.cents / out.merchant_mean
    return out.astype({"card_count": "int64", "merchant_count": "int64"})


def adversarial() -> pa.Table:
    """Cards that are not known, one that pays all the time, many that pay once; one merchant; times that are equal."""
    rows = 2_000
    return pa.table(
        {
            "payment": pa.array(range(rows)),
            "card": pa.array([(None, 7, 7, 1_000 + n)[n % 4] for n in range(rows)], pa.int64()),
            "merchant": pa.array([None if n % 50 == 0 else 1 for n in range(rows)], pa.int64()),
            "cents": pa.array([1 + n * 37 % 991 for n in range(rows)]),
            "ts": pa.array([n // 8 * fraud.HOUR_MS // 10 for n in range(rows)]),
        }
    )


@pytest.mark.parametrize("data", [fraud.payments(3_000, seed=7), adversarial()], ids=["random", "adversarial"])
def test_the_output_is_that_of_pandas_though_a_site_is_killed(data: pa.Table) -> None:
    expected = in_pandas(data.to_pandas())
    report = running.run_with_kill(data, fraud.flow, kill_at=len(expected) // 2)
    assert [failure.site for failure in report.failures] == [running.VICTIM]
    pd.testing.assert_frame_equal(report.table.to_pandas(), expected, check_exact=True)


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
