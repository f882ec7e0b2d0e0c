"""Emitted rows: the last output of a stage, kept so that rows in which two copies differ can be named.

Digests (`digests`) say that two copies differ in a range of sequence numbers, long after the rows were acknowledged and
released. So each site keeps references to what it has emitted last, up to a size; nothing is copied or computed on the
path of rows. When digests differ, the controller asks both sites for a word for each sequence number of the range, and
then for the rows of the first numbers whose words differ.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..exchange.edge_bodies import LaneBody, rows_of_edges
from ..exchange.rows import PRODUCER, SN, SUB, Rows, gather
from ..model.subseq import words_of
from ..types.to_python import UNREPRESENTABLE, format_row, to_python
from ..wire.codec import Word
from .digests import EVERY, Skips

KEPT_MAX_BYTES = 16 << 20  # Of each stage.
KEPT_MAX_NUMBERS = 4 * EVERY  # A copy that is further ahead of the other has released what it emitted.
TEXT_MAX_CHARS = 300  # Of one row.
_ROWS_SHOWN_MAX = 3  # Of those that were emitted for one sequence number.


class _Output(NamedTuple):
    """What one step emitted for (after, upto] of these partitions, by edge; and what it skipped."""

    after: int
    upto: int
    partitions: frozenset[int]
    edges: tuple[pa.RecordBatch | None, ...]
    skipped: Skips
    size_bytes: int
    last: int  # The last sequence number of all its rows; a stage that is not ordered emits rows after `upto`.


class EmittedRows:
    """The last output of one stage."""

    def __init__(self, ordered: bool) -> None:
        self._ordered = ordered
        self._outputs: deque[_Output] = deque()
        self._size_bytes = 0
        self._released_upto = 0  # Of all outputs that are no longer kept.
        self._incomplete: set[int] = set()  # Partitions for which a donor emitted rows that are not here.

    def keep(self, body: LaneBody, after: int, upto: int, partitions: frozenset[int], skipped: Skips) -> None:
        """Keep what was emitted for (after, upto] of `partitions`, and release the oldest of what is too much."""
        rows = rows_of_edges(body)
        edges = tuple(each.wide for each in rows)
        size_bytes = sum(wide.get_total_buffer_size() for wide in edges if wide is not None)
        last = upto
        if not self._ordered:
            last = max([upto, *(each.last_sn for each in rows if len(each)), *(sn for _, sn in skipped)])
        self._outputs.append(_Output(after, upto, partitions, edges, skipped, size_bytes, last))
        self._size_bytes += size_bytes
        while self._size_bytes > KEPT_MAX_BYTES or self._outputs[0].upto < upto - KEPT_MAX_NUMBERS:
            oldest = self._outputs.popleft()
            self._size_bytes -= oldest.size_bytes
            self._released_upto = max(self._released_upto, oldest.last)
            if not self._outputs:
                break

    def on_installed(self, partition: int) -> None:
        """Note that a copy was installed. In a stage that is not ordered, its donor may have emitted rows ahead."""
        if not self._ordered:
            self._incomplete.add(partition)

    def words(self, partition: int, after: int, upto: int) -> tuple[int, list[tuple[int, Word]]]:
        """Return the position after which all rows of `partition` are kept, and a word for each number with rows.

        Words are of (after, upto]. Equal rows have equal words, however they were batched.
        """
        after = max(after, self._kept_after(partition, upto))
        words: dict[int, int] = {}
        for sn, text in self._rows(partition, after, upto):
            word = int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")
            words[sn] = (words.get(sn, 0) + word) % (1 << 64)
        return after, sorted((sn, Word(word)) for sn, word in words.items())

    def texts(self, partition: int, numbers: Sequence[int]) -> list[str]:
        """Return what was emitted for each of these sequence numbers, as text."""
        found: dict[int, list[str]] = {sn: [] for sn in numbers}
        for wanted in found:
            for sn, text in self._rows(partition, wanted - 1, wanted):
                found[sn].append(text.partition(" ")[2])
        return [_listed(rows) for rows in found.values()]

    def _kept_after(self, partition: int, upto: int) -> int:
        """Return the position after which everything up to `upto` is kept; `upto` if nothing is."""
        after: int | None = None
        for output in reversed(self._outputs):
            if partition not in output.partitions:
                continue
            if after is not None and output.upto != after:
                break  # The copy was elsewhere in between.
            after = output.after
        if after is None or partition in self._incomplete:
            return upto
        return min(upto, max(int(after), self._released_upto))

    def _rows(self, partition: int, after: int, upto: int) -> Iterator[tuple[int, str]]:
        """Yield number and text of each row; the text begins with its place, without a space."""
        for output in self._outputs:
            for edge, wide in enumerate(output.edges):
                if wide is not None and partition in output.partitions:
                    yield from _rows_of(edge, Rows(wide).between(after, upto), partition)
            for pid, sn in output.skipped:
                if pid == partition and after < sn <= upto:
                    yield sn, "skipped (skipped)"


def _rows_of(edge: int, rows: Rows, partition: int) -> Iterator[tuple[int, str]]:
    if not len(rows):
        return
    places = np.flatnonzero(rows.hidden(PRODUCER) == partition)
    sns = rows.hidden(SN)[places].tolist()
    subs = [word[places].tolist() for word in words_of(rows.hidden(SUB))]
    texts = _texts(gather(rows.user, places))
    for place, (sn, text) in enumerate(zip(sns, texts, strict=True)):
        words = [word[place] for word in subs]
        while words and words[-1] == 0:
            words.pop()  # Words of zeros may be present or not, as the other rows of a batch require.
        yield sn, f"{edge}/{'.'.join(map(str, words))} {text}"


def _texts(user: pa.RecordBatch) -> Iterator[str]:
    """Yield each row as text. Minus zero is zero, as it is for digests."""
    columns = [
        pc.add(column.cast(pa.float64()), 0.0) if pa.types.is_floating(column.type) else column
        for column in user.columns
    ]
    names = user.schema.names
    try:
        values = [to_python(column) for column in columns]
    except UNREPRESENTABLE:
        batch = pa.RecordBatch.from_arrays(columns, names=names)
        yield from (format_row(batch, place) for place in range(len(batch)))
        return
    yield from (repr(dict(zip(names, row, strict=True))) for row in zip(*values, strict=True))


def _listed(rows: list[str]) -> str:
    if not rows:
        return "no row"
    shown = [text if len(text) <= TEXT_MAX_CHARS else f"{text[:TEXT_MAX_CHARS]}..." for text in rows[:_ROWS_SHOWN_MAX]]
    more = len(rows) - len(shown)
    return ", ".join(shown) + (f" and {more} more" if more else "")


def differing_numbers(first: Iterable[tuple[int, int]], second: Iterable[tuple[int, int]]) -> list[int]:
    """Return the sequence numbers whose words differ, or that only one of two copies has.

    >>> differing_numbers([(1, 7), (2, 8), (4, 9)], [(1, 7), (2, 5), (3, 3), (4, 9)])
    [2, 3]
    """
    some, others = dict(first), dict(second)
    return [sn for sn in sorted(some.keys() | others.keys()) if some.get(sn) != others.get(sn)]
