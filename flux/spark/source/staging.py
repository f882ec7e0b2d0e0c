"""The ingress side of the hand-off from Spark: takes in attempts, publishes batches, lets commits return.

A task's rows go from the socket to a file without being looked at; Arrow meets them again when the published
batch is mapped. Which attempts make up a batch is told by commit alone (see `writer`), and each batch id of a
query is published once: a commit of a batch that is done is answered at once, one of a batch that is still
under way waits for the same end.

`Staging` knows nothing of sequence numbers or copies. Who iterates `committed()` says with `done()` that every
live copy has received a batch. Batches that were published but not done when an ingress died are handed out
again by its successor; that they keep their numbers is the ingress's own journal's business.
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

from ...types.errors import FluxError
from . import staging_protocol
from .staging_store import Attempt, Published, StagingStore

__all__ = ["CommittedBatch", "Staging"]

log = logging.getLogger("flux.spark")

RECEIVE_BUFFER_BYTES = 1024 * 1024

# Batches published and not yet taken by the iterator. Spark has one under way per query.
PUBLISHED_LIMIT = 16


class CommittedBatch:
    """A micro-batch that Spark has committed, complete and in order."""

    def __init__(self, shelf: StagingStore, batch: Published) -> None:
        self.query = batch.query
        self.batch_id = batch.batch_id
        self.rows = sum(attempt.rows for attempt in batch.attempts)
        self._shelf = shelf
        self._batch = batch
        self.received = trio.Event()

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows in partition order, mapped from disk, in record batches of 16 Ki to 64 Ki rows.

        The last may be smaller. They stay valid after `done()`; the disk space is free when they are let go.
        """
        return self._shelf.read(self._batch)

    def done(self) -> None:
        """Say that every live copy has received all rows: Spark may forget the batch. Call it in the loop."""
        if not self.received.is_set():
            self._shelf.finish(self._batch)
            self.received.set()


class Staging:
    """The staging server of one ingress; `serve` and `committed` are run once each, in one trio loop."""

    def __init__(self, directory: Path, secret: bytes) -> None:
        self._secret = secret
        # Names this run in the journal without giving the secret away.
        self._run = hashlib.sha256(b"flux-staging run " + secret).hexdigest()[:16]
        self._shelf = StagingStore(directory)
        self._under_way = {key: CommittedBatch(self._shelf, batch) for key, batch in self._shelf.undone.items()}
        self._left_over = list(self._under_way.values())
        self._publish, self._published = trio.open_memory_channel[CommittedBatch](PUBLISHED_LIMIT)
        self._stopping = trio.Event()
        if self._shelf.has_ended(self._run):
            self._publish.close()

    async def serve(self, listeners: Sequence[trio.SocketListener]) -> None:
        """Answer tasks, commits, aborts and the end of the query, until cancelled."""
        await trio.serve_listeners(self._converse, list(listeners))

    async def committed(self, tick_s: float | None = None) -> AsyncGenerator[CommittedBatch | None, None]:
        """Yield committed batches in order until the query has ended; raise `FluxError` if it failed.

        With `tick_s`, yield None whenever none has come for so long.
        """
        for batch in self._left_over:
            yield batch
        with contextlib.suppress(trio.EndOfChannel):
            while True:
                came = None
                with trio.move_on_after(math.inf if tick_s is None else tick_s):
                    came = await self._published.receive()
                yield came
        error = self._shelf.error(self._run)
        if error is not None:
            raise FluxError(error)

    async def _converse(self, stream: trio.SocketStream) -> None:
        """Hold one conversation, from hello to the last answer; see `frames` for who says what."""
        talk = _Talk(stream)
        try:
            with trio.fail_after(staging_protocol.HANDSHAKE_TIMEOUT_S):
                await self._recognise(talk)
                request = await talk.receive(staging_protocol.FRAME_LIMIT_BYTES)
            await talk.send(await self._grant(talk, request))
        except _Refused as refused:
            log.warning("flux staging refused a request: %s", refused)
            await talk.send_error(refused.kind, str(refused))
        except staging_protocol.BrokenConversation as broken:
            log.warning("flux staging broke off a conversation: %s", broken)
            await talk.send_error(staging_protocol.PROTOCOL, f"{broken}; are both ends of the same release of Flux?")
        except (ConnectionError, trio.BrokenResourceError, trio.TooSlowError) as error:
            # A task that died or was killed. Spark knows, and will try again.
            log.info("flux staging lost a conversation: %r", error)
        except OSError as error:
            log.warning("flux staging could not use its directory: %s", error)
            await talk.send_error(staging_protocol.STAGING, f"the ingress could not use its staging directory: {error}")
        finally:
            # Not before the answer is out: this ends `committed`, and usually the whole server with it.
            if self._shelf.has_ended(self._run):
                self._publish.close()
            await trio.aclose_forcefully(stream)

    async def _recognise(self, talk: _Talk) -> None:
        ours = os.urandom(staging_protocol.CHALLENGE_BYTES)
        await talk.send({"version": staging_protocol.VERSION, "challenge": ours})
        claim = await talk.receive(staging_protocol.STRANGER_LIMIT_BYTES)
        theirs = staging_protocol.challenge_of(claim)
        if not staging_protocol.is_proof(
            claim.get("proof"), staging_protocol.proof(self._secret, staging_protocol.TASK, ours, theirs)
        ):
            raise _Refused(
                "the secret of this query is not the one of this run, so its rows are not taken; each run makes its "
                "own secret: start the query through flux.spark.Stream of the run it feeds",
                kind=staging_protocol.AUTH,
            )
        await talk.send(
            {"ok": True, "proof": staging_protocol.proof(self._secret, staging_protocol.INGRESS, ours, theirs)}
        )

    async def _grant(self, talk: _Talk, request: dict[str, Any]) -> dict[str, Any]:
        """Do what is asked; returns the answer."""
        what = request.get("do")
        if what == "stage":
            return {"ok": True, "size_bytes": await self._stage(talk, request)}
        if what == "commit":
            await self._commit(request)
        elif what == "abort":
            self._abort(request)
        elif what == "stop":
            self._stopping.set()
        elif what == "end":
            self._end(request)
        else:
            raise staging_protocol.BrokenConversation(
                f"do: stage, commit, abort, stop or end was expected, {what!r:.80} came"
            )
        return {"ok": True}

    async def _stage(self, talk: _Talk, request: dict[str, Any]) -> int:
        query, batch_id = staging_protocol.name_of(request, "query"), staging_protocol.number_of(request, "batch")
        partition, attempt = (
            staging_protocol.number_of(request, "partition"),
            staging_protocol.name_of(request, "attempt"),
        )
        path = self._shelf.path(query, batch_id, partition, attempt)
        part = path.with_suffix(".part")
        await talk.send({"ok": True})
        try:
            # Exclusive: attempts have names of their own, so a file that is there already is a mistake.
            with FileIO(part, "xb") as file:
                size_bytes = await talk.receive_chunks(file)
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
        """Publish a batch if it is new, and return when every live copy has received it."""
        batch = _published_of(request)
        key = batch.query, batch.batch_id
        if self._shelf.is_done(*key):
            log.info("batch %d of query %s is committed again; it was received before", batch.batch_id, batch.query)
            return
        if key not in self._under_way:
            if self._shelf.has_ended(self._run):
                raise _Refused(f"batch {batch.batch_id} comes after the end of the query {batch.query}")
            if missing := self._shelf.missing(batch):
                raise _Refused(
                    f"batch {batch.batch_id} names attempt {missing.name} of partition {missing.partition} with "
                    f"{missing.size_bytes:,} bytes, which is not staged here; restart the query, Spark "
                    "then writes the batch again"
                )
            self._shelf.publish(batch)
            self._under_way[key] = CommittedBatch(self._shelf, batch)
            await self._publish.send(self._under_way[key])
        await self._wait_done(self._under_way[key])
        self._under_way.pop(key, None)

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
        # Spark may abort because it did not hear that its commit went through. Published is published.
        if (query, batch_id) not in self._under_way:
            self._shelf.drop(query, batch_id)

    def _end(self, request: dict[str, Any]) -> None:
        error = request.get("error")
        if error is not None and not isinstance(error, str):
            raise staging_protocol.BrokenConversation(f"error: a text or nothing was expected, {error!r:.80} came")
        if not self._shelf.has_ended(self._run):
            self._shelf.end(self._run, error)


class _Refused(Exception):
    """A request that is not granted; the text goes to the task."""

    def __init__(self, text: str, kind: str = staging_protocol.STAGING) -> None:
        super().__init__(text)
        self.kind = kind


class _WriteFailed(Exception):
    """The disk did not take the rows."""


class _Talk:
    """Frames and chunks over a stream of trio's."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self._stream = stream

    async def send(self, message: dict[str, Any]) -> None:
        await self._stream.send_all(staging_protocol.pack(message))

    async def send_error(self, kind: str, text: str) -> None:
        # Whoever does not listen to a refusal has only itself to blame.
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
        """Write the chunks to the file as they come, up to the one of length zero; returns their total size."""
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
                        # The rest is read all the same: the task listens only when it has sent everything.
                        failure = error
        if failure is not None:
            raise _WriteFailed(f"writing to {file.name!s} failed: {failure}") from failure
        return total_bytes

    async def _exactly(self, size_bytes: int) -> bytes:
        parts = bytearray()
        while len(parts) < size_bytes:
            part = await self._stream.receive_some(size_bytes - len(parts))
            if not part:
                raise ConnectionError("a task closed the connection in the middle of a conversation")
            parts += part
        return bytes(parts)


def _write_all(file: FileIO, data: memoryview) -> None:
    # The page cache takes a buffer in less time than handing it to a thread would cost.
    written = file.write(data)
    while written < len(data):
        written += file.write(data[written:])


def _published_of(request: dict[str, Any]) -> Published:
    query, batch_id = staging_protocol.name_of(request, "query"), staging_protocol.number_of(request, "batch")
    named = request.get("attempts")
    if not isinstance(named, list) or not all(isinstance(one, list) and len(one) == 4 for one in named):
        raise staging_protocol.BrokenConversation(
            "attempts: a list of [partition, attempt, rows, size_bytes] was expected"
        )
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
        raise staging_protocol.BrokenConversation(
            "attempts: one for each partition was expected, in the order of partitions"
        )
    return Published(query, batch_id, tuple(attempts))
