"""Runs a `PooledOperator`: one instance that tells partitions apart itself."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ..batch import Batch
from ..operator import OperatorStep, Punctuation
from .hosted import Hosted


class Pooled(Hosted):
    """A `PooledOperator`: one instance that tells partitions apart itself."""

    def __init__(self, step: OperatorStep, state_in_memory: bool = True) -> None:
        super().__init__(step, state_in_memory)
        self._instance: Any = None

    def open(self, partitions_held: Iterable[int]) -> None:
        self._instance = self._new(None)
        self._call(None, None, self._instance.open, self.step.context())

    def process(self, batch: Batch) -> Batch | None:
        if len(batch) == 0:
            return None
        rows = self._ours(batch)
        process = self._instance.process
        emitted = self._checked(self._call(None, rows, process, rows), rows, process)
        return None if emitted is None else emitted.ordered()

    def punctuate(self, p: Punctuation) -> Batch | None:
        caused = self._call(None, None, self._instance.on_punctuation, p)
        return None if caused is None else self._caused([caused], p)

    def take_late(self) -> dict[int, int]:
        return dict(self._call(None, None, self._instance.take_late))

    def close(self) -> None:
        self._call(None, None, self._instance.close)

    def get_partition_state(self, pid: int) -> Any:
        return self._state(pid, self._instance.get_partition_state, pid)

    def install_partition_state(self, pid: int, state: Any) -> None:
        if state is not None:
            self._call(pid, None, self._instance.install_partition_state, pid, state)

    def init_trans(self, pid: int) -> None:
        self._tell(pid, self._instance, "init_trans", pid)

    def end_trans(self, pid: int) -> None:
        self._tell(pid, self._instance, "end_trans", pid)

    def drop_partition(self, pid: int) -> None:
        self._call(pid, None, self._instance.drop_partition, pid)
