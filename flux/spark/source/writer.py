"""The Spark side of the hand-off: the data source "flux" and its Arrow stream writer.

Each task of a micro-batch streams its rows to the ingress, which stages them on disk under (query, batch,
partition, attempt). Nothing is published by that: a task may fail half way, be retried, or run twice. When all
tasks are done, Spark calls `commit` on the driver's host with the messages the tasks returned; it names the
attempts that count, in partition order, and returns when the ingress says that every live copy has received
every row. Only then does Spark forget the batch, so a failure at any moment before it makes Spark send the same
batch again, and the ingress, which keeps a journal of batch ids, publish it once.

Spark makes a new writer for each batch and for each commit, in different processes: nothing is kept on
`self` beyond the options. `commit` runs in a fresh process each time, so what this module imports is paid for
in every micro-batch: Arrow is not imported at all, the batches bring it along.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pyspark.sql.datasource import DataSource, DataSourceStreamArrowWriter, WriterCommitMessage

from . import staging_protocol

FORMAT = "flux"

# How long commit keeps trying to reach an ingress that is being restarted.
COMMIT_RETRY_S = 60.0
RETRY_PAUSE_S = 0.2

# A dead host is noticed after about this long, also while commit waits for an answer that takes its time.
DEAD_PEER_S = 60


class FluxSink(DataSource):  # type: ignore[misc]  # pyspark is untyped here
    """The format "flux". To write: options `address` (host:port of the ingress) and `secret` (hex); to read: `path`."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> Any:
        from ..sink.reader import schema_of

        return schema_of(self.options)

    def streamReader(self, schema: Any) -> Any:
        # Not above: whoever commits a micro-batch need not have it.
        from ..sink.reader import OutletReader

        return OutletReader(self.options, schema)

    def reader(self, schema: Any) -> Any:
        raise ValueError(
            'format("flux") is read as a stream: spark.readStream.format("flux"); with trigger(availableNow=True) the '
            "query ends when it has read what is there"
        )

    def streamWriter(self, schema: Any, overwrite: bool) -> StagingWriter:
        return StagingWriter(self.options)


@dataclass
class Staged(WriterCommitMessage):  # type: ignore[misc]
    """What a task tells commit: which attempt at which partition it made, and how much that was."""

    query: str
    partition: int
    attempt: str
    rows: int
    size_bytes: int


class StagingWriter(DataSourceStreamArrowWriter):  # type: ignore[misc]
    def __init__(self, options: Mapping[str, str]) -> None:
        self.address = options.get("address", "")
        self.secret = options.get("secret", "")
        if not self.address or not self.secret:
            raise ValueError(
                'format("flux"): options `address` (host:port of a Flux ingress) and `secret` (hex) were expected, '
                f"{sorted(options)} came; use flux.spark.Stream(df), which sets them"
            )

    def write(self, iterator: Iterator[Any]) -> Staged:
        """Stage one attempt at one partition; runs in a task on an executor."""
        from pyspark import TaskContext

        task = TaskContext.get()
        query = task.getLocalProperty("sql.streaming.queryId")
        partition = task.partitionId()
        # Task attempt ids start anew with every Spark application, the staged files may be older: hence the salt.
        attempt = f"{task.taskAttemptId()}-{os.urandom(6).hex()}"
        conversation: Conversation | None = None
        rows = 0
        try:
            for batch in iterator:
                if not batch.num_rows:
                    continue
                if conversation is None:
                    conversation = Conversation(self.address, self.secret)
                    conversation.ask(
                        {
                            "do": "stage",
                            "query": query,
                            "batch": int(task.getLocalProperty("streaming.sql.batchId")),
                            "partition": partition,
                            "attempt": attempt,
                        }
                    )
                    conversation.send_chunk(memoryview(batch.schema.serialize()))
                conversation.send_chunk(memoryview(batch.serialize()))
                rows += batch.num_rows
            # Without rows there is nothing to stage, and no reason to trouble the ingress.
            size_bytes = conversation.end_chunks() if conversation else 0
        finally:
            if conversation:
                conversation.close()
        return Staged(query, partition, attempt, rows, size_bytes)

    def commit(self, messages: list[Staged | None], batchId: int) -> None:
        """Publish the named attempts; returns when every live copy has received every row of them."""
        staged = [message for message in messages if message is not None and message.rows]
        if not staged:
            return
        request = {
            "do": "commit",
            "query": staged[0].query,
            "batch": batchId,
            "attempts": [[s.partition, s.attempt, s.rows, s.size_bytes] for s in staged],
        }
        deadline_s = time.monotonic() + COMMIT_RETRY_S
        while True:
            try:
                return ask_once(self.address, self.secret, request)
            except (PermissionError, ConnectionRefusedError):
                # The socket listens as long as the run lasts, whoever serves it: refused means that it is over.
                raise
            except OSError:
                # An ingress that died is restarted by its run and finds the batch in its journal; asking
                # again is safe, since a batch is published once.
                if time.monotonic() > deadline_s:
                    raise
                time.sleep(RETRY_PAUSE_S)

    def abort(self, messages: list[Staged | None], batchId: int) -> None:
        """Drop what was staged. A task may still be writing: the next commit of the batch removes the rest."""
        for query in {message.query for message in messages if message is not None}:
            # For the same reason it does no harm if nobody hears this, as when the run is over.
            with contextlib.suppress(OSError, StagingRefused):
                ask_once(self.address, self.secret, {"do": "abort", "query": query, "batch": batchId})


class StagingRefused(RuntimeError):
    """The ingress answered with an error; trying again would not help."""


class Conversation:
    """One authenticated connection to the ingress, blocking; see `frames` for who says what.

    Raises `PermissionError` if either end fails to prove that it knows the secret, another `OSError` if the
    connection breaks, `StagingRefused` if the ingress says no.
    """

    def __init__(self, address: str, secret: str, timeout_s: float = staging_protocol.HANDSHAKE_TIMEOUT_S) -> None:
        self.address = address
        host, _, port = address.rpartition(":")
        try:
            self._socket = socket.create_connection((host.strip("[]"), int(port)), timeout_s)
        except OSError as error:
            raise type(error)(
                f"flux staging: no ingress answers at {address} ({error}); is the Flux run that this query "
                "feeds still alive?"
            ) from error
        try:
            self._set_up()
            self._prove(bytes.fromhex(secret))
            # From here on the ingress may take its time: an answer to commit comes when the rows were received.
            self._socket.settimeout(None)
        except BaseException:
            self.close()
            raise

    def _set_up(self) -> None:
        options = [
            (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
            (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
        ]
        # Not every platform has these; where they lack, its own much longer times hold.
        for name, value in (
            ("TCP_KEEPIDLE", DEAD_PEER_S // 2),
            ("TCP_KEEPINTVL", DEAD_PEER_S // 6),
            ("TCP_KEEPCNT", 3),
            ("TCP_USER_TIMEOUT", DEAD_PEER_S * 1000),
        ):
            if hasattr(socket, name):
                options.append((socket.IPPROTO_TCP, getattr(socket, name), value))
        for level, option, value in options:
            self._socket.setsockopt(level, option, value)

    def _prove(self, secret: bytes) -> None:
        hello = self._receive()
        if hello.get("version") != staging_protocol.VERSION:
            raise StagingRefused(
                f"flux staging: the ingress at {self.address} speaks version {hello.get('version')!r}, this "
                f"task version {staging_protocol.VERSION}; install the same release of Flux on both"
            )
        theirs, ours = staging_protocol.challenge_of(hello), os.urandom(staging_protocol.CHALLENGE_BYTES)
        mine = staging_protocol.proof(secret, staging_protocol.TASK, theirs, ours)
        self._socket.sendall(staging_protocol.pack({"challenge": ours, "proof": mine}))
        welcome = self._answer()
        if not staging_protocol.is_proof(
            welcome.get("proof"), staging_protocol.proof(secret, staging_protocol.INGRESS, theirs, ours)
        ):
            raise PermissionError(
                f"flux staging: what answers at {self.address} does not know the secret of this query, so it is "
                "not the ingress it should be; nothing was sent to it"
            )

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        self._socket.sendall(staging_protocol.pack(request))
        return self._answer()

    def send_chunk(self, chunk: memoryview) -> None:
        self._socket.sendall(len(chunk).to_bytes(staging_protocol.CHUNK_LENGTH_BYTES, "big"))
        self._socket.sendall(chunk)

    def end_chunks(self) -> int:
        """Say that all chunks were sent; returns how many bytes the ingress has staged."""
        self.send_chunk(memoryview(staging_protocol.END_OF_STREAM))
        self._socket.sendall(bytes(staging_protocol.CHUNK_LENGTH_BYTES))
        return staging_protocol.number_of(self._answer(), "size_bytes")

    def close(self) -> None:
        self._socket.close()

    def _answer(self) -> dict[str, Any]:
        answer = self._receive()
        if answer.get("ok") is True:
            return answer
        text = f"flux staging at {self.address}: {answer.get('error', answer)}"
        raise PermissionError(text) if answer.get("kind") == staging_protocol.AUTH else StagingRefused(text)

    def _receive(self) -> dict[str, Any]:
        prefix = self._exactly(staging_protocol.FRAME_LENGTH_BYTES)
        return staging_protocol.unpack(
            self._exactly(staging_protocol.body_length(prefix, staging_protocol.FRAME_LIMIT_BYTES))
        )

    def _exactly(self, size_bytes: int) -> bytes:
        parts = bytearray()
        while len(parts) < size_bytes:
            part = self._socket.recv(size_bytes - len(parts))
            if not part:
                raise ConnectionError(
                    f"flux staging: the ingress at {self.address} closed the connection before it answered; "
                    "it was stopped or killed"
                )
            parts += part
        return bytes(parts)


def ask_once(
    address: str, secret: str, request: dict[str, Any], timeout_s: float = staging_protocol.HANDSHAKE_TIMEOUT_S
) -> None:
    """Open a conversation for one request that needs no chunks, and wait for the answer."""
    conversation = Conversation(address, secret, timeout_s)
    try:
        conversation.ask(request)
    finally:
        conversation.close()
