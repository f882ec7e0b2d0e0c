"""Outlet world: a simulated run whose output a scripted query of Spark reads, from `flux.spark.Outlet`.

The reader is the production one. Spark plans a micro-batch and notes its offsets in its checkpoint, commits the one
before, has tasks read the pieces, and notes the batch as done. Tasks read pieces twice, or when the batch is long over.
The query dies, also in the middle of what it writes, and goes on from its checkpoint: it reads the batch that it had
planned again. Now and then it asks for an earlier batch, as one with an old checkpoint does.

What must hold besides what holds in any run: a batch has the same rows each time it is read; all batches together are
the output; and an earlier batch is read as it was, or refused.
"""

from __future__ import annotations

import json
import random
from dataclasses import replace
from typing import Any

import trio
from pyspark.sql.pandas import types as _imported_before_a_world_runs  # noqa: F401
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from ..spark.sink import outlet_store
from ..spark.sink.reader import OutletReader, Piece, schema_of
from .doom import DISK, MOMENTS, Doom
from .kernel import WorldProcess
from .process_world import ProcessWorld
from .world_flow import OUTLET, WorldFlow

__all__ = ["OutletWorld"]

_OPTIONS = {"path": str(OUTLET)}
_POLL_S = 0.005
_PAUSE_MAX_S = 0.02
_QUERY = "query"
_TOO_OLD = "its checkpoint is older"
_DEATHS = (0, 1, 3, 8)  # Of the query.

ReadRows = list[dict[str, Any]]
Offset = dict[str, Any]


class OutletWorld(ProcessWorld):
    """The world of a seed."""

    kind = "outlet"

    def __init__(self, seed: int, **settings: Any) -> None:
        super().__init__(seed, **settings)
        self.offsets: list[tuple[Offset, Offset]] = []  # The checkpoint: begin and end of each batch that was planned,
        self.batches: list[ReadRows] = []  # and the rows of those that are done.
        self.read: dict[int, ReadRows] = {}  # The rows of each batch that was read, done or not.
        self._query_rng = random.Random(f"{seed} query")
        self._queries = 0

    def draw_flow(self) -> WorldFlow:
        """Return the dataflow of this world."""
        return replace(super().draw_flow(), sink="outlet")

    async def main(self) -> None:
        """Run the dataflow and the query, with faults, and check what came of it."""
        self._start_query()
        if self.injector.has_faults:
            self.nursery.start_soon(self._trouble_query)
        await super().main()

    def _start_query(self) -> None:
        self._queries += 1
        name = f"{_QUERY}.{self._queries}"
        query = _Query(self, random.Random(f"{self.seed} {name}"))
        self._query = self.system.kernel.start(self.nursery, name, _QUERY, lambda: query, self.crashed(name))

    async def _trouble_query(self) -> None:
        rng = self._query_rng
        for _ in range(rng.choice(_DEATHS)):
            await trio.sleep(rng.expovariate(20))
            if self._query.is_dead or self.is_ending:
                continue
            self.injector.last_at = self.now
            if rng.random() < 0.3:
                self.note_fault(None, f"kill {self._query.name}")
                self.system.kernel.end(self._query, -9)
            else:
                self._query.doom = Doom(kind=DISK, n=rng.randint(1, 4), moment=rng.choice(MOMENTS))
                self.note_fault(None, f"{self._query.name} is to die: {self._query.doom}")

    def _exited(self, process: WorldProcess) -> None:
        if process.role != _QUERY:
            super()._exited(process)
            return
        self.deaths += 1
        self.system.kernel.at(self.now + self._query_rng.uniform(0, 0.05), self._start_query)

    def take(self, number: int, rows: ReadRows) -> None:
        """Take the rows of a batch, and compare them with those that it had before."""
        if self.read.setdefault(number, rows) != rows:
            self.violate(f"batch {number} has the rows {rows}, and had {self.read[number]} before")

    # What a run with an outlet is besides.

    def _is_over(self) -> bool:
        return super()._is_over() and sum(map(len, self.batches)) >= self.flow.sources * self.flow.rows

    def _rows_at_sink(self) -> int:
        disk = self.system.disk
        entries = [
            entry
            for path in disk.sizes()
            if path.startswith(str(OUTLET)) and path.endswith(outlet_store.INDEX)
            for entry in outlet_store.entries(disk.content(path))
        ]
        return max((entry.end for entry in entries), default=0)

    def _check_durable(self, durable: int) -> None:
        """Check that a query finds the rows after its last batch, and a new one those that are not committed."""
        try:
            reader = OutletReader(_OPTIONS, schema_of(_OPTIONS))
            committed = reader.initialOffset()
        except FileNotFoundError:
            if durable:
                self.violate(f"{durable} rows of output were durable, and after a loss of power there is no outlet")
            return
        done = sum(map(len, self.batches))
        end = reader._offset(max(durable, done))
        try:
            rows = [row for piece in reader.partitions(reader._offset(done), end) for row in _rows_of(reader, piece)]
            reader.partitions(committed, end)
        except (OSError, ValueError) as error:
            self.violate(f"{durable} rows were durable, {done} read, and after a loss of power: {error}")
            return
        if (text := self.flow.difference([*self._output(), *rows], is_whole=False)) is not None:
            self.violate(f"after a loss of power, {text}")

    def _output(self) -> ReadRows:
        return [row for rows in self.batches for row in rows]


class _Query:
    """A streaming query, from its start to its death."""

    def __init__(self, world: OutletWorld, rng: random.Random) -> None:
        self._world = world
        self._rng = rng
        self._limit = rng.choice((ReadAllAvailable(), ReadMaxRows(3), ReadMaxRows(20)))

    async def run(self) -> None:
        """Read batch after batch; begin anew after an error of the disk, and until there is an outlet."""
        async with trio.open_nursery() as self._nursery:
            while True:
                try:
                    await self._read_all(OutletReader(_OPTIONS, schema_of(_OPTIONS)))
                except OSError:
                    await trio.sleep(_POLL_S)

    async def _read_all(self, reader: OutletReader) -> None:
        world = self._world
        try:
            while True:
                number = len(world.batches)
                if len(world.offsets) == number and not self._plan(reader):
                    await trio.sleep(_POLL_S)
                    continue
                begin, end = world.offsets[number]
                reader.commit(begin)
                world.take(number, await self._batch(reader, number, begin, end))
                await trio.sleep(self._rng.uniform(0, _PAUSE_MAX_S))
                world.batches.append(world.read[number])
                if self._rng.random() < 0.2:
                    self._ask_for_earlier(reader, self._rng.randrange(number + 1))
        finally:
            if reader.unlock is not None and not world._query.is_dead:
                reader.unlock()

    def _plan(self, reader: OutletReader) -> bool:
        """Note the offsets of the next batch in the checkpoint; return False if there are no rows for one."""
        offsets = self._world.offsets
        begin = offsets[-1][1] if offsets else reader.initialOffset()
        end = reader.latestOffset(begin, self._limit)
        if end == begin:
            return False
        offsets.append((begin, json.loads(json.dumps(end))))
        return True

    async def _batch(self, reader: OutletReader, number: int, begin: Offset, end: Offset) -> ReadRows:
        pieces = list(enumerate(reader.partitions(begin, end)))
        self._rng.shuffle(pieces)
        rows: dict[int, ReadRows] = {}
        for place, piece in pieces:
            rows[place] = _rows_of(reader, piece)
            await trio.sleep(self._rng.uniform(0, _PAUSE_MAX_S))
            if self._rng.random() < 0.2 and _rows_of(reader, piece) != rows[place]:
                self._world.violate(f"a task that was repeated read other rows of batch {number}")
            if self._rng.random() < 0.1:
                self._nursery.start_soon(self._read_late, reader, piece, rows[place])
        return [row for place in sorted(rows) for row in rows[place]]

    async def _read_late(self, reader: OutletReader, piece: Piece, rows: ReadRows) -> None:
        await trio.sleep(self._rng.uniform(0, 10 * _PAUSE_MAX_S))
        try:
            late = _rows_of(reader, piece)
        except OSError:
            return  # They are deleted, or the disk cannot be read.
        if late != rows:
            self._world.violate(f"a late task read {late}, not {rows}")

    def _ask_for_earlier(self, reader: OutletReader, number: int) -> None:
        begin, end = self._world.offsets[number]
        try:
            pieces = reader.partitions(begin, end)
        except ValueError as error:
            if _TOO_OLD not in str(error):
                raise
            return
        self._world.take(number, [row for piece in pieces for row in _rows_of(reader, piece)])


def _rows_of(reader: OutletReader, piece: Piece) -> ReadRows:
    return [row for batch in reader.read(piece) for row in batch.to_pylist()]
