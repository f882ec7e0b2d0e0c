"""A dataflow in which every partition has the same work, so that the best placement is known exactly.

There is one key for each partition. Rows come in blocks of one row for each partition, each block in an order of its
own. With two stages the second one gets its rows by another key, as evenly.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar, Literal

import numpy as np
import pyarrow as pa

import flux
from flux.types.hashing import partition_of

BLOCKS = 512
BATCH_ROWS = 128


class Keeper(flux.PooledOperator):
    """Passes rows on, and keeps `state_bytes` of state for each partition."""

    output: ClassVar = {"one": "int64", "two": "int64"}

    def open(self, context: Any) -> None:
        self._bytes = int(context.parameters.get("state_bytes", 0))
        self._states: dict[int, np.ndarray[Any, Any]] = {}

    def process(self, batch: flux.Batch) -> flux.Batch | None:
        return batch.emit({"one": batch["one"], "two": batch["two"]})

    def get_partition_state(self, pid: int) -> Iterator[Any]:
        state = self._states.get(pid)
        yield np.zeros(self._bytes, np.uint8) if state is None else state

    def install_partition_state(self, pid: int, state: Any) -> None:
        self._states[pid] = np.array(state, np.uint8)

    def drop_partition(self, pid: int) -> None:
        self._states.pop(pid, None)


def one_key_each(partitions: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    """A key for each partition, in the order of partitions."""
    keys = np.arange(200 * partitions, dtype=np.int64)
    found = partition_of([pa.array(keys)], partitions)
    _, first = np.unique(found, return_index=True)
    assert len(first) == partitions, "more keys are needed"
    return keys[first]


class EvenRows:
    """The function of a `Generator`: endless rows, as many for each partition."""

    def __init__(self, partitions: int) -> None:
        draw = np.random.default_rng(partitions)
        keys = one_key_each(partitions)
        one = np.concatenate([draw.permutation(keys) for _ in range(BLOCKS)])
        two = np.concatenate([draw.permutation(keys) for _ in range(BLOCKS)])
        self._rows = pa.record_batch({"one": one, "two": two})

    def __call__(self, offset: int, count: int) -> pa.RecordBatch:
        at = offset % self._rows.num_rows
        return self._rows.slice(at, min(count, self._rows.num_rows - at))


def even_flow(
    partitions: int,
    *,
    stages: int = 1,
    order: Literal["sn", "any"] = "sn",
    state_bytes: int = 0,
    batch_rows: int = BATCH_ROWS,
    name: str = "balance",
) -> flux.Dataflow:
    """One stage or two with `partitions` each, and a sink that takes rows in order or as they come."""
    flow = flux.Dataflow(name)
    rows = flow.source(flux.sources.Generator(EvenRows(partitions), batch_rows=batch_rows))
    for column in ("one", "two")[:stages]:
        rows = rows.exchange(column, partitions=partitions).apply(Keeper, state_bytes=state_bytes)
    rows.sink(flux.sinks.Null(), order=order)
    return flow
