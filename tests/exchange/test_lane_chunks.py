"""What is kept for a copy on its way: in files when it is much, and in pieces when it is sent."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from flux.exchange.lane_chunks import CHUNK_ROWS, chunks
from flux.exchange.rows import SN, Rows
from flux.model.punctuation import Punctuation
from flux.protocols.buffer import Buffer
from flux.protocols.messages import Block, Data, OutputRun, PendingInput
from flux.site import spill
from flux.site.spill import Spill, spillable_runs

DONOR, STANDBY = (0, "site-1"), (0, "site-3")
EVERYTHING = ((Block(producers=(0,), consumers=(0,)),),)
POOL_ROWS = 40_000


def rows(after: int, upto: int, every: int = 1, punctuations: tuple[Punctuation, ...] = ()) -> Rows:
    sn = np.arange(after + 1, upto + 1, every, dtype=np.int64)
    none = np.zeros(len(sn), np.uint16)
    return Rows.of(pa.record_batch({"value": pa.array(sn * 3)}), sn, None, none, none, punctuations)


def sent(bodies: list[Rows], after: int, upto: int) -> Data:
    return Data(sender="ingress", view=1, edge=0, lane_id=1, after=after, upto=upto, bodies=tuple(bodies))


def numbers(parts: list[Data]) -> list[int]:
    """The sequence numbers of all rows in the range of their message."""
    found: list[int] = []
    for part in parts:
        for body in part.bodies:
            within = body.between(part.after, part.upto)
            found += [] if within.wide is None else within.hidden(SN).tolist()
    return found


def test_much_is_sent_in_pieces_that_follow_each_other() -> None:
    step = CHUNK_ROWS // 2
    bodies = [rows(start, start + step) for start in range(0, 10 * step, step)]
    parts = [part for part, _ in chunks(sent(bodies, 5, 10 * step), EVERYTHING * 10)]
    assert len(parts) == 5
    assert [part.after for part in parts] == [5, *(part.upto for part in parts[:-1])]
    assert parts[-1].upto == 10 * step
    assert numbers(parts) == list(range(6, 10 * step + 1))
    assert all(len(part.bodies) == 2 for part in parts)


def test_little_is_sent_at_once() -> None:
    message = sent([rows(0, 10), rows(10, 20)], 0, 25)
    assert list(chunks(message, EVERYTHING * 2)) == [(message, EVERYTHING * 2)]


def test_bodies_that_overlap_are_cut_where_others_begin() -> None:
    """They are of partitions that have come to the site at different times."""
    step = CHUNK_ROWS
    bodies = [rows(0, 3 * step, every=3), rows(step, 4 * step, every=2), rows(2 * step, 5 * step)]
    parts = [part for part, _ in chunks(sent(bodies, 0, 5 * step), EVERYTHING * 3)]
    assert len(parts) > 1
    assert [part.after for part in parts] == [0, *(part.upto for part in parts[:-1])]
    expected = sorted(n for body in bodies for n in body.hidden(SN).tolist())
    assert sorted(numbers(parts)) == expected


def test_a_punctuation_goes_with_the_piece_in_whose_range_it_is() -> None:
    mark = Punctuation(2 * CHUNK_ROWS + 1, "end")
    bodies = [rows(0, CHUNK_ROWS), rows(CHUNK_ROWS, 2 * CHUNK_ROWS), Rows(None, (mark,))]
    parts = [part for part, _ in chunks(sent(bodies, 0, 2 * CHUNK_ROWS + 1), EVERYTHING * 3)]
    punctuations = [
        [m for body in part.bodies for m in body.between(part.after, part.upto).punctuations] for part in parts
    ]
    assert punctuations[-1] == [mark]
    assert not any(punctuations[:-1])


def test_what_is_kept_in_many_bodies_is_cut_in_one_pass() -> None:
    """Each body is looked into once, not once for each piece: with thousands of them that took seconds."""

    class Counted(Rows):
        looked = 0

        @property
        def span(self) -> tuple[int, int] | None:
            Counted.looked += 1
            return super().span

    step = CHUNK_ROWS // 4
    bodies: list[Rows] = [Counted(rows(start, start + step).wide) for start in range(0, 100 * step, step)]
    parts = list(chunks(sent(bodies, 0, 100 * step), EVERYTHING * 100))
    assert len(parts) == 25
    assert Counted.looked == 100


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
    Spill(tmp_path, pytest.fail).relieve(buffer)
    assert in_memory(buffer) == [6, 7, 8, 9]
    assert [values(run.body) for run in buffer.runs] == before
    assert list(tmp_path.iterdir()) == [], "a file with a name may stay behind"


def test_what_others_need_too_stays_in_memory(tmp_path: Path) -> None:
    buffer = kept(10)
    buffer.floors[DONOR] = 20_000
    Spill(tmp_path, pytest.fail).relieve(buffer)
    assert in_memory(buffer) == list(range(2, 10))


def test_a_pool_without_a_copy_on_its_way_stays_in_memory(tmp_path: Path) -> None:
    buffer = kept(10)
    buffer.quota_rows.clear()
    Spill(tmp_path, pytest.fail).relieve(buffer)
    assert in_memory(buffer) == list(range(10))


def test_what_is_kept_of_a_full_pool_stays_in_memory(tmp_path: Path) -> None:
    buffer = kept(4)
    Spill(tmp_path, pytest.fail).relieve(buffer)
    assert in_memory(buffer) == list(range(4))


def test_what_has_come_for_a_copy_that_catches_up_waits_on_disk_but_for_what_it_takes_next(tmp_path: Path) -> None:
    waiting = tuple(
        PendingInput(edge=0, after=start, upto=start + 10_000, channels=(), body=rows(start, start + 10_000))
        for start in range(0, 100_000, 10_000)
    )
    spilling = Spill(tmp_path, pytest.fail)
    for _ in range(2):
        spilling.relieve_frames([waiting], POOL_ROWS)
        assert [frame.body.spilled for frame in waiting] == [False] * 4 + [True] * 6
    assert values(waiting[9].body) == values(rows(90_000, 100_000))


def test_a_full_disk_is_told_once_and_rows_stay_in_memory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def full(directory: Path, data: Any) -> Any:
        raise OSError(errno.ENOSPC, "No space left on device")

    told: list[str] = []
    spilling = Spill(tmp_path, told.append)
    monkeypatch.setattr(spill, "_mapped", full)
    buffer = kept(10)
    for _ in range(3):
        spilling.relieve(buffer)
    assert in_memory(buffer) == list(range(10))
    [text] = told
    assert str(tmp_path) in text and "No space left" in text and "the source waits" in text
    monkeypatch.undo()
    spilling.relieve(Buffer(POOL_ROWS))  # That copy is there; there may be room for the next one.
    spilling.relieve(buffer)
    assert in_memory(buffer) == [6, 7, 8, 9]


def test_runs_that_only_a_copy_on_its_way_needs_are_spare() -> None:
    buffer = Buffer(bound_rows=2, transfer_rows_max=8)
    buffer.entitle(DONOR)
    assert spillable_runs(buffer) == []
    buffer.entitle(STANDBY)
    buffer.expect(frozenset({STANDBY}))
    runs = [OutputRun(after=sn, upto=sn + 1, rows=1, body=None) for sn in range(4)]
    for run in runs:
        buffer.put(run)
    buffer.ack(DONOR, 3)
    assert spillable_runs(buffer) == runs[:3]
    buffer.ack_all(DONOR)
    assert spillable_runs(buffer) == []  # Nobody else is there to say that he has them.
