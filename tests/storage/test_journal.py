"""Journals on a disk whose calls transfer less than they are asked to, have no room for a while, or fail."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from flux.storage import disk
from flux.storage.journal import Journal
from flux.system import filesystem
from flux.types.errors import FluxError

RECORDS = [bytes([number]) * 40 for number in range(8)]


class Calls:
    """The calls of `os`, but that a read returns a part, and that some writes and reads fail."""

    def __init__(self, full_writes: int = 0, failing_reads: int = 0) -> None:
        self.full_writes = full_writes
        self.failing_reads = failing_reads

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def pread(self, fd: int, count: int, offset: int) -> bytes:
        if self.failing_reads:
            self.failing_reads -= 1
            raise OSError(errno.EIO, "Input/output error")
        return os.pread(fd, min(count, 33), offset)

    def pwrite(self, fd: int, data: Any, offset: int) -> int:
        if self.full_writes:
            self.full_writes -= 1
            raise OSError(errno.ENOSPC, "No space left on device")
        return os.pwrite(fd, data[:33], offset)


def use(calls: Calls, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(filesystem, "calls", calls)
    patch.setattr(disk, "_TRY_AGAIN_S", 0.0)


def written(path: Path) -> tuple[Journal, list[int]]:
    journal, _ = Journal.open(path)
    return journal, [journal.append(record) for record in RECORDS]


def read(path: Path) -> list[bytes]:
    journal, records = Journal.open(path)
    journal.close()
    return [record.content for record in records]


def test_a_journal_that_is_shortened_keeps_its_end_though_each_call_reads_a_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(Calls(), monkeypatch)
    journal, positions = written(tmp_path / "journal")
    journal.shorten([b"base"], positions[3])
    journal.append(b"last")
    journal.close()
    assert read(tmp_path / "journal") == [b"base", *RECORDS[3:], b"last"]


def test_a_journal_that_is_shortened_on_a_full_disk_waits_for_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    journal, positions = written(tmp_path / "journal")
    use(Calls(full_writes=3), monkeypatch)
    journal.shorten([b"base"], positions[5])
    journal.close()
    assert read(tmp_path / "journal") == [b"base", *RECORDS[5:]]
    assert "The run waits for room" in capsys.readouterr().err


def test_a_journal_that_cannot_be_read_is_left_as_it_is_and_the_error_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal, _ = written(tmp_path / "journal")
    journal.close()
    use(Calls(failing_reads=1), monkeypatch)
    with pytest.raises(FluxError, match=r"cannot read or write .*journal: Input/output error\. What the journal held"):
        Journal.open(tmp_path / "journal")
    assert read(tmp_path / "journal") == RECORDS
