"""How the tests of sources read them."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import trio
import trio.testing

from flux.sources import Source, SourceBatch, SourceContext

DEADLINE_S = 60.0


def batches_of(
    source: Source, directory: Path, after: Any = None, clock: trio.abc.Clock | None = None
) -> list[SourceBatch]:
    async def main() -> list[SourceBatch]:
        async with contextlib.aclosing(source.batches(SourceContext(directory), after)) as batches:  # type: ignore
            return [batch async for batch in batches]

    return trio.run(main)


def rows_of(batches: list[SourceBatch]) -> list[Any]:
    return [row for batch in batches for row in batch.rows.to_pylist()]


def values_of(source: Source, directory: Path, after: Any = None) -> list[Any]:
    return [next(iter(row.values())) for row in rows_of(batches_of(source, directory, after))]


def numbers(first: int, count: int) -> pa.Table:
    return pa.table({"n": pa.array(range(first, first + count), pa.int64())})


def counting(offset: int, count: int) -> dict[str, Any]:
    return {"n": list(range(offset, offset + count))}


def check_offsets(make: Callable[[], Source], directory: Path) -> None:
    """Behind each offset that a source gave come the rest of its rows."""
    given = batches_of(make(), directory)
    everything = rows_of(given)
    assert all(batch.rows.num_rows for batch in given), "batches are not empty"
    seen = list(itertools.accumulate(batch.rows.num_rows for batch in given))
    # A dozen of them, the last one among them, so that it does not take long.
    for index in range(len(given) - 1, -1, -max(1, len(given) // 12)):
        assert rows_of(batches_of(make(), directory, given[index].offset)) == everything[seen[index] :]


class Followed:
    """A source that does not end, read step by step: `more` waits until so many further values came."""

    def __init__(self, source: Source, directory: Path, after: Any = None) -> None:
        self._batches: Any = source.batches(SourceContext(directory), after)
        self.offsets: list[tuple[int, Any]] = []  # How many values came up to each offset.
        self.values: list[Any] = []
        self.released = 0  # Batches of which the source was told that every copy has them.
        self._received: list[Any] = []

    def release(self, batches: int) -> None:
        for received in self._received[self.released : self.released + batches]:
            received()
        self.released = min(self.released + batches, len(self._received))

    async def more(self, count: int) -> list[Any]:
        wanted = len(self.values) + count
        with trio.fail_after(DEADLINE_S):
            while len(self.values) < wanted:
                batch = await anext(self._batches)
                self.values += [next(iter(row.values())) for row in batch.rows.to_pylist()]
                self.offsets.append((len(self.values), batch.offset))
                self._received.append(batch.received)
        assert len(self.values) == wanted, self.values
        return self.values[-count:]

    async def aclose(self) -> None:
        await self._batches.aclose()
