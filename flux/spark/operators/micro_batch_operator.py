"""What Spark's operators have in common under Flux: they work on micro-batches, partition by partition.

Rows are kept until the boundary of their micro-batch, a punctuation, and then worked on as a Spark task would: sorted
by key, with one clock and one watermark for all of them. So what is emitted depends on where the boundaries stand and
not on how rows were batched on their way. It belongs to the boundary: a later step sees it before the boundary, in the
same micro-batch.

The watermark is in effect one micro-batch after it was written: those of the rows of a micro-batch are known when it
has been read, as in Spark. Rows are late by the one before that. If the watermark has risen when the stream ends, one
more micro-batch without rows lets the timers fire that wait for it.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from ...model.batch import Batch
from ...model.gc_control import gc_paused
from ...model.operator import Context, PooledOperator, Punctuation
from ...types.errors import OperatorError
from ..source.batch_times import is_late
from .grouping_keys import KeyColumns, KeyGroups, grouped
from .spark_columns import AsSpark

__all__ = ["BatchOperator", "Partition", "raised"]

_NONE = -1  # No watermark has come.


class Partition:
    """What a partition knows of time, and how many micro-batches it has seen."""

    def __init__(self) -> None:
        self.clock_ms = 0
        self.watermark_ms = 0
        self.late_ms = 0
        self.coming_ms = _NONE  # The watermark that was written last; in effect with the next micro-batch.
        self.batches = 0

    def advance(self) -> None:
        """A micro-batch is over."""
        self.late_ms, self.watermark_ms = self.watermark_ms, max(0, self.coming_ms)
        self.batches += 1

    def to_plain(self) -> list[int]:
        return [self.clock_ms, self.watermark_ms, self.late_ms, self.coming_ms, self.batches]

    def from_plain(self, plain: list[int]) -> None:
        self.clock_ms, self.watermark_ms, self.late_ms, self.coming_ms, self.batches = plain


class BatchOperator(PooledOperator):
    """An operator on micro-batches. Subclasses say what is done with one, and what their state is made of."""

    # A column of the input; rows whose event time is not behind the watermark are dropped.
    time_column: str | None = None
    waits_for_watermark = False
    as_spark: AsSpark

    def open(self, context: Context) -> None:
        self.keys = KeyColumns(context.key_columns)
        self.context = context
        self._pending: list[tuple[Any, Any]] = []
        self._held: dict[int, Any] = {}

    # What subclasses define.

    def new_partition(self) -> Partition:
        raise NotImplementedError

    def run(self, pid: int, held: Any, groups: KeyGroups | None) -> Any:
        """Work on a micro-batch of one partition; returns what is emitted, as `columns` understands it."""
        raise NotImplementedError

    def columns(self, emitted: list[Any]) -> tuple[dict[str, Any], list[int]]:
        """What partitions have emitted as one set of columns, and how many rows each partition has in it."""
        raise NotImplementedError

    def pieces(self, held: Any) -> Iterator[dict[str, Any]]:
        """A partition's state, besides what is known of time."""
        raise NotImplementedError

    def install(self, held: Any, piece: dict[str, Any]) -> None:
        raise NotImplementedError

    # What is the same for all.

    def process(self, batch: Batch) -> Batch | None:
        arrow = self.as_spark(batch.arrow)
        self.keys.learn(arrow.schema)
        self._pending.append((arrow, batch.partition))
        return None

    def on_punctuation(self, p: Punctuation) -> tuple[dict[str, Any], Any] | None:
        pids = sorted(p.partitions if p.partitions is not None else self._known())
        helds = [self._partition(pid) for pid in pids]
        if p.kind in ("clock", "end") and p.value is not None:
            for held in helds:
                held.clock_ms = max(held.clock_ms, p.value)
        if p.kind == "watermark" and p.value is not None:
            for held in helds:
                held.coming_ms = max(held.coming_ms, p.value)
        elif p.kind in ("batch", "end"):
            with gc_paused():
                self._check_watermark(helds)
                batches = [self._batch(pids)] if p.kind == "batch" else self._last_batches(pids)
                return self._emitted(batches, pids)
        return None

    def _check_watermark(self, helds: list[Any]) -> None:
        """Without watermarks, timers of event time would never fire, and nobody would know why."""
        if not self.waits_for_watermark or all(held.coming_ms != _NONE for held in helds):
            return
        assert self.time_column is not None
        if any(arrow.column(self.time_column).null_count < arrow.num_rows for arrow, _ in self._pending):
            raise OperatorError(
                "it works with event time, and its source writes no watermark. Give flux.spark.Stream a DataFrame with "
                f"withWatermark({self.time_column!r}, ...), or another source to "
                f"flux.spark.MicroBatches(source, event_time={self.time_column!r}, delay=...)"
            )

    def _known(self) -> set[int]:
        return set(self._held).union(*(partition.tolist() for _, partition in self._pending))

    def _partition(self, pid: int) -> Any:
        held = self._held.get(pid)
        if held is None:
            held = self._held[pid] = self.new_partition()
        return held

    def _batch(self, pids: list[int]) -> list[Any]:
        """Run a micro-batch of these partitions; what each has emitted."""
        groups = self._groups(pids)
        emitted = []
        for pid in pids:
            held = self._held[pid]
            emitted.append(self.run(pid, held, groups))
            held.advance()
        return emitted

    def _last_batches(self, pids: list[int]) -> list[list[Any]]:
        """What has no boundary of its own at the end of the stream, and what waits for the last watermark."""
        batches = []
        if any(np.isin(partition, pids).any() for _, partition in self._pending):
            batches.append(self._batch(pids))
        while self.waits_for_watermark and any(held.coming_ms > held.late_ms for held in map(self._partition, pids)):
            batches.append(self._batch(pids))
        return batches

    def _groups(self, pids: list[int]) -> KeyGroups | None:
        rows = self._taken(pids)
        if rows is None:
            return None
        arrow, partition = rows
        if self.time_column is not None:
            late = np.zeros(len(partition), np.bool_)
            limits = {pid: self._held[pid].late_ms for pid in pids}
            for limit in set(limits.values()):
                ours = np.isin(partition, [pid for pid in pids if limits[pid] == limit])
                late |= ours & is_late(arrow.column(self.time_column), limit)
            if late.any():
                arrow, partition = arrow.filter(pa.array(~late)), partition[~late]
        return grouped(arrow, partition, self.keys) if len(partition) else None

    def _taken(self, pids: list[int]) -> tuple[Any, Any] | None:
        """The rows that wait in these partitions, which wait no longer."""
        if not self._pending:
            return None
        arrow = pa.concat_batches([arrow for arrow, _ in self._pending])
        partition = np.concatenate([partition for _, partition in self._pending])
        self._pending = []
        ours = np.isin(partition, pids)
        if not ours.all():
            self._pending = [(arrow.filter(pa.array(~ours)), partition[~ours])]
            arrow, partition = arrow.filter(pa.array(ours)), partition[ours]
        return (arrow, partition) if len(partition) else None

    def _emitted(self, batches: list[list[Any]], pids: list[int]) -> tuple[dict[str, Any], Any] | None:
        everything = [emitted for batch in batches for emitted in batch]
        whose = [pid for _ in batches for pid in pids]
        columns, counts = self.columns(everything)
        if not sum(counts):
            return None
        return columns, np.repeat(np.array(whose, np.uint16), counts)

    # A partition moves: what is known of time, the rows that wait, the state.

    def get_partition_state(self, pid: int) -> Any:
        held = self._partition(pid)
        waiting = [arrow.filter(pa.array(partition == pid)) for arrow, partition in self._pending]
        waiting = [arrow for arrow in waiting if arrow.num_rows]
        return self._pieces(held, waiting)

    def _pieces(self, held: Any, waiting: list[Any]) -> Iterator[dict[str, Any]]:
        yield {"times": held.to_plain()}
        for arrow in waiting:
            yield {"waiting": pa.Table.from_batches([arrow])}
        yield from self.pieces(held)
        yield {"whole": True}

    def install_partition_state(self, pid: int, state: Any) -> None:
        held = self._partition(pid)
        if "times" in state:
            held.from_plain(state["times"])
        elif "waiting" in state:
            for arrow in state["waiting"].combine_chunks().to_batches():
                self.keys.learn(arrow.schema)
                self._pending.append((arrow, np.full(arrow.num_rows, pid, np.uint16)))
        else:
            self.install(held, state)

    def drop_partition(self, pid: int) -> None:
        self._held.pop(pid, None)
        others = [(arrow, partition, partition != pid) for arrow, partition in self._pending]
        self._pending = [
            (arrow.filter(pa.array(keep)), partition[keep]) for arrow, partition, keep in others if keep.any()
        ]

    def partition_info(self) -> dict[int, int]:
        return {}


def raised(error: BaseException, function: Callable[..., Any], pid: int, key: Any, held: Partition) -> OperatorError:
    """What a user is told of an error in their code: where it arose, and what it was given."""
    code = getattr(getattr(function, "__func__", function), "__code__", None)
    place = getattr(function, "__qualname__", repr(function))
    if code is not None:
        lines = [f.lineno for f in traceback.extract_tb(error.__traceback__) if f.filename == code.co_filename]
        place = f"{place} ({code.co_filename}:{lines[-1] if lines else code.co_firstlineno})"
    given = "" if key is None else f"; the key was {tuple(key)!r:.200}"
    return OperatorError(
        f"{place} raised {type(error).__name__}: {error}{given}, in micro-batch {held.batches} of its partition. Mend "
        'it: on_error="skip" leaves out rows, and what is raised for a whole micro-batch has none',
        partition=pid,
    )
