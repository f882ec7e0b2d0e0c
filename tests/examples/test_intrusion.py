"""Intrusion detection: the alarms are those of DuckDB, in the order of the packets that cause them, through kills."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import strategies as st

import flux
from experiments.examples import intrusion
from flux.testing import check_operator

from .shapes import SHAPES, run_through_kills, with_columns

ROWS = 600


def in_duckdb(packets: pa.Table) -> list[tuple[Any, ...]]:
    """An end right behind a start, data aside, is a session; windows are the last sessions of (app, src)."""
    db = duckdb.connect()
    db.execute("SET threads TO 1")
    db.register("packets", packets.append_column("n", pa.array(range(packets.num_rows))))
    return db.execute(f"""
        WITH marks AS (
            SELECT *, lag(kind) OVER pair AS kind_before, lag(app) OVER pair AS app_before, lag(ts) OVER pair AS since
            FROM packets WHERE kind IN ('start', 'end') WINDOW pair AS (PARTITION BY src, dst ORDER BY n)),
        windows AS (
            SELECT n, app_before, src, count(*) OVER last AS rows, max(ts - since) OVER last AS most,
                   avg(ts - since) OVER last AS mean FROM marks WHERE kind = 'end' AND kind_before = 'start'
            WINDOW last AS (PARTITION BY app_before, src ORDER BY n ROWS {intrusion.HISTORY - 1} PRECEDING))
        SELECT app_before, src, most, mean FROM windows
        WHERE rows = {intrusion.HISTORY} AND mean > {intrusion.ALARM_MS} ORDER BY n""").fetchall()


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
        "src": [(None, 1, 1)[n % 3] for n in range(ROWS)],
        "dst": [(None, 1)[n % 2] for n in range(ROWS)],
        "app": [None if n % 5 == 0 else n % 2 for n in range(ROWS)],
        "ts": [None if n % 7 == 0 else ts * 4 for n, ts in enumerate(PACKETS["ts"].to_pylist())],
        "kind": [None if n % 11 == 0 else kind for n, kind in enumerate(PACKETS["kind"].to_pylist())],
    },
    "out-of-order time": {"ts": np.random.default_rng(7).permutation(PACKETS["ts"].to_numpy())},
}


@pytest.mark.long
@pytest.mark.parametrize("shape", COLUMNS)
def test_the_output_is_that_of_duckdb_though_every_first_copy_dies(shape: str, tmp_path: Path) -> None:
    data = with_columns(PACKETS, COLUMNS[shape])
    expected = in_duckdb(data)
    assert len(expected) > 20
    report = run_through_kills(intrusion.flow, data, shape, tmp_path)
    assert [tuple(row.values()) for row in report.table.to_pylist()] == expected


@pytest.mark.long
def test_its_operators_keep_their_promises() -> None:
    packet = st.fixed_dictionaries(
        {
            "src": st.none() | st.integers(0, 1),
            "dst": st.none() | st.integers(0, 1),
            "app": st.none() | st.integers(0, 2),
            "kind": st.sampled_from(["start", "end", "data", None]),
            "ts": st.none() | st.integers(0, 1_000),
        }
    )
    packets = st.lists(packet, max_size=10)
    check_operator(intrusion.Sessions, packets, key=("src", "dst"), schema=intrusion.packets(1).schema, examples=8)
    session = st.fixed_dictionaries({"app": st.integers(0, 1), "src": st.integers(0, 1), "dur": st.integers(0, 99)})
    window = {"history": intrusion.HISTORY, "slide": 1}
    sessions = st.lists(session, max_size=10)
    check_operator(flux.operators.CountWindow, sessions, key=("app", "src"), parameters=window, examples=8)
