"""Row skipper: an operator that skips the rows for which it raises, as if they had never arrived.

An operator that raises may have changed its state already, and a batch that fails does not say which row it was. So
the state is restored to what it was before the batch, and the rows are replayed in halves, and halves of halves, until
those that fail are alone. Only those are skipped. What an operator makes of rows does not depend on how they are
batched, so every copy skips the same ones. A copy that does not is found by its digest.

To restore it, the state is saved now and then, and the input since is kept: a partition that fails gets the saved state
and replays the rows after it. The state is saved when the kept input has become as large as what is saved. So saving
costs each row the same however large the state is, and both together take at most twice the state and a little.

The number of skipped rows of a partition is part of its state, and is transferred with it. So each has a number of its
own that is the same in all copies.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from types import GeneratorType
from typing import Any

import numpy as np

from ..hosting import ROW_WAS, Hosted
from ..model.batch import Batch
from ..model.punctuation import Punctuation
from ..model.skipped_rows import skipped_row
from ..types.errors import OperatorError, StateError
from ..types.to_python import format_row
from ..wire.state_codec import decode, encode
from ..wire.state_types import StateTypes

KEPT_MIN_BYTES = 4 << 20  # At least so much input is kept before the state is saved again.
_MARK_BYTES = 100  # About what a punctuation takes.
SHOWN_MAX = 100  # Rows that a process reports with their content; the others are counted.
VALUES_MAX_CHARS = 500
_ERROR_MAX_CHARS = 2_000


@dataclass(frozen=True, slots=True, kw_only=True)
class SkippedInput:
    """A skipped row, the `nth` of its partition. `shown` is its content and the error, if they are reported."""

    partition: int
    nth: int
    sn: int
    shown: tuple[str, str] | None


@dataclass(slots=True)
class _Saved:
    """A partition's state, which has the first `kept_upto` of the kept inputs in it."""

    packed: bytes
    kept_upto: int


class RowSkipper(Hosted):
    """The operator that `inner` drives; `take_skipped` returns the rows for which it raised.

    With `keeps_rows`, `take_rows` returns them as rows to emit.
    """

    def __init__(self, inner: Hosted, keeps_rows: bool = False) -> None:
        super().__init__(inner.step, inner.state_in_memory)
        self._inner = inner
        self._counts: dict[int, int] = {}  # Of the partitions that are held.
        self._saved: dict[int, _Saved] = {}
        self._saved_bytes = 0
        self._kept: list[Batch | Punctuation] = []
        self._kept_bytes = 0
        self._shown = 0
        self._skipped: list[SkippedInput] = []
        self._arrived: set[int] = set()
        self._rows: list[Batch] | None = [] if keeps_rows else None

    @property
    def partition_opened(self) -> int | None:
        return self._inner.partition_opened

    def open(self, partitions_held: Iterable[int]) -> None:
        held = list(partitions_held)
        self._inner.open(held)
        self._counts = dict.fromkeys(held, 0)

    @property
    def needs_punctuations(self) -> bool:
        return self._inner.needs_punctuations

    def process(self, batch: Batch) -> Batch | None:
        partitions = np.unique(batch.partition).tolist()
        for pid in partitions:
            if pid not in self._saved:
                self._save(pid)
        try:
            emitted = self._inner.process(batch)
        except OperatorError as error:
            _raise_unless_of_a_row(error)
            return self._retry(batch, partitions)
        self._keep(batch, batch.arrow.nbytes)
        return emitted

    def punctuate(self, p: Punctuation) -> Batch | None:
        """Pass a punctuation on. What is raised for it stops the run: a punctuation cannot be skipped."""
        caused = self._inner.punctuate(p)
        self._keep(p, _MARK_BYTES)
        return caused

    def close(self) -> None:
        self._inner.close()

    def take_late(self) -> dict[int, int]:
        return self._inner.take_late()

    def time_partitions(self) -> None:
        self._inner.time_partitions()

    def take_costs(self) -> dict[int, float]:
        return self._inner.take_costs()

    def key_counts(self) -> dict[int, int]:
        return self._inner.key_counts()

    @property
    def output(self) -> Any:
        return self._inner.output

    def learn(self, output: Any) -> None:
        self._inner.learn(output)

    def words_of(self, pid: int) -> StateTypes:
        return self._inner.words_of(pid)

    def forget_saved(self, partitions: Iterable[int]) -> None:
        """Forget the saved states of partitions whose code changes: they are saved anew before the next rows."""
        for pid in partitions:
            self._forget(pid)

    # Counts of skipped rows.

    def take_skipped(self) -> tuple[dict[int, int], list[SkippedInput]]:
        """Return the counts by partition that changed since the last call, and the rows skipped since."""
        skipped, self._skipped = self._skipped, []
        changed = {row.partition for row in skipped} | self._arrived
        self._arrived = set()
        return {pid: self._counts[pid] for pid in sorted(changed) if pid in self._counts}, skipped

    def skipped_totals(self) -> dict[int, int]:
        """Return the counts of the partitions that have skipped any."""
        return {pid: count for pid, count in sorted(self._counts.items()) if count}

    def take_rows(self) -> list[Batch]:
        """Return the rows skipped since the last call, each as a batch of one row of `SKIPPED_SCHEMA`."""
        if not self._rows:
            return []
        rows, self._rows = self._rows, []
        return rows

    # State transfer: the count of skipped rows is the first piece.

    def get_partition_state(self, pid: int) -> Any:
        return _prepend(self._counts[pid], self._inner.get_partition_state(pid))

    def install_partition_state(self, pid: int, state: Any) -> None:
        if pid in self._counts:
            self._inner.install_partition_state(pid, state)
        else:
            self._counts[pid] = state
            self._arrived.add(pid)

    def drop_partition(self, pid: int) -> None:
        self._inner.drop_partition(pid)
        self._counts.pop(pid, None)
        self._forget(pid)

    def init_trans(self, pid: int) -> None:
        self._inner.init_trans(pid)

    def end_trans(self, pid: int) -> None:
        self._inner.end_trans(pid)

    # How rows are skipped.

    def _retry(self, batch: Batch, partitions: list[int]) -> Batch | None:
        """Process a batch that has failed, partition by partition from the state before it; skip the rows that fail."""
        parts: list[Batch] = []
        for pid in partitions:
            self._roll_back(pid)
            parts += self._bisect(pid, batch.take(np.flatnonzero(batch.partition == pid)))
        return Batch.concat(parts).ordered() if parts else None

    def _bisect(self, pid: int, rows: Batch) -> Iterator[Batch]:
        """Yield what is emitted for a partition's rows, and save its state after those that succeed."""
        try:
            emitted = self._inner.process(rows)
        except OperatorError as error:
            _raise_unless_of_a_row(error)
            self._restore(pid)
            if len(rows) == 1:
                self._skip(pid, rows, error)
                return
            middle = len(rows) // 2
            yield from self._bisect(pid, rows.slice(0, middle))
            yield from self._bisect(pid, rows.slice(middle, len(rows)))
        else:
            self._save(pid)
            if emitted is not None:
                yield emitted

    def _skip(self, pid: int, row: Batch, error: OperatorError) -> None:
        self._counts[pid] += 1
        if self._rows is not None:
            self._rows.append(skipped_row(row, self.step.name, error))
        shown = None
        if self._shown < SHOWN_MAX:
            self._shown += 1
            values = format_row(row.arrow, 0)[:VALUES_MAX_CHARS]
            raised, _, _ = str(error.args[0]).partition(ROW_WAS)
            shown = (values, raised[:_ERROR_MAX_CHARS])
        self._skipped.append(SkippedInput(partition=pid, nth=self._counts[pid], sn=int(row.sn[0]), shown=shown))

    # Saved states, and the input after them.

    def _keep(self, what: Batch | Punctuation, size: int) -> None:
        self._kept.append(what)
        self._kept_bytes += size
        if self._kept_bytes > max(KEPT_MIN_BYTES, self._saved_bytes):
            self._kept, self._kept_bytes = [], 0
            for pid in list(self._saved):
                self._save(pid)

    def _save(self, pid: int) -> None:
        self._forget(pid)
        self._inner.init_trans(pid)
        try:
            state = self._inner.get_partition_state(pid)
            pieces = list(state) if isinstance(state, GeneratorType) else [state]
            packed = encode(pieces, f"step {self.step.name!r}, partition {pid}", words=self.words_of(pid))
        except StateError as error:
            raise StateError(
                'on_error="skip" restores the state when an operator raises, so it must be one that can be '
                f"transferred. {error}"
            ) from error
        self._inner.end_trans(pid)
        self._saved[pid] = _Saved(packed, len(self._kept))
        self._saved_bytes += len(packed)

    def _forget(self, pid: int) -> None:
        saved = self._saved.pop(pid, None)
        if saved is not None:
            self._saved_bytes -= len(saved.packed)

    def _restore(self, pid: int) -> None:
        self._inner.drop_partition(pid)
        self._inner.init_trans(pid)
        for piece in decode(self._saved[pid].packed, words=self.words_of(pid)):
            self._inner.install_partition_state(pid, piece)
        self._inner.end_trans(pid)

    def _roll_back(self, pid: int) -> None:
        """Restore the state of a partition after all kept input, and save it."""
        self._restore(pid)
        try:
            for what in self._kept[self._saved[pid].kept_upto :]:
                if isinstance(what, Batch):
                    own = np.flatnonzero(what.partition == pid)
                    if len(own):
                        self._inner.process(what.take(own))
                elif what.partitions is None or pid in what.partitions:
                    self._inner.punctuate(replace(what, partitions=frozenset({pid})))
        except OperatorError as error:
            raise OperatorError(
                f"it raised for rows that it had processed before, when it was given them again: it is not "
                f"deterministic, or get_state and install_state do not keep all of its state. {error}",
                self.step.name,
                pid,
            ) from error
        self._save(pid)


def _prepend(count: int, state: Any) -> Iterator[Any]:
    yield count
    if isinstance(state, GeneratorType):
        yield from state
    else:
        yield state


def _raise_unless_of_a_row(error: OperatorError) -> None:
    """Raise an error for want of memory: the other copy, on another machine, might not skip the row."""
    if isinstance(error.__cause__, MemoryError):
        raise error
