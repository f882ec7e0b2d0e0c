"""Staging world: the hand-off from Spark in simulation: the staging area of an ingress, and Spark as scripted peers.

Spark's tasks stage attempts at partitions; some die in the middle of it, some are repeated, some finish after their
batch is committed. Its driver commits, aborts, repeats commits whose answer was lost, and begins a batch anew with
another number of partitions. The ingress is killed and started again.

What must hold: the rows of a batch are those of the attempts that a commit of it named, each time the batch is yielded;
batches are yielded in order; a commit that was accepted is of a batch that was yielded; and Spark gets to its end.

The files of attempts are on the real disk, because Arrow maps them into memory; the journal is on the simulated one.
"""

from __future__ import annotations

import contextlib
import random
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import trio

from ..spark.source import staging_protocol
from ..spark.source.staging import Staging, _FrameStream
from ..system import filesystem, network
from ..wire import address
from ..wire.link import accept_loop
from .doom import DISK, MOMENTS, SEND, Doom
from .kernel import WorldProcess
from .seeded_world import SeededWorld
from .simulated_stream import SimulatedStream

_PATH = "/simulated/staging.sock"
_SECRET = b"secret of the query"
_QUERY = "query"
_END_WITHIN_S = 120.0
_RETRY_S = 0.02
_LOST = (OSError, trio.BrokenResourceError, trio.ClosedResourceError)

Named = tuple[tuple[int, str, int, int], ...]  # Partition, attempt, rows and size of each.


class _RequestRefused(Exception):
    """The ingress answered with an error."""


class StagingWorld(SeededWorld):
    """The world of a seed."""

    kind = "staging"

    def __init__(
        self,
        seed: int,
        *,
        keeps_trace: bool = False,
        faults_max: int | None = None,
        left_out: frozenset[int] = frozenset(),
    ) -> None:
        super().__init__(seed, keeps_trace)
        self.commits: dict[int, list[Named]] = {}  # Those that were sent, by batch.
        self.yielded: dict[int, list[int]] = {}  # Rows by batch, in the order in which batches were yielded first.
        self.rows_of: dict[str, list[int]] = {}  # By attempt.
        self.has_ended = False
        self._batches = self.rng.randint(1, 6)
        planned = self.rng.choice((0, 5, 15, 30))
        self._planned = planned if faults_max is None else min(planned, faults_max)
        self._left_out = left_out
        self._drawn = 0
        self._ingress: WorldProcess | None = None
        self._last_at = 0.0
        self._values = 0

    @contextlib.contextmanager
    def surroundings(self) -> Iterator[None]:
        """Have a directory for the files of attempts; their journal is at the same place on the simulated disk."""
        with tempfile.TemporaryDirectory() as directory:
            self._directory = Path(directory)
            self.system.kernel.shown[directory] = "/simulated/staging"
            yield

    async def main(self) -> None:
        """Run Spark and the ingress, cause faults, and check what came of it."""
        kernel = self.system.kernel
        filesystem.make_directory(self._directory)
        kernel.note("world", f"{self.seed}: {self._batches} batches of Spark")
        self._listener = address.listen(f"unix:{_PATH}")
        kernel.on_exit = self._exited
        self._start_ingress()
        kernel.start(self.nursery, "spark", "spark", lambda: _Spark(self), self.crashed("spark"))
        self.nursery.start_soon(self._cause_faults)
        while not (self.has_ended or self.violations):
            await trio.sleep(_RETRY_S)
            if self.now > self._last_at + _END_WITHIN_S:
                self.violate(f"Spark has not got to its end {_END_WITHIN_S:g} s after the last fault")
        if not self.violations and sorted(self.yielded) != list(range(self._batches)):
            self.violate(f"the batches {sorted(self.yielded)} were yielded, of {self._batches} that were committed")

    # The ingress.

    def _start_ingress(self) -> None:
        kernel = self.system.kernel
        ingress = lambda: _StagingIngress(self)  # noqa: E731
        self._ingress = kernel.start(self.nursery, "ingress", "ingress", ingress, self.crashed("ingress"))

    def _exited(self, process: WorldProcess) -> None:
        if process is self._ingress:
            self.deaths += 1
            self._ingress = None
            self.system.kernel.at(self.now + self.rng.uniform(0, 0.05), self._start_ingress)

    async def take(self, batch: Any) -> None:
        """Take a batch as the source does: read its rows when there is room; it is done when the copies have them."""
        await trio.sleep(self.rng.choice((0, 0.1)))
        rows = [value for part in batch.batches() for value in part.column("n").to_pylist()]
        number = batch.batch_id
        self.system.kernel.note("ingress", f"yields batch {number} with {len(rows)} rows")
        named = [[value for one in commit for value in self.rows_of[one[1]]] for commit in self.commits.get(number, [])]
        if rows not in named:
            self.violate(f"batch {number} has the rows {rows}, which no commit of it named: {named}")
        if self.yielded.setdefault(number, rows) != rows:
            self.violate(f"batch {number} was yielded with other rows than before")
        if number != max(self.yielded):
            self.violate(f"batch {number} was yielded after batch {max(self.yielded)}")
        await trio.sleep(self.rng.uniform(0, 0.05))
        batch.done()

    # Faults.

    async def _cause_faults(self) -> None:
        while self._drawn < self._planned:
            await trio.sleep(self.rng.expovariate(20))
            process = self._ingress
            doom = Doom(kind=self.rng.choice((DISK, SEND)), n=self.rng.randint(1, 4), moment=self.rng.choice(MOMENTS))
            at_once = self.rng.random() < 0.4
            self._drawn += 1
            if process is None or self._drawn in self._left_out:
                continue
            self._last_at = self.now
            text = "kill the ingress" if at_once else f"the ingress is to die: {doom}"
            self.note_fault(self._drawn, text)
            if at_once:
                self.system.kernel.end(process, -9)
            else:
                process.doom = doom

    def new_rows(self, attempt: str, count: int) -> pa.RecordBatch:
        """Return rows that no other attempt has."""
        values = list(range(self._values, self._values + count))
        self._values += count
        self.rows_of[attempt] = values
        return pa.record_batch({"n": pa.array(values, pa.int64())})


class _StagingIngress:
    """The process with the staging area."""

    def __init__(self, world: StagingWorld) -> None:
        self._world = world

    async def run(self) -> None:
        staging = Staging(self._world._directory, _SECRET)
        async with trio.open_nursery() as nursery:

            def accepted(sock: Any) -> None:
                stream: Any = SimulatedStream(sock)
                nursery.start_soon(staging._serve_connection, stream)

            nursery.start_soon(accept_loop, self._world._listener, accepted)
            async with contextlib.aclosing(staging.committed()) as batches:
                async for batch in batches:
                    assert batch is not None
                    await self._world.take(batch)
            await trio.sleep_forever()


class _Spark:
    """Spark's driver and tasks."""

    def __init__(self, world: StagingWorld) -> None:
        self._world = world
        self._rng = random.Random(f"{world.seed} spark")
        self._attempts = 0

    async def run(self) -> None:
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            for number in range(self._world._batches):
                while not await self._batch(number):
                    await trio.sleep(_RETRY_S)
            await self._ask_until_answered({"do": "end", "error": None})
            self._world.has_ended = True

    async def _batch(self, number: int) -> bool:
        """Write and commit a batch; False if it must be begun anew."""
        rng, world = self._rng, self._world
        named = [await self._partition(number, partition) for partition in range(rng.randint(1, 4))]
        if rng.random() < 0.15:
            await self._ask_until_answered({"do": "abort", "query": _QUERY, "batch": number})
            return False
        attempts = tuple(named)
        world.commits.setdefault(number, []).append(attempts)
        request = {"do": "commit", "query": _QUERY, "batch": number, "attempts": [list(one) for one in attempts]}
        try:
            await self._ask_until_answered(request)
        except _RequestRefused:
            return False
        if rng.random() < 0.2:
            await self._ask_until_answered(request)  # The first answer was lost, for all that Spark knows.
        if number not in world.yielded:
            world.violate(f"the commit of batch {number} was accepted, and the batch was not yielded")
        return True

    async def _partition(self, number: int, partition: int) -> tuple[int, str, int, int]:
        """Stage a partition: by one attempt of several. Others may be unfinished, or finish later."""
        while True:
            self._attempts += 1
            attempt = f"{self._attempts}"
            if self._rng.random() < 0.3:
                self._nursery.start_soon(self._stage_late, number, partition, f"{attempt}late")
            try:
                return await self._stage(number, partition, attempt, self._rng.random() < 0.15)
            except (*_LOST, _RequestRefused):
                await trio.sleep(_RETRY_S)

    async def _stage_late(self, number: int, partition: int, attempt: str) -> None:
        await trio.sleep(self._rng.uniform(0, 0.15))
        try:
            await self._stage(number, partition, attempt, self._rng.random() < 0.3)
        except (*_LOST, _RequestRefused):
            return

    async def _stage(self, number: int, partition: int, attempt: str, dies: bool) -> tuple[int, str, int, int]:
        rows = self._world.new_rows(attempt, self._rng.randint(1, 5))
        stream, frames = await self._connect()
        try:
            place = {"query": _QUERY, "batch": number, "partition": partition, "attempt": attempt}
            await _answered(frames, {"do": "stage", **place})
            parts = [rows.schema.serialize(), rows.serialize(), staging_protocol.END_OF_STREAM]
            for part in parts[:1] if dies else parts:
                data = bytes(part)
                await stream.send_all(len(data).to_bytes(staging_protocol.CHUNK_LENGTH_BYTES, "big") + data)
                await trio.sleep(self._rng.uniform(0, 0.01))
            if dies:
                raise ConnectionError("the task died")
            await stream.send_all(bytes(staging_protocol.CHUNK_LENGTH_BYTES))
            size = _checked(await frames.receive(staging_protocol.FRAME_LIMIT_BYTES))["size_bytes"]
            return partition, attempt, rows.num_rows, size
        except staging_protocol.ProtocolError as error:
            raise _RequestRefused(str(error)) from error
        finally:
            await trio.aclose_forcefully(stream)

    async def _ask_until_answered(self, request: dict[str, Any]) -> None:
        while True:
            try:
                stream, frames = await self._connect()
                try:
                    await _answered(frames, request)
                    return
                finally:
                    await trio.aclose_forcefully(stream)
            except _LOST:
                await trio.sleep(_RETRY_S)

    async def _connect(self) -> tuple[SimulatedStream, _FrameStream]:
        sock: Any = network.open_socket()
        sock.connect(_PATH)
        stream = SimulatedStream(sock)
        frames = _FrameStream(stream)  # type: ignore[arg-type]
        try:
            hello = await frames.receive(staging_protocol.HANDSHAKE_LIMIT_BYTES)
            theirs, ours = staging_protocol.challenge_of(hello), bytes(staging_protocol.CHALLENGE_BYTES)
            proof = staging_protocol.proof(_SECRET, staging_protocol.TASK, theirs, ours)
            await frames.send({"challenge": ours, "proof": proof})
            _checked(await frames.receive(staging_protocol.HANDSHAKE_LIMIT_BYTES))
        except BaseException:
            await trio.aclose_forcefully(stream)
            raise
        return stream, frames


async def _answered(frames: _FrameStream, request: dict[str, Any]) -> dict[str, Any]:
    await frames.send(request)
    return _checked(await frames.receive(staging_protocol.FRAME_LIMIT_BYTES))


def _checked(answer: dict[str, Any]) -> dict[str, Any]:
    if answer.get("ok") is not True:
        raise _RequestRefused(str(answer.get("error")))
    return answer
