"""The Spark side of the hand-off: the data source "flux" and its Arrow stream writer.

Each task of a micro-batch streams its rows to the ingress, which stages them on disk under (query, batch,
partition, attempt). Nothing is published by that: a task may fail half way, be retried, or run twice. When all
tasks are done, Spark calls `commit` on the driver's host with the messages the tasks returned. It names the
attempts that count, in partition order, and returns when the ingress answers that every live copy has received
every row. Only then does Spark forget the batch. After a failure at any moment before, Spark sends the
same batch again; the ingress, which keeps a journal of batch ids, publishes it once.

Spark makes a new writer for each batch and for each commit, in different processes: `self` keeps only the
options. `commit` runs in a fresh process each time, so every micro-batch pays for what this module imports.
Arrow is not imported here: the batches bring it along.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from pyspark.sql.datasource import DataSource, DataSourceStreamArrowWriter, WriterCommitMessage

from . import staging_protocol

T = TypeVar("T")

FORMAT = "flux"

# How long a connection and a commit are tried again while the ingress is restarted, or flooded.
RETRY_TIMEOUT_S = 60.0
RETRY_PAUSE_S = 0.2

# A dead host is detected after about this time, also while commit waits for its answer.
DEAD_PEER_TIMEOUT_S = 60


class FluxSink(DataSource):  # type: ignore[misc]  # pyspark is untyped here
    """The format "flux". To write: options `address` (host:port of the ingress) and `secret` (hex); to read: `path`."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> Any:
        from ..sink.reader import schema_of

        return schema_of(self.options)

    def streamReader(self, schema: Any) -> Any:
        # Imported here: the process that commits a micro-batch does not need it.
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
    """The message from a task to commit: its partition and attempt, and how much it staged."""

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
                f"got {sorted(options)}; use flux.spark.Stream(df), which sets them"
            )

    def write(self, iterator: Iterator[Any]) -> Staged:
        """Stage one attempt at one partition; runs in a task on an executor."""
        from pyspark import TaskContext

        task = TaskContext.get()
        query = task.getLocalProperty("sql.streaming.queryId")
        partition = task.partitionId()
        # Task attempt ids restart with every Spark application, and staged files may be older: hence the salt.
        attempt = f"{task.taskAttemptId()}-{os.urandom(6).hex()}"
        connection: StagingConnection | None = None
        rows = 0
        try:
            for batch in iterator:
                if not batch.num_rows:
                    continue
                if connection is None:
                    connection = self._connect()
                    connection.ask(
                        {
                            "do": "stage",
                            "query": query,
                            "batch": int(task.getLocalProperty("streaming.sql.batchId")),
                            "partition": partition,
                            "attempt": attempt,
                        }
                    )
                    connection.send_chunk(memoryview(batch.schema.serialize()))
                connection.send_chunk(memoryview(batch.serialize()))
                rows += batch.num_rows
            # Without rows there is nothing to stage, and no connection is opened.
            size_bytes = connection.end_chunks() if connection else 0
        finally:
            if connection:
                connection.close()
        return Staged(query, partition, attempt, rows, size_bytes)

    def _connect(self) -> StagingConnection:
        """Connect, again if the connection breaks before a row is sent."""
        return _retried(lambda: StagingConnection(self.address, self.secret))

    def commit(self, messages: list[Staged | None], batchId: int) -> None:
        """Publish the named attempts; return when every live copy has received all their rows."""
        staged = [message for message in messages if message is not None and message.rows]
        if not staged:
            return
        request = {
            "do": "commit",
            "query": staged[0].query,
            "batch": batchId,
            "attempts": [[s.partition, s.attempt, s.rows, s.size_bytes] for s in staged],
        }
        # An ingress that died is restarted by its run and finds the batch in its journal. A retry is safe, since a
        # batch is published once.
        _retried(lambda: ask_once(self.address, self.secret, request))

    def abort(self, messages: list[Staged | None], batchId: int) -> None:
        """Drop what was staged. A task may still be writing: the next commit of the batch removes the rest."""
        for query in {message.query for message in messages if message is not None}:
            # For the same reason an abort may get lost without harm, for example when the run is over.
            with contextlib.suppress(OSError, StagingRefused):
                ask_once(self.address, self.secret, {"do": "abort", "query": query, "batch": batchId})


class StagingRefused(RuntimeError):
    """The ingress answered with an error; a retry would not help."""


class StagingConnection:
    """One authenticated, blocking connection to the ingress; `staging_protocol` lists the frames.

    Raises `PermissionError` if either end fails to prove that it knows the secret; another `OSError` if the
    connection breaks; `StagingRefused` if the ingress refuses the request.
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
            self._set_options()
            self._authenticate(bytes.fromhex(secret))
            # No timeout from here on: the answer to commit is sent when the rows have been received.
            self._socket.settimeout(None)
        except BaseException:
            self.close()
            raise

    def _set_options(self) -> None:
        options = [
            (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
            (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
        ]
        # Not every platform has these; without them, its own much longer timeouts apply.
        for name, value in (
            ("TCP_KEEPIDLE", DEAD_PEER_TIMEOUT_S // 2),
            ("TCP_KEEPINTVL", DEAD_PEER_TIMEOUT_S // 6),
            ("TCP_KEEPCNT", 3),
            ("TCP_USER_TIMEOUT", DEAD_PEER_TIMEOUT_S * 1000),
        ):
            if hasattr(socket, name):
                options.append((socket.IPPROTO_TCP, getattr(socket, name), value))
        for level, option, value in options:
            self._socket.setsockopt(level, option, value)

    def _authenticate(self, secret: bytes) -> None:
        hello = self._receive()
        if hello.get("version") != staging_protocol.VERSION:
            raise StagingRefused(
                f"flux staging: the ingress at {self.address} uses protocol version {hello.get('version')!r}, this "
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
        """Mark the end of the chunks; return how many bytes the ingress has staged."""
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


def _retried(call: Callable[[], T]) -> T:
    """Return the result of a call to the ingress, tried again while its connection breaks before there is one."""
    deadline_s = time.monotonic() + RETRY_TIMEOUT_S
    while True:
        try:
            return call()
        except (PermissionError, ConnectionRefusedError):
            # The socket listens as long as the run lasts, also while the ingress restarts: the run is over.
            raise
        except OSError:
            if time.monotonic() > deadline_s:
                raise
            time.sleep(RETRY_PAUSE_S)


def ask_once(
    address: str, secret: str, request: dict[str, Any], timeout_s: float = staging_protocol.HANDSHAKE_TIMEOUT_S
) -> None:
    """Send one request without chunks on its own connection, and wait for the answer."""
    connection = StagingConnection(address, secret, timeout_s)
    try:
        connection.ask(request)
    finally:
        connection.close()
