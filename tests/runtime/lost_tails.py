"""Runs whose journals lose their ends, as they may when a machine loses power; shared by the tests.

A process is stopped, its journal is cut, and the process is killed before it can write again: what it has sent is out,
and what it had noted of that is gone. Each row that is emitted has its id, its key and the running count of its key. So
the output tells by itself whether a row was lost, repeated or reordered, wherever it stops.
"""

from __future__ import annotations

import json
import os
import random
import signal
from collections import Counter
from pathlib import Path
from typing import Any, ClassVar

import flux
from flux.storage.journal import MAGIC, Journal

JOURNALS = {"ingress": "numbering.journal", "controller": "controller.journal", "egress": "egress.journal"}
KEYS = 7


class Counts(flux.KeyedOperator):
    """Each row with the count of its key up to it."""

    output: ClassVar = {"id": "int64", "key": "int64", "count": "int64"}

    def on_tuple(self, key: tuple[Any, ...], row: Any, state: Any) -> tuple[Any, list[dict[str, Any]]]:
        count = (state or 0) + 1
        return count, [{"id": row.id, "key": key[0], "count": count}]


def journal_of(run: flux.Run, process: str) -> Path:
    """The journal of a process of a local run."""
    pattern = JOURNALS[process]
    [path] = run.directory.glob(pattern)
    return path


def cut_and_kill(run: flux.Run, process: str, rng: random.Random, records_max: int = 6) -> int:
    """Stop the process, cut off the last records of its journal, the last one in its middle, and kill it.

    Returns how many bytes were cut off.
    """
    [pid] = [each.pid for each in run.status().processes if each.name == process and each.state == "up"]
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    try:
        path = journal_of(run, process)
        size = path.stat().st_size
        starts = [len(MAGIC), *_starts(path)]
        at = rng.choice(starts[-records_max:])
        at = min(size, at + rng.choice((0, 0, 1, 9, 20)))
        os.truncate(path, at)
    finally:
        run.kill(process)
    return size - at


def _starts(path: Path) -> list[int]:
    """Where the records of a journal begin; a copy is read, because its writer has it locked."""
    copy = path.with_name("copy")
    copy.write_bytes(path.read_bytes())
    journal, records = Journal.open(copy)
    journal.close()
    copy.unlink()
    return [record.position for record in records]


def assert_nothing_lost_or_repeated(path: Path, rows: int | None = None) -> int:
    """Check the file of a `Jsonl` sink: a prefix of what a plain run gives, or all of it if `rows` is given."""
    counts: Counter[int] = Counter()
    ids: set[int] = set()
    last: dict[int, int] = {}
    for line in path.read_text().splitlines():
        row = json.loads(line)
        counts[row["key"]] += 1
        assert row["count"] == counts[row["key"]], f"{row} is the {counts[row['key']]}th of its key"
        assert row["id"] not in ids, f"{row} is repeated"
        assert row["id"] > last.get(row["key"], -1), f"{row} is after {last[row['key']]}"
        ids.add(row["id"])
        last[row["key"]] = row["id"]
    if rows is not None:
        assert len(ids) == rows, f"{rows - len(ids)} rows are lost"
    return len(ids)
