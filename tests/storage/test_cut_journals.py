"""Each journal of a run, cut at every record boundary and at every byte inside each record, by the reader of the run.

A writer of the run writes one record after the other; what the journal says after each is written down here by hand.
Cut anywhere, it says what it said after the last record that is whole, and is written on from there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from flux.controller.view_journal import ViewJournal
from flux.protocols.messages import View
from flux.site.egress.sink_journal import SinkJournal
from flux.site.ingress.sequence_journal import SequenceJournal
from flux.spark.source.staging_store import Attempt, Published, StagingStore
from flux.storage.journal import MAGIC

FIRST = View(
    number=1,
    nodes=("ingress", "site-1", "site-2", "egress"),
    dead=frozenset(),
    copies=((("ingress",),), (("site-1", "site-2"),), (("egress",),)),
)


def write_numbers(path: Path) -> Iterator[Any]:
    """Yield: the last number, rows, rows that were shed, what is released, and the ends of the spans after that."""
    journal = SequenceJournal.open(path)
    yield 0, 0, 0, 0, []
    journal.number(5, 5, when=1.5, digest=7)
    yield 5, 5, 0, 0, [5]
    journal.mark("watermark", 40, when=1.5)
    yield 6, 5, 0, 0, [5, 6]
    journal.number(9, 8, when=1.5)
    yield 9, 8, 0, 0, [5, 6, 9]
    journal.release(6, at_once=True)
    yield 9, 8, 0, 6, [9]
    journal.leave_out(4, 12, when=1.5)
    yield 9, 8, 4, 6, [9]
    journal.number(300, 303, when=1.5)
    yield 300, 299, 4, 6, [9, 300]
    journal.release(300, at_once=True)
    yield 300, 299, 4, 300, []
    journal.mark("end", None, when=1.5)
    yield 301, 299, 4, 300, [301]
    journal.close()


def read_numbers(path: Path) -> Any:
    journal = SequenceJournal.open(path)
    spans = [span.upto for span in journal.replay.spans if not span.shed]
    journal.close()
    return journal.upto, journal.rows, journal.shed, journal.released, spans


def write_views(path: Path) -> Iterator[Any]:
    """Yield: the numbers of the views, and who is dead in the last."""
    journal = ViewJournal(path)
    yield [], None
    dead = [frozenset[str](), frozenset({"site-2"}), frozenset({"site-2", "ingress"}), frozenset({"site-2"})]
    for number, gone in enumerate(dead, 1):
        journal.addresses["site-1"] = f"tcp:{number}"
        journal.append(replace(FIRST, number=number, dead=gone))
        yield list(range(1, number + 1)), (gone, f"tcp:{number}")


def read_views(path: Path) -> Any:
    journal = ViewJournal(path)
    journal._journal.close()
    numbers = [view.number for view in journal.views_after(0, "site-1")]
    return numbers, None if journal.last is None else (journal.last.dead, journal.addresses["site-1"])


def write_sink(path: Path) -> Iterator[Any]:
    """Yield: what the sink has, its rows, whether the stream has ended, and the position of the dataflow."""
    journal = SinkJournal(path)
    before: Any = (0, 0, False, (0, ()))
    yield before
    for upto, rows, given, end in ((10, 10, 10, False), (12, 10, 0, False), (700, 20, 10, False), (701, 20, 0, True)):
        journal.give(upto, given, end)
        yield before  # It has been given, and not taken.
        journal.take()
        before = (upto, rows, end, (upto, ()))
        yield before
    journal.close()


def read_sink(path: Path) -> Any:
    journal = SinkJournal(path)
    journal.close()
    return journal.upto, journal.rows, journal.ended, journal.reached


def write_staging(path: Path) -> Iterator[Any]:
    """Yield: the batches that are published and not done, the last that is done, and whether the query has ended."""
    store = StagingStore(path.parent)
    yield [], -1, False
    for number in range(3):
        attempts = tuple(Attempt(partition, f"{number}.{partition}", 10, 100) for partition in range(number + 1))
        batch = Published("query", number, attempts)
        store.publish(batch)
        yield [batch], number - 1, False
        store.finish(batch)
        yield [], number, False
    store.end("run", None)
    yield [], 2, True


def read_staging(path: Path) -> Any:
    store = StagingStore(path.parent)
    return list(store.undone.values()), store.last_done, store.has_ended("run")


CASES: dict[str, tuple[Callable[[Path], Iterator[Any]], Callable[[Path], Any]]] = {
    "numbering.journal": (write_numbers, read_numbers),
    "controller.journal": (write_views, read_views),
    "egress.journal": (write_sink, read_sink),
    "staging.journal": (write_staging, read_staging),
}


@pytest.mark.parametrize("name", CASES)
def test_a_journal_cut_at_any_byte_says_what_it_said_after_its_last_whole_record(name: str, tmp_path: Path) -> None:
    write, read = CASES[name]
    path = tmp_path / name
    states: list[tuple[int, Any]] = []  # The length of the file, and what it says.
    for said in write(path):
        states.append((path.stat().st_size, said))
    whole = path.read_bytes()
    sizes = [size for size, _ in states]
    assert sizes[0] == len(MAGIC) and sizes[-1] == len(whole)
    assert all(before < after for before, after in pairwise(sizes)), "each is one record"
    found = tmp_path / "found" / name
    found.parent.mkdir()
    for length in range(len(whole) + 1):
        found.write_bytes(whole[:length])
        boundary, said = next((each for each in reversed(states) if each[0] <= length), states[0])
        assert read(found) == said, f"cut at byte {length:,}"
        assert found.read_bytes() == whole[:boundary], f"cut at byte {length:,}"
