"""What is buffered for a copy in transfer, or waits for one that catches up: in files when it exceeds a pool."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from flux.exchange.edge_bodies import EdgeBodies
from flux.exchange.rows import SN, Rows
from flux.protocols.buffer import Buffer
from flux.protocols.fh_cons import FhCons
from flux.protocols.inspection import buffered_bodies
from flux.protocols.messages import OutputRun, PendingInput
from flux.site import spill
from flux.site.spill import Spill

DONOR, STANDBY = (0, "site-1"), (0, "site-3")
POOL_ROWS = 40_000


def rows(after: int, upto: int) -> Rows:
    sn = np.arange(after + 1, upto + 1, dtype=np.int64)
    none = np.zeros(len(sn), np.uint16)
    return Rows.of(pa.record_batch({"value": pa.array(sn * 3)}), sn, None, none, none)


def kept(runs: int, rows_each: int = 10_000) -> Buffer:
    """So many runs are kept for a copy on its way to site-3."""
    buffer = Buffer(POOL_ROWS, 64 * POOL_ROWS)
    buffer.entitle(DONOR)
    buffer.entitle(STANDBY)
    buffer.expect(frozenset({STANDBY}))
    for number in range(runs):
        after, upto = number * rows_each, (number + 1) * rows_each
        buffer.put(OutputRun(after=after, upto=upto, rows=rows_each, body=rows(after, upto)))
    buffer.ack(DONOR, (runs - 1) * rows_each)
    return buffer


def in_memory(buffer: Buffer) -> list[int]:
    return [number for number, run in enumerate(buffer.runs) if not run.body.spilled]


def values(body: Any) -> list[list[int]]:
    return [body.user.column(0).to_pylist(), body.hidden(SN).tolist()]


def test_what_is_more_than_a_pool_is_kept_on_disk_and_is_the_same_there(tmp_path: Path) -> None:
    buffer = kept(10)
    before = [values(run.body) for run in buffer.runs]
    Spill(tmp_path, pytest.fail).relieve_buffer(buffer)
    assert in_memory(buffer) == [6, 7, 8, 9]
    assert [values(run.body) for run in buffer.runs] == before
    assert list(tmp_path.iterdir()) == [], "a file with a name may stay behind"


def test_what_others_need_too_stays_in_memory(tmp_path: Path) -> None:
    buffer = kept(10)
    buffer.floors[DONOR] = 20_000
    Spill(tmp_path, pytest.fail).relieve_buffer(buffer)
    assert in_memory(buffer) == list(range(2, 10))


def test_a_pool_without_a_copy_on_its_way_stays_in_memory(tmp_path: Path) -> None:
    buffer = kept(10)
    buffer.quota_rows.clear()
    Spill(tmp_path, pytest.fail).relieve_buffer(buffer)
    assert in_memory(buffer) == list(range(10))


def test_what_is_kept_of_a_full_pool_stays_in_memory(tmp_path: Path) -> None:
    buffer = kept(4)
    Spill(tmp_path, pytest.fail).relieve_buffer(buffer)
    assert in_memory(buffer) == list(range(4))


def test_what_has_come_for_a_copy_that_catches_up_waits_on_disk_but_for_what_it_takes_next(tmp_path: Path) -> None:
    cons = FhCons("site-3", 1)
    cons.pending[7] = tuple(
        PendingInput(edge=0, after=start, upto=start + 10_000, channels=(), body=rows(start, start + 10_000))
        for start in range(0, 100_000, 10_000)
    )
    spilling = Spill(tmp_path, pytest.fail)
    for _ in range(2):
        spilling.relieve_pending(cons, POOL_ROWS)
        assert [frame.body.spilled for frame in cons.pending[7]] == [False] * 4 + [True] * 6
    assert values(cons.pending[7][9].body) == values(rows(90_000, 100_000))


def test_a_spilled_body_is_another_object_that_a_recording_takes_for_the_same(tmp_path: Path) -> None:
    buffer = kept(10)
    before = [run.body for run in buffer.runs]
    Spill(tmp_path, pytest.fail).relieve_buffer(buffer)
    assert not any(body.spilled for body in before)
    assert [run.body.token for run in buffer.runs] == [body.token for body in before]
    assert [run.body is body for run, body in zip(buffer.runs, before, strict=True)] == [False] * 6 + [True] * 4


def test_a_body_of_several_edges_is_spilled_edge_by_edge(tmp_path: Path) -> None:
    buffer = kept(10)
    buffer.runs = [
        OutputRun(after=run.after, upto=run.upto, rows=run.rows, body=EdgeBodies({0: run.body, 3: Rows(None)}))
        for run in buffer.runs
    ]
    tokens = [run.body.token for run in buffer.runs]
    Spill(tmp_path, pytest.fail).relieve_buffer(buffer)
    assert [run.body.on(0).spilled for run in buffer.runs] == [True] * 6 + [False] * 4
    assert [run.body.token for run in buffer.runs] == tokens


def test_a_full_disk_is_told_once_and_rows_stay_in_memory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def full(directory: Path, data: Any) -> Any:
        raise OSError(errno.ENOSPC, "No space left on device")

    told: list[str] = []
    spilling = Spill(tmp_path, told.append)
    monkeypatch.setattr(spill, "_mapped", full)
    buffer = kept(10)
    for _ in range(3):
        spilling.relieve_buffer(buffer)
    assert in_memory(buffer) == list(range(10))
    [text] = told
    assert str(tmp_path) in text and "No space left" in text and "the source waits" in text
    monkeypatch.undo()
    spilling.relieve_buffer(Buffer(POOL_ROWS))  # That copy is there; there may be room for the next one.
    spilling.relieve_buffer(buffer)
    assert in_memory(buffer) == [6, 7, 8, 9]


def test_runs_that_only_a_copy_in_transfer_needs_are_spillable() -> None:
    def spillable() -> list[bool]:
        return [each.spillable for each in buffered_bodies(buffer)]

    buffer = Buffer(bound_rows=2, transfer_rows_max=8)
    buffer.entitle(DONOR)
    buffer.entitle(STANDBY)
    for sn in range(4):
        buffer.put(OutputRun(after=sn, upto=sn + 1, rows=1, body=None))
    buffer.ack(DONOR, 3)
    assert spillable() == [False] * 4, "no copy is in transfer"
    buffer.expect(frozenset({STANDBY}))
    assert spillable() == [True, True, True, False]
    buffer.ack_all(DONOR)
    assert spillable() == [False] * 4, "no other destination has acknowledged them"
