"""Digests: what each partition of a site has emitted, as one number, at positions that all copies agree on.

Copies of a partition emit the same rows, though not in the same steps. So the digest of a partition is a sum over its
rows: it does not depend on how they were cut. It is taken at every `EVERY`-th sequence number; whoever holds the
digests of two copies compares them (`divergence`). When a copy moves, its digest moves with it.

Departure: DESIGN.md has the digests travel on acks, to the other copy's site. Here they go to the controller, at
positions fixed beforehand, because then neither the protocol nor what a site keeps depends on them, and copies are
compared that have no consumer in common.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ..hashing import hash_rows, mix
from ..wire.rows import PRODUCER, SN, SUB, Rows

EVERY = 1 << 16  # Sequence numbers.

Words = npt.NDArray[np.uint64]
Skips = Sequence[tuple[int, int]]  # Partition and sequence number of each row.


class Digests:
    """The digests of one stage with so many partitions."""

    def __init__(self, partitions: int) -> None:
        self._sums: Words = np.zeros(partitions, dtype=np.uint64)
        self.upto = 0  # Of the cohort that was added last.

    def add(self, rows: Rows, after: int, upto: int, skipped: Skips = ()) -> list[tuple[int, Words]]:
        """Take in what was emitted for (after, upto]; return the digests of all partitions at agreed positions.

        Of rows that were `skipped` nothing is emitted; that they were has to be the same in all copies all the same.
        """
        taken = []
        cuts = range((after // EVERY + 1) * EVERY, upto + 1, EVERY)
        for cut in cuts:
            self._take_in(rows.between(after, cut))
            self._leave_out(skipped, after, cut)
            taken.append((cut, self._sums.copy()))
            after = cut
        self._take_in(rows.between(after, upto))
        self._leave_out(skipped, after, upto)
        self.upto = upto
        return taken

    def get(self, partition: int) -> int:
        """The digest of a partition, as it is now."""
        return int(self._sums[partition])

    def put(self, partition: int, digest: int) -> None:
        """A copy has come, with its digest."""
        self._sums[partition] = digest

    def _take_in(self, rows: Rows) -> None:
        if len(rows):
            words = hash_rows([column for column in rows.user.columns if _has_tokens(column.type)])
            words = mix(words + rows.hidden(SN).view(np.uint64))
            # A `sub` that is left out is zero: whether it is depends on the rows beside, and so on how they were cut.
            sub = rows.hidden(SUB)
            words = mix(words if sub is None else words + sub)
            np.add.at(self._sums, rows.hidden(PRODUCER), words)

    def _leave_out(self, skipped: Skips, after: int, upto: int) -> None:
        here = [(partition, sn) for partition, sn in skipped if after < sn <= upto]
        if here:
            partitions, sns = np.array(here, dtype=np.int64).T
            # Twice mixed: no row that is emitted has such a word.
            np.add.at(self._sums, partitions, mix(mix(sns.astype(np.uint64))))


def _has_tokens(kind: Any) -> bool:
    """Nested values have no hash: they are not compared."""
    return not pa.types.is_nested(kind)
