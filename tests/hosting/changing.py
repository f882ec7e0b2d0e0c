"""Running sums in each form of operator, and what becomes of them in a second edition; for tests of changes of code."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

import numpy as np

import flux

OUTPUT = {"k": "int64", "sum": "int64"}


class _ByPartition:
    """The sums of one partition, by key."""

    def __init__(self) -> None:
        self.sums: dict[int, int] = {}

    def add(self, key: int, by: int) -> int:
        self.sums[key] = self.sums.get(key, 0) + by
        return self.sums[key]


class Plain(flux.Operator):
    output: ClassVar = OUTPUT

    def open(self, context: flux.Context) -> None:
        self.by = context.parameters.get("by", 1)
        self.own = _ByPartition()

    def process(self, batch: flux.Batch) -> Any:
        return batch.emit({"k": batch["k"], "sum": [self.own.add(key, self.by) for key in batch["k"].tolist()]})

    def get_state(self) -> Any:
        return sorted(self.own.sums.items())

    def install_state(self, state: Any) -> None:
        self.own.sums |= dict(state)


class PlainInPieces(Plain):
    def get_state(self) -> Any:
        return self._pieces()

    def _pieces(self) -> Iterator[Any]:
        for entry in sorted(self.own.sums.items()):
            yield [entry]


class PlainGoesOn(Plain):
    def on_change(self, context: flux.Context) -> None:
        self.by = context.parameters.get("by", 1)

    def get_state(self) -> Any:
        return sorted(self.own.sums.items())


class Keyed(flux.KeyedOperator):
    output: ClassVar = OUTPUT

    def open(self, context: flux.Context) -> None:
        self.by = context.parameters.get("by", 1)

    def on_tuple(self, key: Any, row: Any, state: Any) -> Any:
        state = (state or 0) + self.by
        return state, [{"k": row.k, "sum": state}]


class KeyedGoesOn(Keyed):
    def on_change(self, context: flux.Context) -> None:
        self.by = context.parameters.get("by", 1)


class Pooled(flux.PooledOperator):
    output: ClassVar = OUTPUT

    def open(self, context: flux.Context) -> None:
        self.by = context.parameters.get("by", 1)
        self.own: dict[int, _ByPartition] = {}

    def process(self, batch: flux.Batch) -> Any:
        places = zip(batch.partition.tolist(), batch["k"].tolist(), strict=True)
        sums = [self.own.setdefault(pid, _ByPartition()).add(key, self.by) for pid, key in places]
        return batch.emit({"k": batch["k"], "sum": np.array(sums)})

    def get_partition_state(self, pid: int) -> Any:
        return sorted(self.own[pid].sums.items()) if pid in self.own else None

    def install_partition_state(self, pid: int, state: Any) -> None:
        self.own.setdefault(pid, _ByPartition()).sums |= dict(state)

    def drop_partition(self, pid: int) -> None:
        self.own.pop(pid, None)


class PooledGoesOn(Pooled):
    def on_change(self, context: flux.Context) -> None:
        self.by = context.parameters.get("by", 1)


# The state of the second version is twice the sum, and what it emits is that.


def doubled(state: Any) -> Any:
    """Migrate a piece of state of the first version: of a `KeyedOperator` that of a key."""
    return 2 * state if isinstance(state, int) else [(key, 2 * value) for key, value in state]


class _Upgrades:
    state_version = 2

    def upgrade_state(self, piece: Any, version: int) -> Any:
        assert version == 1
        return doubled(piece)


class PlainTwice(_Upgrades, Plain):
    pass


class KeyedTwice(_Upgrades, Keyed):
    pass


class PooledTwice(_Upgrades, Pooled):
    pass
