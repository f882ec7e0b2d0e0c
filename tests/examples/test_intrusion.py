"""Intrusion detection: the alarms are those of pandas, in the order of the packets that caused them, through a kill."""

from __future__ import annotations

import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import strategies as st

import flux
from experiments.examples import intrusion, running
from flux.testing import check_operator


def in_pandas(packets: pd.DataFrame) -> pd.DataFrame:
    """An end right behind a start, data aside, is a session; windows are the last sessions of (app, src)."""
    marks = packets[packets.kind.isin(["start", "end"])]
    before = marks.groupby(["src", "dst"], dropna=False)[["kind", "app", "ts"]].shift()
    is_session = (marks.kind == "end") & (before.kind == "start")
    sessions = marks[is_session].assign(
        app=before.app[is_session].astype("int32"), dur=(marks.ts - before.ts)[is_session].astype("int64")
    )
    windows = sessions.groupby(["app", "src"])["dur"].rolling(intrusion.HISTORY)
    told = pd.DataFrame({"max_dur": windows.max(), "total": windows.sum()}).droplevel([0, 1]).sort_index().dropna()
    told = told.assign(app=sessions.app, src=sessions.src, max_dur=told.max_dur.astype("int64"))
    told["avg_dur"] = told.total / intrusion.HISTORY
    alarms = told[told.avg_dur > intrusion.ALARM_MS]
    return alarms[["app", "src", "max_dur", "avg_dur"]].reset_index(drop=True)


def adversarial() -> pa.Table:
    """Destinations and kinds that are not known; two hosts that talk all the time, and many that do so once."""
    data = intrusion.packets(4_000, seed=8).to_pydict()
    for n in range(4_000):
        if n % 3:
            data["src"][n], data["dst"][n] = 1, (None, 2)[n % 2]
        if n % 4 == 0:
            data["src"][n] = 1_000 + n
        if n % 11 == 0:
            data["kind"][n] = None
        data["ts"][n] *= 200
    return pa.table(data, schema=intrusion.packets(1).schema)


@pytest.mark.parametrize("data", [intrusion.packets(6_000, seed=7), adversarial()], ids=["random", "adversarial"])
def test_the_output_is_that_of_pandas_though_a_site_is_killed(data: pa.Table) -> None:
    expected = in_pandas(data.to_pandas())
    assert len(expected) > 100
    report = running.run_with_kill(data, intrusion.flow, kill_at=len(expected) // 2)
    assert [failure.site for failure in report.failures] == [running.VICTIM]
    pd.testing.assert_frame_equal(report.table.to_pandas(), expected, check_exact=True)


def test_its_operators_keep_their_promises() -> None:
    packet = st.fixed_dictionaries(
        {
            "src": st.integers(0, 1),
            "dst": st.none() | st.integers(0, 1),
            "app": st.integers(0, 2),
            "kind": st.sampled_from(["start", "end", "data", None]),
            "ts": st.integers(0, 1_000),
        }
    )
    packets = st.lists(packet, max_size=10)
    check_operator(intrusion.Sessions, packets, key=("src", "dst"), schema=intrusion.packets(1).schema, examples=8)
    session = st.fixed_dictionaries({"app": st.integers(0, 1), "src": st.integers(0, 1), "dur": st.integers(0, 99)})
    window = {"history": intrusion.HISTORY, "slide": 1}
    sessions = st.lists(session, max_size=10)
    check_operator(flux.operators.CountWindow, sessions, key=("app", "src"), parameters=window, examples=8)
