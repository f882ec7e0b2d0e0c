"""Intrusion detection: the alarms are those of pandas, in the order of the packets that cause them, through kills."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import strategies as st

import flux
from experiments.examples import intrusion
from flux.testing import check_operator

from .shapes import SHAPES, run_through_kills, with_columns

ROWS = 600


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


def packets() -> pa.Table:
    """Of so few hosts that sessions are many, and so slow that some are alarming."""
    drawn = intrusion.packets(ROWS, seed=7)
    few = {name: drawn[name].to_numpy() % hosts for name, hosts in (("src", 4), ("dst", 2))}
    return with_columns(drawn, {**few, "ts": drawn["ts"].to_numpy() * 60})


PACKETS = packets()
NUMBER = np.arange(ROWS)
COLUMNS = SHAPES | {
    "one key": {"src": NUMBER * 0, "dst": NUMBER * 0, "app": NUMBER * 0, "ts": PACKETS["ts"].to_numpy() * 8},
    # Hosts that have one session with each other; nobody else would ever close one.
    "all keys distinct": {
        "src": NUMBER // 2 % 3,
        "dst": NUMBER // 2,
        "kind": ["start", "end"] * (ROWS // 2),
        "ts": PACKETS["ts"].to_numpy() * 16,
    },
    "nulls": {
        "dst": [(None, 1)[n % 2] for n in range(ROWS)],
        "kind": [None if n % 11 == 0 else kind for n, kind in enumerate(PACKETS["kind"].to_pylist())],
    },
    "out-of-order time": {"ts": np.random.default_rng(7).permutation(PACKETS["ts"].to_numpy())},
}


@pytest.mark.parametrize("shape", COLUMNS)
def test_the_output_is_that_of_pandas_though_every_first_copy_dies(shape: str, tmp_path: Path) -> None:
    data = with_columns(PACKETS, COLUMNS[shape])
    expected = in_pandas(data.to_pandas())
    assert len(expected) > 20
    report = run_through_kills(intrusion.flow, data, shape, tmp_path)
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
