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
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import Any, ClassVar

import msgpack

import flux
from flux.storage.journal import Journal, Record

# The process that writes each journal, and the journal's name in the directory of the run.
JOURNALS = {
    "ingress": ("ingress", "numbering.journal"),
    "controller": ("controller", "controller.journal"),
    "egress": ("egress", "egress.journal"),
    "staging": ("ingress", "staging.journal"),
}
KEYS = 7


class Counts(flux.KeyedOperator):
    """Each row with the count of its key up to it."""

    output: ClassVar = {"id": "int64", "key": "int64", "count": "int64"}

    def on_tuple(self, key: tuple[Any, ...], row: Any, state: Any) -> tuple[Any, list[dict[str, Any]]]:
        count = (state or 0) + 1
        return count, [{"id": row.id, "key": key[0], "count": count}]


def cut_and_kill(
    run: flux.Run, names: Sequence[str], rng: random.Random, records_max: int = 6, synced: Collection[str] = ()
) -> None:
    """Stop the process that writes these journals, cut off their last records, and kill it.

    Each is cut at the end of a record, or inside one. Records of the kinds `synced` are on the disk, and stay.
    """
    [process] = {JOURNALS[name][0] for name in names}
    [pid] = [each.pid for each in run.status().processes if each.name == process and each.state == "up"]
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    try:
        for name in names:
            path = run.directory / JOURNALS[name][1]
            if path.exists():  # A process that has just been started again may not have begun it.
                os.truncate(path, _cut_of(path, rng, records_max, synced))
    finally:
        run.kill(process)


def _cut_of(path: Path, rng: random.Random, records_max: int, synced: Collection[str]) -> int:
    """Return the length to which a journal is cut: one of its last records and all after it go, or part of it stays."""
    records = _records(path)
    kept = [
        nth for nth, record in enumerate(records) if msgpack.unpackb(record.content, strict_map_key=False)[0] in synced
    ]
    first = max(0, len(records) - records_max, *(nth + 1 for nth in kept))
    if first == len(records):
        return path.stat().st_size
    nth = rng.randrange(first, len(records))
    start, end = [*(record.position for record in records), path.stat().st_size][nth : nth + 2]
    return start + (0 if rng.random() < 0.5 else rng.randrange(end - start))


def _records(path: Path) -> list[Record]:
    """The records of a journal; a copy is read, because its writer has it locked."""
    copy = path.with_name("copy")
    copy.write_bytes(path.read_bytes())
    journal, records = Journal.open(copy)
    journal.close()
    copy.unlink()
    return records


def rows_of_lines(path: Path) -> list[dict[str, Any]]:
    """The rows in the file of a `Jsonl` sink, which may not have been made."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def assert_nothing_lost_or_repeated(output: Iterable[dict[str, Any]], rows: int | None = None) -> int:
    """Check the output of `Counts`: a prefix of what a plain run gives, or all of it if `rows` is given."""
    counts: Counter[int] = Counter()
    ids: set[int] = set()
    last: dict[int, int] = {}
    for row in output:
        counts[row["key"]] += 1
        assert row["count"] == counts[row["key"]], f"{row} is the {counts[row['key']]}th of its key"
        assert row["id"] not in ids, f"{row} is repeated"
        assert row["id"] > last.get(row["key"], -1), f"{row} is after {last[row['key']]}"
        ids.add(row["id"])
        last[row["key"]] = row["id"]
    if rows is not None:
        assert len(ids) == rows, f"{rows - len(ids)} rows are lost"
    return len(ids)
