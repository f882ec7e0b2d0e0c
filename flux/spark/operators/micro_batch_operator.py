"""The base of Spark's operators under Flux: they process micro-batches, partition by partition.

Rows are buffered until the boundary of their micro-batch, a punctuation, and then processed as in a Spark task: sorted
by key, with one clock and one watermark for all of them. So the output depends on the boundaries, and not on how rows
were batched in transfer. It belongs to the boundary: a later step gets it before the boundary, in the same micro-batch.

As in Spark, a watermark takes effect one micro-batch after it was written: it is known only when the rows of a
micro-batch have been read. Rows are late by the one before that. If the watermark has risen when the stream ends, one
more micro-batch without rows fires the timers that wait for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from ...model.batch import Batch
from ...model.error_location import locate
from ...model.gc_control import gc_paused
from ...model.operator import Context, PooledOperator, Punctuation
from ...types.errors import OperatorError
from ..source.batch_times import is_late
from .grouping_keys import KeyColumns, KeyGroups, group_rows
from .spark_columns import AsSpark

__all__ = ["BatchOperator", "Partition", "wrap_error"]

_NO_WATERMARK = -1  # No watermark has arrived.


class Partition:
    """The clock and watermarks of a partition, and how many micro-batches it has processed."""

    def __init__(self) -> None:
        self.clock_ms = 0
        self.watermark_ms = 0
        self.late_ms = 0
        self.latest_ms = _NO_WATERMARK  # The latest watermark; takes effect with the next micro-batch.
        self.batches = 0

    def advance(self) -> None:
        """End a micro-batch."""
        self.late_ms, self.watermark_ms = self.watermark_ms, max(0, self.latest_ms)
        self.batches += 1

    def to_plain(self) -> list[int]:
        return [self.clock_ms, self.watermark_ms, self.late_ms, self.latest_ms, self.batches]

    def from_plain(self, plain: list[int]) -> None:
        self.clock_ms, self.watermark_ms, self.late_ms, self.latest_ms, self.batches = plain


class BatchOperator(PooledOperator):
    """An operator on micro-batches. Subclasses define how to process one, and the format of their state."""

    # The event-time column of the input; rows with a time up to the watermark are late, and dropped.
    time_column: str | None = None
    waits_for_watermark = False
    as_spark: AsSpark

    def open(self, context: Context) -> None:
        self.keys = KeyColumns(context.key_columns)
        self.context = context
        self._pending: list[tuple[Any, Any]] = []
        self._partitions: dict[int, Any] = {}

    # Defined by subclasses.

    def new_partition(self) -> Partition:
        raise NotImplementedError

    def run(self, pid: int, partition: Any, groups: KeyGroups | None) -> Any:
        """Process a micro-batch of one partition; return its output in the form that `columns` takes."""
        raise NotImplementedError

    def columns(self, emitted: list[Any]) -> tuple[dict[str, Any], list[int]]:
        """Return the output of partitions as one set of columns, and the row count of each partition."""
        raise NotImplementedError

    def pieces(self, partition: Any) -> Iterator[dict[str, Any]]:
        """Yield a partition's state, without clock and watermarks."""
        raise NotImplementedError

    def install(self, partition: Any, piece: dict[str, Any]) -> None:
        raise NotImplementedError

    # Common to all.

    def process(self, batch: Batch) -> Batch | None:
        arrow = self.as_spark(batch.arrow)
        self.keys.learn(arrow.schema)
        self._pending.append((arrow, batch.partition))
        return None

    def on_punctuation(self, p: Punctuation) -> tuple[dict[str, Any], Any] | None:
        pids = sorted(p.partitions if p.partitions is not None else self._known_pids())
        partitions = [self._partition(pid) for pid in pids]
        if p.kind in ("clock", "end") and p.value is not None:
            for partition in partitions:
                partition.clock_ms = max(partition.clock_ms, p.value)
        if p.kind == "watermark" and p.value is not None:
            for partition in partitions:
                partition.latest_ms = max(partition.latest_ms, p.value)
        elif p.kind in ("batch", "end"):
            with gc_paused():
                self._check_watermark(partitions)
                batches = [self._run_batch(pids)] if p.kind == "batch" else self._run_last_batches(pids)
                return self._to_columns(batches, pids)
        return None

    def _check_watermark(self, partitions: list[Any]) -> None:
        """Raise `OperatorError` without watermarks: event-time timers would never fire, without any message."""
        if not self.waits_for_watermark or all(partition.latest_ms != _NO_WATERMARK for partition in partitions):
            return
        assert self.time_column is not None
        if any(arrow.column(self.time_column).null_count < arrow.num_rows for arrow, _ in self._pending):
            raise OperatorError(
                "it uses event time, and its source writes no watermark. Give flux.spark.Stream a DataFrame with "
                f"withWatermark({self.time_column!r}, ...), or another source to "
                f"flux.spark.MicroBatches(source, event_time={self.time_column!r}, delay=...)"
            )

    def _known_pids(self) -> set[int]:
        return set(self._partitions).union(*(row_pids.tolist() for _, row_pids in self._pending))

    def _partition(self, pid: int) -> Any:
        partition = self._partitions.get(pid)
        if partition is None:
            partition = self._partitions[pid] = self.new_partition()
        return partition

    def _run_batch(self, pids: list[int]) -> list[Any]:
        """Run a micro-batch of these partitions; return the output of each."""
        groups = self._take_groups(pids)
        emitted = []
        for pid in pids:
            partition = self._partitions[pid]
            emitted.append(self.run(pid, partition, groups))
            partition.advance()
        return emitted

    def _run_last_batches(self, pids: list[int]) -> list[list[Any]]:
        """Run the rows without a boundary at the end of the stream, and the timers that wait for the last watermark."""
        batches = []
        if any(np.isin(row_pids, pids).any() for _, row_pids in self._pending):
            batches.append(self._run_batch(pids))
        while self.waits_for_watermark and any(each.latest_ms > each.late_ms for each in map(self._partition, pids)):
            batches.append(self._run_batch(pids))
        return batches

    def _take_groups(self, pids: list[int]) -> KeyGroups | None:
        rows = self._take_pending(pids)
        if rows is None:
            return None
        arrow, row_pids = rows
        if self.time_column is not None:
            late = np.zeros(len(row_pids), np.bool_)
            limits = {pid: self._partitions[pid].late_ms for pid in pids}
            for limit in set(limits.values()):
                mask = np.isin(row_pids, [pid for pid in pids if limits[pid] == limit])
                late |= mask & is_late(arrow.column(self.time_column), limit)
            if late.any():
                arrow, row_pids = arrow.filter(pa.array(~late)), row_pids[~late]
        return group_rows(arrow, row_pids, self.keys) if len(row_pids) else None

    def _take_pending(self, pids: list[int]) -> tuple[Any, Any] | None:
        """Remove and return the buffered rows of these partitions."""
        if not self._pending:
            return None
        arrow = pa.concat_batches([arrow for arrow, _ in self._pending])
        row_pids = np.concatenate([row_pids for _, row_pids in self._pending])
        self._pending = []
        mask = np.isin(row_pids, pids)
        if not mask.all():
            self._pending = [(arrow.filter(pa.array(~mask)), row_pids[~mask])]
            arrow, row_pids = arrow.filter(pa.array(mask)), row_pids[mask]
        return (arrow, row_pids) if len(row_pids) else None

    def _to_columns(self, batches: list[list[Any]], pids: list[int]) -> tuple[dict[str, Any], Any] | None:
        outputs = [emitted for batch in batches for emitted in batch]
        all_pids = [pid for _ in batches for pid in pids]
        columns, counts = self.columns(outputs)
        if not sum(counts):
            return None
        return columns, np.repeat(np.array(all_pids, np.uint16), counts)

    # State transfer of a partition: clock and watermarks, buffered rows, state.

    def get_partition_state(self, pid: int) -> Any:
        partition = self._partition(pid)
        buffered = [arrow.filter(pa.array(row_pids == pid)) for arrow, row_pids in self._pending]
        buffered = [arrow for arrow in buffered if arrow.num_rows]
        return self._pieces(partition, buffered)

    def _pieces(self, partition: Any, buffered: list[Any]) -> Iterator[dict[str, Any]]:
        yield {"times": partition.to_plain()}
        for arrow in buffered:
            yield {"waiting": pa.Table.from_batches([arrow])}
        yield from self.pieces(partition)
        yield {"whole": True}

    def install_partition_state(self, pid: int, state: Any) -> None:
        partition = self._partition(pid)
        if "times" in state:
            partition.from_plain(state["times"])
        elif "waiting" in state:
            for arrow in state["waiting"].combine_chunks().to_batches():
                self.keys.learn(arrow.schema)
                self._pending.append((arrow, np.full(arrow.num_rows, pid, np.uint16)))
        else:
            self.install(partition, state)

    def drop_partition(self, pid: int) -> None:
        self._partitions.pop(pid, None)
        others = [(arrow, row_pids, row_pids != pid) for arrow, row_pids in self._pending]
        self._pending = [
            (arrow.filter(pa.array(keep)), row_pids[keep]) for arrow, row_pids, keep in others if keep.any()
        ]

    def partition_info(self) -> dict[int, int]:
        return {}


def wrap_error(error: BaseException, function: Callable[..., Any], pid: int, key: Any, batch: int) -> OperatorError:
    """Return an error for the user about an exception in their code: where it was raised, and for which key."""
    at_key = "" if key is None else f"; the key was {tuple(key)!r:.200}"
    return OperatorError(
        f"{locate(function, error)} raised {type(error).__name__}: {error}{at_key}, in micro-batch {batch} of its "
        'partition. Fix the code: on_error="skip" drops single rows, and this error is about a micro-batch',
        partition=pid,
    )
