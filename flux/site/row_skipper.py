"""Skipping: an operator of which the rows that make it raise are left out, as if they had never come.

An operator that raises may have changed its state already, and a batch that fails does not say which row it was. So
the state is put back to where it was before the batch, and the rows are given again in halves, and halves of halves,
until those that fail are alone. Their neighbours are processed, they are not: what an operator makes of rows does not
depend on how they are cut, so every copy leaves out the same ones. A copy that did not is found by its digest.

To put it back, the state is saved now and then, and the input since is kept: a partition that fails gets the saved
state and the rows behind it again. It is saved when the input that is kept has become as large as what is saved, so
that saving costs each row the same however large the state is, and both together at most twice the state and a little.

How many rows of a partition were left out is part of its state, and moves with it: each has a number of its own that
is the same in all copies.
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
from ..types.errors import OperatorError, StateError
from ..types.to_python import format_row
from ..wire.state_codec import decode, encode

KEPT_MIN_BYTES = 4 << 20  # Input that is kept, before the state is saved again, however small it is.
_MARK_BYTES = 100  # About what a punctuation takes.
SHOWN_MAX = 100  # Rows that a process tells with their content; the others are counted.
_VALUES_MAX_CHARS = 500
_ERROR_MAX_CHARS = 2_000


@dataclass(frozen=True, slots=True, kw_only=True)
class SkippedInput:
    """A row that was left out: the `nth` of its partition. `shown` is its content and the error, if they are told."""

    partition: int
    nth: int
    sn: int
    shown: tuple[str, str] | None


@dataclass(slots=True)
class _Saved:
    """A partition's state, and how much of the input that is kept is in it."""

    packed: bytes
    behind: int


class RowSkipper(Hosted):
    """The operator that `inner` drives; rows for which it raises are in `skipped` until they are taken."""

    def __init__(self, inner: Hosted) -> None:
        super().__init__(inner.step, inner.state_in_memory)
        self._inner = inner
        self.words = inner.words
        self._counts: dict[int, int] = {}  # Of the partitions that are held.
        self._saved: dict[int, _Saved] = {}
        self._saved_bytes = 0
        self._kept: list[Batch | Punctuation] = []
        self._kept_bytes = 0
        self._shown = 0
        self._skipped: list[SkippedInput] = []
        self._arrived: set[int] = set()

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
            return self._one_by_one(batch, partitions)
        self._keep(batch, batch.arrow.nbytes)
        return emitted

    def punctuate(self, p: Punctuation) -> Batch | None:
        """What is raised for a punctuation stops the run: it is no row, and cannot be left out."""
        caused = self._inner.punctuate(p)
        self._keep(p, _MARK_BYTES)
        return caused

    def close(self) -> None:
        self._inner.close()

    def take_late(self) -> dict[int, int]:
        return self._inner.take_late()

    @property
    def output(self) -> Any:
        return self._inner.output

    def learn(self, output: Any) -> None:
        self._inner.learn(output)

    # What was left out, for those who count.

    def take_skipped(self) -> tuple[dict[int, int], list[SkippedInput]]:
        """How many rows were left out of the partitions of which that is news, and which of them just now."""
        skipped, self._skipped = self._skipped, []
        news = {row.partition for row in skipped} | self._arrived
        self._arrived = set()
        return {pid: self._counts[pid] for pid in sorted(news) if pid in self._counts}, skipped

    # A partition moves: the number of rows left out comes first.

    def get_partition_state(self, pid: int) -> Any:
        return _behind(self._counts[pid], self._inner.get_partition_state(pid))

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

    # How rows are left out.

    def _one_by_one(self, batch: Batch, partitions: list[int]) -> Batch | None:
        """Process a batch that has failed: each partition from where it was before, without the rows that fail."""
        parts: list[Batch] = []
        for pid in partitions:
            self._go_back(pid)
            parts += self._halved(pid, batch.take(np.flatnonzero(batch.partition == pid)))
        return Batch.concat(parts).ordered() if parts else None

    def _halved(self, pid: int, rows: Batch) -> Iterator[Batch]:
        """Yield what is emitted for a partition's rows; its saved state goes along with them."""
        try:
            emitted = self._inner.process(rows)
        except OperatorError as error:
            _raise_unless_of_a_row(error)
            self._restore(pid)
            if len(rows) == 1:
                self._leave_out(pid, rows, error)
                return
            middle = len(rows) // 2
            yield from self._halved(pid, rows.slice(0, middle))
            yield from self._halved(pid, rows.slice(middle, len(rows)))
        else:
            self._save(pid)
            if emitted is not None:
                yield emitted

    def _leave_out(self, pid: int, row: Batch, error: OperatorError) -> None:
        self._counts[pid] += 1
        shown = None
        if self._shown < SHOWN_MAX:
            self._shown += 1
            values = format_row(row.arrow, 0)[:_VALUES_MAX_CHARS]
            raised, _, _ = str(error.args[0]).partition(ROW_WAS)
            shown = (values, raised[:_ERROR_MAX_CHARS])
        self._skipped.append(SkippedInput(partition=pid, nth=self._counts[pid], sn=int(row.sn[0]), shown=shown))

    # Saved states, and the input behind them.

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
            packed = encode(pieces, f"step {self.step.name!r}, partition {pid}", words=self.words)
        except StateError as error:
            raise StateError(
                'on_error="skip" puts the state back when an operator raises, so it must be one that can be moved. '
                f"{error}"
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
        for piece in decode(self._saved[pid].packed, words=self.words):
            self._inner.install_partition_state(pid, piece)
        self._inner.end_trans(pid)

    def _go_back(self, pid: int) -> None:
        """Put a partition to where it was behind all that is kept, and save it there."""
        self._restore(pid)
        try:
            for what in self._kept[self._saved[pid].behind :]:
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


def _behind(count: int, state: Any) -> Iterator[Any]:
    yield count
    if isinstance(state, GeneratorType):
        yield from state
    else:
        yield state


def _raise_unless_of_a_row(error: OperatorError) -> None:
    """Too little memory is a matter of the machine: the other copy, on another one, would not leave the row out."""
    if isinstance(error.__cause__, MemoryError):
        raise error
