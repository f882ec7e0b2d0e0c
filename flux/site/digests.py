"""Digests: what each partition of a site has emitted, as one number, at positions that all copies agree on.

Copies of a partition emit the same rows, though not in the same steps. So the digest of a partition is a sum over its
rows: it does not depend on how they were cut. It is taken at every `EVERY`-th sequence number; whoever holds the
digests of two copies compares them (`divergence`). When a copy moves, its digest moves with it.

Departure: DESIGN.md has the digests travel on acks, to the other copy's site. Here they go to the controller, at
positions fixed beforehand, because then neither the protocol nor what a site keeps depends on them, and copies are
compared that have no consumer in common.

A stage that is not ordered emits rows beyond the position it has come to. They count when it has come past them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ..hashing import hash_rows, mix
from ..wire.fan import Body
from ..wire.rows import PRODUCER, SN, SUB, Rows

EVERY = 1 << 16  # Sequence numbers.

Words = npt.NDArray[np.uint64]
Skips = Sequence[tuple[int, int]]  # Partition and sequence number of each row.


class Digests:
    """The digests of one stage with so many partitions."""

    def __init__(self, partitions: int) -> None:
        self._sums: Words = np.zeros(partitions, dtype=np.uint64)
        # Of what is in the sums, what lies behind an agreed position that not all have come to.
        self._beyond: dict[int, Words] = {}

    def add(self, body: Body, after: int, upto: int, skipped: Skips = ()) -> list[tuple[int, Words]]:
        """Take in what was emitted for (after, upto]; return the digests of all partitions at agreed positions.

        Of rows that were `skipped` nothing is emitted; that they were has to be the same in all copies all the same.
        """
        parts = [(0, body)] if isinstance(body, Rows) else list(body.parts.items())
        entries = [_entries(edge, rows) for edge, rows in parts if len(rows)]
        if skipped:
            entries.append(_left_out(skipped))
        for _, partition, words in entries:
            np.add.at(self._sums, partition, words)
        last = max([upto, *(int(sn.max()) for sn, _, _ in entries)])
        cuts = range((after // EVERY + 1) * EVERY, last + 1, EVERY)
        for cut in cuts:
            beyond = self._beyond.setdefault(cut, np.zeros_like(self._sums))
            for sn, partition, words in entries:
                late = sn > cut
                np.add.at(beyond, partition[late], words[late])
        return [(cut, self._sums - self._beyond[cut]) for cut in cuts if cut <= upto]

    def forget(self, upto: int) -> None:
        """All partitions here have come to `upto`."""
        for cut in [cut for cut in self._beyond if cut <= upto]:
            del self._beyond[cut]

    def get(self, partition: int) -> int:
        """The digest of a partition, with all that it has emitted."""
        return int(self._sums[partition])

    def moving(self, partition: int) -> list[Any]:
        """What goes along with a copy: its digest, and what of it lies behind agreed positions."""
        beyond = [[cut, int(words[partition])] for cut, words in self._beyond.items() if words[partition]]
        return [self.get(partition), beyond]

    def put(self, partition: int, digest: int, beyond: Sequence[Sequence[int]] = ()) -> None:
        """A copy has come, with its digest."""
        self._sums[partition] = digest
        for words in self._beyond.values():
            words[partition] = 0
        for cut, word in beyond:
            self._beyond.setdefault(cut, np.zeros_like(self._sums))[partition] = word


Entries = tuple[npt.NDArray[np.int64], npt.NDArray[Any], Words]  # Sequence number, partition and word of each row.


def _entries(edge: int, rows: Rows) -> Entries:
    sn, sub = rows.hidden(SN), rows.hidden(SUB)
    columns = [column for column in rows.user.columns if _has_tokens(column.type)]
    words = hash_rows(columns) if columns else np.zeros(len(rows), np.uint64)
    words = mix(words + sn.view(np.uint64))
    if sub is not None:
        words = mix(words + sub)
    if edge:
        words = mix(words + np.uint64(edge))
    return sn, rows.hidden(PRODUCER), words


def _left_out(skipped: Skips) -> Entries:
    partition, sn = np.array(skipped, dtype=np.int64).T
    # Twice mixed: no row that is emitted has such a word.
    return sn, partition, mix(mix(sn.astype(np.uint64)))


def _has_tokens(kind: Any) -> bool:
    """Nested values have no hash: they are not compared."""
    return not pa.types.is_nested(kind)
