"""Runs an `Operator`: an instance for each partition."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from ..model.batch import Batch
from ..model.operator import Operator, OperatorStep, Punctuation
from .hosted import Hosted


class PerPartition(Hosted):
    """An `Operator`: an instance for each partition."""

    def __init__(self, step: OperatorStep, state_in_memory: bool = True) -> None:
        super().__init__(step, state_in_memory)
        self._instances: dict[int, Operator] = {}
        self._heeds_marks = False  # Unless one of them defines what it does then.

    def open(self, partitions_held: Iterable[int]) -> None:
        for pid in partitions_held:
            self._add(pid)

    def _add(self, pid: int) -> Operator:
        instance: Operator = self._new(pid)
        self._call(pid, None, instance.open, self.step.context(pid))
        self._instances[pid] = instance
        self._heeds_marks |= getattr(instance.on_punctuation, "__func__", None) is not Operator.on_punctuation
        return instance

    def _instance(self, pid: int) -> Operator:
        held = self._instances.get(pid)
        assert held is not None, f"step {self.step.name!r}: partition {pid} is not held here"
        return held

    @property
    def needs_punctuations(self) -> bool:
        return self._heeds_marks

    def process(self, batch: Batch) -> Batch | None:
        if len(batch) == 0:
            return None
        batch = self._ours(batch)
        first = int(batch.partition[0])
        if (batch.partition == first).all():
            emitted = self._process_one(first, batch)
            return None if emitted is None else emitted.ordered()

        # uint16 is sorted by radix: the cost is that of one pass, however many partitions there are.
        order = np.argsort(batch.partition, kind="stable")
        grouped = batch.take(order)
        starts = np.flatnonzero(np.diff(grouped.partition, prepend=grouped.partition[:1] ^ 1))
        parts, origins = [], []
        for start, stop in zip(starts.tolist(), [*starts[1:].tolist(), len(batch)], strict=True):
            emitted = self._process_one(int(grouped.partition[start]), grouped.slice(start, stop))
            if emitted is not None:
                parts.append(emitted)
                origins.append(order[start + emitted.origin])
        if not parts:
            return None
        # Sorted runs, one per partition, which a stable sort merges: far cheaper than ordering rows by place.
        merged = np.argsort(np.concatenate(origins), kind="stable")
        return Batch.concat(parts).take(merged).ordered()

    def _process_one(self, pid: int, rows: Batch) -> Any:
        process = self._instance(pid).process
        # The first output may have been seen a moment ago, in another partition.
        rows.output = self._output
        return self._checked(self._call(pid, rows, process, rows), rows, process)

    def punctuate(self, p: Punctuation) -> Batch | None:
        parts = []
        for pid in sorted(self._instances.keys() if p.partitions is None else p.partitions):
            columns = self._call(pid, None, self._instance(pid).on_punctuation, p)
            if columns is not None:
                parts.append((columns, pid))
        return self._caused(parts, p)

    def close(self) -> None:
        for pid in list(self._instances):
            self.drop_partition(pid)

    def get_partition_state(self, pid: int) -> Any:
        return self._state(pid, self._instance(pid).get_state)

    def install_partition_state(self, pid: int, state: Any) -> None:
        instance = self._made(pid)
        if state is not None:
            self._call(pid, None, instance.install_state, state)

    def _made(self, pid: int) -> Operator:
        """The partition's instance; it may be about to get its first state."""
        return self._instances[pid] if pid in self._instances else self._add(pid)

    def init_trans(self, pid: int) -> None:
        self._tell(pid, self._made(pid), "init_trans")

    def end_trans(self, pid: int) -> None:
        self._tell(pid, self._instance(pid), "end_trans")

    def drop_partition(self, pid: int) -> None:
        instance = self._instances.pop(pid, None)
        if instance is not None:
            self._call(pid, None, instance.close)
