"""Where Flux differs from bytewax, as docs/bytewax.rst lists it; what is about time is in test_bytewax.py."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import flux
from flux.types.errors import StateError
from flux.types.hashing import partition_of
from tests.adapters.moving_about import PARTITIONS, emitted

Emitted = tuple[list[Any], bool]


class Sizes:
    """Emits how many values it got at once."""

    def __init__(self, snapshot: Any) -> None:
        self.seen = snapshot or []

    def on_batch(self, values: list[Any]) -> Emitted:
        self.seen.append(len(values))
        return [{"size": len(values)}], False

    def snapshot(self) -> Any:
        return self.seen


def test_on_batch_gets_one_row_at_a_time() -> None:
    flow = flux.Dataflow("sizes")
    rows = flow.source(flux.sources.Table([{"k": 1, "v": n} for n in range(50)], batch_rows=50))
    output = {"k": "int64", "size": "int64"}
    rows.exchange("k").apply(flux.wrap_bytewax(Sizes, output=output)).sink(flux.sinks.Collect())
    assert flow.run().table.column("size").to_pylist() == [1] * 50


def test_a_key_is_a_tuple_of_the_columns_of_the_exchange() -> None:
    keys: list[Any] = []
    operator = flux.wrap_bytewax(Sizes, emit=lambda key, value: keys.append(key))
    emitted(operator, [{"k": 1, "at": None, "name": "x"}], key=("k", "name", "at"))
    assert keys == [(1, "x", None)]


@dataclass
class Seen:
    count: int


class Counts:
    """Has a state of a class of its own."""

    def __init__(self, snapshot: Seen | None) -> None:
        self.seen = snapshot or Seen(0)

    def on_item(self, value: Any) -> Emitted:
        self.seen = Seen(self.seen.count + 1)
        return [self.seen.count], False

    def snapshot(self) -> Seen:
        return self.seen


def test_a_class_of_ones_own_in_a_snapshot_is_named() -> None:
    rows = [{"k": 1}] * 3
    with pytest.raises(StateError, match="Seen"):
        emitted(flux.wrap_bytewax(Counts), rows, key=("k",), moves=[1])
    named = flux.wrap_bytewax(Counts, state_types=(Seen,))
    assert [row["value"] for row in emitted(named, rows, key=("k",), moves=[1])] == [1, 2, 3]


@pytest.mark.parametrize("moves", [[], [0], [0, 2]])
def test_snapshot_is_called_when_a_partition_moves(moves: list[int]) -> None:
    snapshots = 0

    class Noted(Counts):
        def snapshot(self) -> Seen:
            nonlocal snapshots
            snapshots += 1
            return super().snapshot()

    emitted(flux.wrap_bytewax(Noted, state_types=(Seen,)), [{"k": 1}] * 4, key=("k",), moves=moves)
    assert snapshots == len(moves)


class Clocked(Counts):
    """Reads the system's clock, which is not the same in two copies."""

    def on_item(self, value: Any) -> Emitted:
        return [datetime.now(UTC).isoformat()], False


def counted(builder: Any) -> flux.Dataflow:
    flow = flux.Dataflow("counted")
    operator = flux.wrap_bytewax(builder, state_types=(Seen,))
    rows = flow.source(flux.sources.Table([{"k": 1}] * 3))
    rows.exchange("k", partitions=2).apply(operator).sink(flux.sinks.Collect())
    return flow


def test_a_logic_that_reads_the_clock_itself_is_found() -> None:
    with pytest.raises(flux.FluxError, match="differ"):
        counted(Clocked).run(sites=2)


def test_a_second_run_begins_anew() -> None:
    flow = counted(Counts)
    for _ in range(2):
        assert flow.run(sites=2).table.column("value").to_pylist() == [1, 2, 3]


def test_a_builder_is_called_when_the_plan_is_made() -> None:
    built: list[Any] = []

    def builder(snapshot: Any) -> Counts:
        built.append(snapshot)
        return Counts(snapshot)

    flux.wrap_bytewax(builder)
    assert built == [None]


class AtEnd(Counts):
    def on_eof(self) -> Emitted:
        return [-1], True


@pytest.mark.parametrize("moves", [[], [2, 5]])
def test_keys_end_in_the_order_in_which_they_appeared(moves: list[int]) -> None:
    keys = [9, 2, 7, 2, 5, 9, 1, 8, 3]
    operator = flux.wrap_bytewax(AtEnd, state_types=(Seen,))
    rows = emitted(operator, [{"k": k} for k in keys], key=("k",), moves=moves)
    ended = [row["k"] for row in rows if row["value"] == -1]
    appeared = list(dict.fromkeys(keys))
    assert sorted(ended) == sorted(appeared)
    # Partitions take turns: those of one are in the order in which they appeared.
    assert all(of_one == sorted(of_one, key=appeared.index) for of_one in _by_partition(ended))


def _by_partition(keys: list[int]) -> list[list[int]]:
    partition = partition_of([pa.array(keys)], PARTITIONS)
    return [np.array(keys)[partition == pid].tolist() for pid in range(PARTITIONS)]
