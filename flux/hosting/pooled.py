"""The host of a `PooledOperator`: one instance that separates partitions itself."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from ..model.batch import Batch
from ..model.error_location import locate
from ..model.operator import OperatorStep, PooledOperator, Punctuation
from ..types.arrays import ColumnError
from ..types.errors import OperatorError
from .hosted import Hosted

_EXPECTED = "expected None, or (columns, the partition of each row): a dict of columns, and as many whole numbers"


class Pooled(Hosted):
    """A `PooledOperator`: one instance that separates partitions itself."""

    def __init__(self, step: OperatorStep, state_in_memory: bool = True) -> None:
        super().__init__(step, state_in_memory)
        self._instance: Any = None

    def open(self, partitions_held: Iterable[int]) -> None:
        self._instance = self._new_operator(None)
        self._call(None, None, self._instance.open, self.step.context())

    @property
    def needs_punctuations(self) -> bool:
        return getattr(self._instance.on_punctuation, "__func__", None) is not PooledOperator.on_punctuation

    @property
    def takes_punctuations(self) -> bool:
        return self.needs_punctuations and _takes_punctuations(self._instance)

    def work(self, rows: Batch | None, punctuations: Sequence[Punctuation]) -> Batch | None:
        if not self.takes_punctuations or not punctuations or rows is None or not len(rows):
            return super().work(rows, punctuations)
        return self._process(rows, self._instance.process_with_punctuations, tuple(punctuations))

    def process(self, batch: Batch) -> Batch | None:
        return self._process(batch, self._instance.process) if len(batch) else None

    def _process(self, batch: Batch, process: Callable[..., Any], *among: Any) -> Batch | None:
        rows = self._as_input(batch)
        emitted = self._check_output(self._call(None, rows, process, rows, *among), rows, process)
        return None if emitted is None else emitted.ordered()

    def punctuate(self, p: Punctuation) -> Batch | None:
        caused = self._call(None, None, self._instance.on_punctuation, p)
        if caused is None:
            return None
        try:
            return self._caused_rows([self._checked_parts(caused)], p)
        except ColumnError as error:
            called = locate(self._instance.on_punctuation)
            raise OperatorError(f"{called} returned {error}; {_EXPECTED}", self.step.name, row=p.sn) from error

    def _checked_parts(self, caused: Any) -> tuple[Any, Any]:
        """Return columns and partitions from the result of `on_punctuation`; `ColumnError` if it is invalid."""
        if not isinstance(caused, tuple) or len(caused) != 2:
            raise ColumnError(f"a {type(caused).__name__}, {caused!r:.200}")
        columns, given = caused
        partition = np.asarray(given)
        if partition.ndim > 1 or (partition.dtype.kind not in "iu" and partition.size):
            raise ColumnError(f"partitions of {partition.dtype}, of shape {partition.shape}")
        unknown = partition[(partition < 0) | (partition >= self.step.partitions)]
        if unknown.size:
            last = self.step.partitions - 1
            raise ColumnError(f"a row of partition {unknown.flat[0]}; partitions are from 0 to {last}")
        return columns, partition

    def take_late(self) -> dict[int, int]:
        return dict(self._call(None, None, self._instance.take_late))

    def close(self) -> None:
        self._call(None, None, self._instance.close)

    def get_partition_state(self, pid: int) -> Any:
        instance = self._instance
        state = self._state(pid, instance.get_partition_state, pid)
        if state is not None and type(instance).install_partition_state is PooledOperator.install_partition_state:
            self._call(pid, None, instance.install_partition_state, pid, None)  # It raises, as on another site.
        return state

    def install_partition_state(self, pid: int, state: Any) -> None:
        if state is not None:
            self._call(pid, None, self._instance.install_partition_state, pid, state)

    def init_trans(self, pid: int) -> None:
        self._call_optional(pid, self._instance, "init_trans", pid)

    def end_trans(self, pid: int) -> None:
        self._call_optional(pid, self._instance, "end_trans", pid)

    def drop_partition(self, pid: int) -> None:
        self._call(pid, None, self._instance.drop_partition, pid)

    def operator(self, pid: int) -> Any:
        return self._instance


def _takes_punctuations(operator: Any) -> bool:
    """Return whether `process_with_punctuations` is up to date: no subclass overrides the other methods alone."""
    for namespace in (getattr(operator, "__dict__", {}), *map(vars, type(operator).__mro__)):
        if "process_with_punctuations" in namespace:
            return True
        if "process" in namespace or "on_punctuation" in namespace:
            return False
    return False
