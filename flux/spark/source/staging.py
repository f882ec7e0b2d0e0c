"""The ingress side of the hand-off from Spark: stages attempts, publishes batches, answers commits.

A task's rows go from the socket to a file without being decoded; Arrow reads them when the published batch is
mapped. Only commit says which attempts make up a batch (see `writer`), and each batch id of a query is published
once. A commit of a batch that is done is answered at once; a commit of one in flight waits for the same end.

`Staging` does not know sequence numbers or copies. The consumer of `committed()` calls `done()` when every live copy
has received a batch. Batches that were published but not done when an ingress died are yielded again by its
successor. The ingress's own journal keeps their sequence numbers.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import math
import os
from collections.abc import AsyncGenerator, Iterator, Sequence
from io import FileIO
from pathlib import Path
from typing import Any

import pyarrow as pa
import trio

from ...types.errors import FluxError, SourceError
from ...wire.handshake import DEADLINE_S as AUTHENTICATION_TIMEOUT_S
from ...wire.strangers import await_authentication, log_closed
from . import staging_protocol
from .staging_store import Attempt, Published, StagingStore

__all__ = ["CommittedBatch", "Staging"]

log = logging.getLogger("flux.spark")

RECEIVE_BUFFER_BYTES = 1024 * 1024

# Batches published and not yet taken by the iterator. Spark has one in flight per query.
PUBLISHED_LIMIT = 16


class CommittedBatch:
    """A micro-batch that Spark has committed, complete and in order."""

    def __init__(self, store: StagingStore, batch: Published) -> None:
        self.query = batch.query
        self.batch_id = batch.batch_id
        self.rows = sum(attempt.rows for attempt in batch.attempts)
        self._store = store
        self._batch = batch
        self.received = trio.Event()

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows in partition order, mapped from disk, in record batches of 16 Ki to 64 Ki rows.

        The last may be smaller. They stay valid after `done()`; dropping the last reference frees the disk space.
        """
        return self._store.read(self._batch)

    def done(self) -> None:
        """Record that every live copy has received all rows: Spark may forget the batch. Call it in the trio loop."""
        if not self.received.is_set():
            self._store.finish(self._batch)
            self.received.set()


class Staging:
    """The staging server of one ingress. Run `serve` and `committed` once each, in one trio loop."""

    def __init__(self, directory: Path, secret: bytes) -> None:
        self._secret = secret
        # Identifies this run in the journal without revealing the secret.
        self._run = hashlib.sha256(b"flux-staging run " + secret).hexdigest()[:16]
        self._store = StagingStore(directory)
        self._in_flight = {key: CommittedBatch(self._store, batch) for key, batch in self._store.undone.items()}
        self._unfinished = list(self._in_flight.values())
        self._publish, self._published = trio.open_memory_channel[CommittedBatch](PUBLISHED_LIMIT)
        self._stopping = trio.Event()
        if self._store.has_ended(self._run):
            self._publish.close()

    @property
    def last_done(self) -> int:
        """The last micro-batch that every live copy has received; -1 if there is none. Its rows are gone."""
        return self._store.last_done

    async def serve(self, listeners: Sequence[trio.SocketListener]) -> None:
        """Answer tasks, commits, aborts and the end of the query, until cancelled."""
        await trio.serve_listeners(self._serve_connection, list(listeners))

    async def committed(self, tick_s: float | None = None) -> AsyncGenerator[CommittedBatch | None, None]:
        """Yield committed batches in order until the query has ended; raise `SourceError` if it failed.

        With `tick_s`, yield None whenever no batch has arrived for that time.
        """
        for batch in self._unfinished:
            yield batch
        with contextlib.suppress(trio.EndOfChannel):
            while True:
                arrived = None
                with trio.move_on_after(math.inf if tick_s is None else tick_s):
                    arrived = await self._published.receive()
                yield arrived
        error = self._store.error(self._run)
        if error is not None:
            raise SourceError(error)

    async def _serve_connection(self, stream: trio.SocketStream) -> None:
        """Serve one connection, from the handshake to the last answer; `staging_protocol` lists the frames."""
        frames = _FrameStream(stream)
        try:
            with await_authentication(AUTHENTICATION_TIMEOUT_S) as stranger:
                await self._authenticate(frames)
            if stranger.cancelled_caught:
                return
            with trio.fail_after(staging_protocol.HANDSHAKE_TIMEOUT_S):
                request = await frames.receive(staging_protocol.FRAME_LIMIT_BYTES)
            await frames.send(await self._handle(frames, request))
        except _Refused as refused:
            log_closed(log.log, logging.WARNING, f"flux staging refused a request: {refused}")
            await frames.send_error(refused.kind, str(refused))
        except staging_protocol.ProtocolError as broken:
            log_closed(log.log, logging.WARNING, f"flux staging closed a connection, protocol error: {broken}")
            await frames.send_error(staging_protocol.PROTOCOL, f"{broken}; are both ends of the same release of Flux?")
        except (ConnectionError, trio.BrokenResourceError, trio.TooSlowError) as error:
            # A task that died or was killed: Spark notices, and retries it.
            log.info("flux staging lost a connection: %r", error)
        except (OSError, FluxError) as error:
            log.warning("flux staging could not use its directory: %s", error)
            await frames.send_error(staging_protocol.STAGING, f"the ingress cannot use its staging directory: {error}")
        finally:
            # Only after the answer is sent: this ends `committed`, and usually the whole server with it.
            if self._store.has_ended(self._run):
                self._publish.close()
            await trio.aclose_forcefully(stream)

    async def _authenticate(self, frames: _FrameStream) -> None:
        ours = os.urandom(staging_protocol.CHALLENGE_BYTES)
        await frames.send({"version": staging_protocol.VERSION, "challenge": ours})
        claim = await frames.receive(staging_protocol.HANDSHAKE_LIMIT_BYTES)
        theirs = staging_protocol.challenge_of(claim)
        if not staging_protocol.is_proof(
            claim.get("proof"), staging_protocol.proof(self._secret, staging_protocol.TASK, ours, theirs)
        ):
            raise _Refused(
                "the secret of this query is not the one of this run, so its rows are not taken; each run makes its "
                "own secret: start the query through flux.spark.Stream of the run it feeds",
                kind=staging_protocol.AUTH,
            )
        await frames.send(
            {"ok": True, "proof": staging_protocol.proof(self._secret, staging_protocol.INGRESS, ours, theirs)}
        )

    async def _handle(self, frames: _FrameStream, request: dict[str, Any]) -> dict[str, Any]:
        """Carry out a request and return the answer."""
        what = request.get("do")
        if what == "stage":
            return {"ok": True, "size_bytes": await self._stage(frames, request)}
        if what == "commit":
            await self._commit(request)
        elif what == "abort":
            self._abort(request)
        elif what == "stop":
            self._stopping.set()
        elif what == "end":
            self._end(request)
        else:
            raise staging_protocol.ProtocolError(
                f"do: stage, commit, abort, stop or end was expected, got {what!r:.80}"
            )
        return {"ok": True}

    async def _stage(self, frames: _FrameStream, request: dict[str, Any]) -> int:
        query, batch_id = staging_protocol.name_of(request, "query"), staging_protocol.number_of(request, "batch")
        partition, attempt = (
            staging_protocol.number_of(request, "partition"),
            staging_protocol.name_of(request, "attempt"),
        )
        path = self._store.path(query, batch_id, partition, attempt)
        part = path.with_suffix(".part")
        await frames.send({"ok": True})
        try:
            # Exclusive: attempt names are unique, so an existing file is a mistake.
            with FileIO(part, "xb") as file:
                size_bytes = await frames.receive_chunks(file)
            part.rename(path)
        except _WriteFailed as failed:
            raise _Refused(f"partition {partition} of batch {batch_id} was not staged: {failed}") from failed
        except FileNotFoundError:
            raise _Refused(
                f"partition {partition} of batch {batch_id} was not staged: the batch was dropped or committed "
                "while this attempt was writing, so it does not count"
            ) from None
        finally:
            part.unlink(missing_ok=True)
        return size_bytes

    async def _commit(self, request: dict[str, Any]) -> None:
        """Publish a batch if it is new; return when every live copy has received it."""
        batch = _published_of(request)
        key = batch.query, batch.batch_id
        if self._store.is_done(*key):
            log.info("repeated commit of a received batch: batch=%d query=%s", batch.batch_id, batch.query)
            return
        if key not in self._in_flight:
            if self._store.has_ended(self._run):
                raise _Refused(f"batch {batch.batch_id} was committed after the end of the query {batch.query}")
            if missing := self._store.missing(batch):
                raise _Refused(
                    f"batch {batch.batch_id} names attempt {missing.name} of partition {missing.partition} with "
                    f"{missing.size_bytes:,} bytes, which is not staged here; restart the query, Spark "
                    "then writes the batch again"
                )
            self._store.publish(batch)
            self._in_flight[key] = CommittedBatch(self._store, batch)
            await self._publish.send(self._in_flight[key])
        await self._wait_done(self._in_flight[key])
        self._in_flight.pop(key, None)

    async def _wait_done(self, batch: CommittedBatch) -> None:
        """Wait until the batch is received or the run stops: Spark cannot stop a query that waits in commit."""

        async def wait(event: trio.Event) -> None:
            await event.wait()
            nursery.cancel_scope.cancel()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait, batch.received)
            nursery.start_soon(wait, self._stopping)
        if not batch.received.is_set():
            raise _Refused(
                f"the run was stopped before every copy had received batch {batch.batch_id}; it is not "
                "committed, and Spark sends it again when the query is restarted from its checkpoint"
            )

    def _abort(self, request: dict[str, Any]) -> None:
        query, batch_id = staging_protocol.name_of(request, "query"), staging_protocol.number_of(request, "batch")
        # Spark may abort because the answer to its commit was lost. A published batch stays published.
        if (query, batch_id) not in self._in_flight:
            self._store.drop(query, batch_id)

    def _end(self, request: dict[str, Any]) -> None:
        error = request.get("error")
        if error is not None and not isinstance(error, str):
            raise staging_protocol.ProtocolError(f"error: a text or nothing was expected, got {error!r:.80}")
        if not self._store.has_ended(self._run):
            self._store.end(self._run, error)


class _Refused(Exception):
    """A refused request; its text is sent to the task."""

    def __init__(self, text: str, kind: str = staging_protocol.STAGING) -> None:
        super().__init__(text)
        self.kind = kind


class _WriteFailed(Exception):
    """Writing the rows to disk failed."""


class _FrameStream:
    """Frames and chunks over a trio stream."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self._stream = stream

    async def send(self, message: dict[str, Any]) -> None:
        await self._stream.send_all(staging_protocol.pack(message))

    async def send_error(self, kind: str, text: str) -> None:
        # The refusal is best effort: a task that does not read it gets a closed connection.
        with trio.move_on_after(staging_protocol.HANDSHAKE_TIMEOUT_S):
            try:
                await self.send({"error": text, "kind": kind})
                await self._stream.send_eof()
            except (OSError, trio.BrokenResourceError):
                log.info("flux staging could not deliver a refusal: %s", text)

    async def receive(self, limit_bytes: int) -> dict[str, Any]:
        prefix = await self._exactly(staging_protocol.FRAME_LENGTH_BYTES)
        return staging_protocol.unpack(await self._exactly(staging_protocol.body_length(prefix, limit_bytes)))

    async def receive_chunks(self, file: FileIO) -> int:
        """Write the chunks to the file as they arrive, up to the one of length zero; return their total size."""
        buffer = memoryview(bytearray(RECEIVE_BUFFER_BYTES))
        total_bytes = 0
        failure: OSError | None = None
        while remaining := staging_protocol.chunk_length(await self._exactly(staging_protocol.CHUNK_LENGTH_BYTES)):
            total_bytes += remaining
            while remaining:
                count = await self._stream.socket.recv_into(buffer, min(remaining, RECEIVE_BUFFER_BYTES))
                if not count:
                    raise ConnectionError("a task closed the connection in the middle of its rows")
                remaining -= count
                if failure is None:
                    try:
                        _write_all(file, buffer[:count])
                    except OSError as error:
                        # The rest is still read: the task reads the answer only after it has sent everything.
                        failure = error
        if failure is not None:
            raise _WriteFailed(f"writing to {file.name!s} failed: {failure}") from failure
        return total_bytes

    async def _exactly(self, size_bytes: int) -> bytes:
        parts = bytearray()
        while len(parts) < size_bytes:
            part = await self._stream.receive_some(size_bytes - len(parts))
            if not part:
                raise ConnectionError("a task closed the connection in the middle of a request")
            parts += part
        return bytes(parts)


def _write_all(file: FileIO, data: memoryview) -> None:
    # Writing a buffer to the page cache takes less time than passing it to a thread.
    written = file.write(data)
    while written < len(data):
        written += file.write(data[written:])


def _published_of(request: dict[str, Any]) -> Published:
    query, batch_id = staging_protocol.name_of(request, "query"), staging_protocol.number_of(request, "batch")
    named = request.get("attempts")
    if not isinstance(named, list) or not all(isinstance(one, list) and len(one) == 4 for one in named):
        raise staging_protocol.ProtocolError("attempts: a list of [partition, attempt, rows, size_bytes] was expected")
    attempts = []
    for one in named:
        fields = dict(zip(("partition", "attempt", "rows", "size_bytes"), one, strict=True))
        attempts.append(
            Attempt(
                staging_protocol.number_of(fields, "partition"),
                staging_protocol.name_of(fields, "attempt"),
                staging_protocol.number_of(fields, "rows"),
                staging_protocol.number_of(fields, "size_bytes"),
            )
        )
    partitions = [attempt.partition for attempt in attempts]
    if partitions != sorted(set(partitions)):
        raise staging_protocol.ProtocolError(
            "attempts: one for each partition was expected, in the order of partitions"
        )
    return Published(query, batch_id, tuple(attempts))
