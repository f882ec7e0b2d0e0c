"""The host of an `Operator`: an instance for each partition."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from ..model.batch import Batch
from ..model.operator import Operator, OperatorStep, Punctuation
from .hosted import Hosted
from .state_change import StateChange


class PerPartition(Hosted):
    """An `Operator`: an instance for each partition."""

    has_instance_by_partition = True

    def __init__(self, step: OperatorStep, state_in_memory: bool = True) -> None:
        super().__init__(step, state_in_memory)
        self._instances: dict[int, Operator] = {}
        self._has_on_punctuation = False  # Whether an instance defines it.
        self._costs_s: dict[int, float] | None = None  # Of the partitions' calls, if they are timed.
        self._opened: int | None = None

    def open(self, partitions_held: Iterable[int]) -> None:
        for pid in partitions_held:
            self._add(pid)

    @property
    def partition_opened(self) -> int | None:
        return self._opened

    def _add(self, pid: int) -> Operator:
        self._opened = pid
        instance: Operator = self._new_operator(pid)
        self._call(pid, None, instance.open, self.step.context(pid))
        self._hold(pid, instance)
        return instance

    def _hold(self, pid: int, instance: Operator) -> None:
        self._instances[pid] = instance
        self._has_on_punctuation |= getattr(instance.on_punctuation, "__func__", None) is not Operator.on_punctuation

    def _instance(self, pid: int) -> Operator:
        held = self._instances.get(pid)
        assert held is not None, f"step {self.step.name!r}: partition {pid} is not held here"
        return held

    @property
    def needs_punctuations(self) -> bool:
        return self._has_on_punctuation

    def process(self, batch: Batch) -> Batch | None:
        if len(batch) == 0:
            return None
        batch = self._as_input(batch)
        first = int(batch.partition[0])
        if (batch.partition == first).all():
            emitted = self._process_one(first, batch)
            return None if emitted is None else emitted.ordered()

        # uint16 is sorted by radix: the cost is one pass, whatever the number of partitions.
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
        # Sorted runs, one per partition, which a stable sort merges: far cheaper than sorting single rows.
        merged = np.argsort(np.concatenate(origins), kind="stable")
        return Batch.concat(parts).take(merged).ordered()

    def _process_one(self, pid: int, rows: Batch) -> Any:
        process = self._instance(pid).process
        # Another partition of this batch may just have defined the output schema.
        rows.output = self._output
        return self._check_output(self._call_timed(pid, rows, process, rows), rows, process)

    def _call_timed(self, pid: int, rows: Batch | None, function: Callable[..., Any], *args: Any) -> Any:
        if self._costs_s is None:
            return self._call(pid, rows, function, *args)
        began_s = time.monotonic()
        try:
            return self._call(pid, rows, function, *args)
        finally:
            self._costs_s[pid] = self._costs_s.get(pid, 0.0) + time.monotonic() - began_s

    def time_partitions(self) -> None:
        self._costs_s = {}

    def take_costs(self) -> dict[int, float]:
        if not self._costs_s:
            return {}
        costs_s, self._costs_s = self._costs_s, {}
        return costs_s

    def punctuate(self, p: Punctuation) -> Batch | None:
        parts = []
        for pid in sorted(self._instances.keys() if p.partitions is None else p.partitions):
            columns = self._call_timed(pid, None, self._instance(pid).on_punctuation, p)
            if columns is not None:
                parts.append((columns, pid))
        return self._caused_rows(parts, p)

    def close(self) -> None:
        for pid in list(self._instances):
            self.drop_partition(pid)

    def get_partition_state(self, pid: int) -> Any:
        instance = self._instance(pid)
        state = self._state(pid, instance.get_state)
        if state is not None and type(instance).install_state is Operator.install_state:
            self._call(pid, None, instance.install_state, None)  # It raises: no other site could install this state.
        return state

    def install_partition_state(self, pid: int, state: Any) -> None:
        instance = self._get_or_add(pid)
        if state is not None:
            self._call(pid, None, instance.install_state, state)

    def _get_or_add(self, pid: int) -> Operator:
        """Return the partition's instance; a new one if its first state is about to be installed."""
        return self._instances[pid] if pid in self._instances else self._add(pid)

    def operator(self, pid: int) -> Any:
        return self._get_or_add(pid)

    def take_over(self, before: Hosted, pid: int, change: StateChange) -> None:
        if not change.keeps:
            super().take_over(before, pid, change)
            return
        assert isinstance(before, PerPartition)
        self._hold(pid, before._instances.pop(pid))
        self.on_change(pid, before.step, self.step)

    def init_trans(self, pid: int) -> None:
        self._call_optional(pid, self._get_or_add(pid), "init_trans")

    def end_trans(self, pid: int) -> None:
        self._call_optional(pid, self._instance(pid), "end_trans")

    def drop_partition(self, pid: int) -> None:
        instance = self._instances.pop(pid, None)
        if instance is not None:
            self._call(pid, None, instance.close)
