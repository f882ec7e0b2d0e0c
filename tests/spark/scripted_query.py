"""A query of Spark without Spark: a thread of the program stages and commits micro-batches as Spark's tasks do.

What answers it is real: the ingress of a run, its staging area and its journals. Like Spark, it has one micro-batch in
flight, tries a task that failed again, and writes a micro-batch anew when its commit is refused.
"""

from __future__ import annotations

import os
import secrets
import socket
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa

from flux.spark import Stream
from flux.spark.source.spark_stream import LISTEN_BACKLOG, SECRET_BYTES
from flux.spark.source.writer import RETRY_PAUSE_S, StagingConnection, StagingRefused, ask_once

QUERY = "6a1d7a52-0000-4000-8000-000000000001"
RESTARTS_MAX = 4
ANSWER_TIMEOUT_S = 2.0  # A run that has failed does not answer any more, and is stopped soon after.

T = TypeVar("T")


class ScriptedStream(Stream):
    """A `Stream` of micro-batches that are given, each in two partitions, with `pause_s` after each."""

    def __init__(self, micro_batches: Sequence[pa.RecordBatch], pause_s: float = 0.0) -> None:
        self.schema = micro_batches[0].schema
        self.is_endless = False
        self.restarts = 0  # Micro-batches that were refused and written anew.
        self._micro_batches = micro_batches
        self._pause_s = pause_s
        self._watermark = (None, 0)
        self._tick_s = None
        self._listener = None
        self._query = None
        self._stopping = threading.Event()
        self._query_lock = threading.Lock()
        self._watcher = None

    def expect(self, flow: str, stateful_steps: Sequence[str]) -> None:
        """It has no checkpoint."""

    def bind(self, directory: Path) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=LISTEN_BACKLOG)
        self._address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._secret = secrets.token_bytes(SECRET_BYTES)
        self._directory = directory

    def start(self) -> None:
        self._watcher = threading.Thread(target=self._write_all, name="scripted query", daemon=True)
        self._watcher.start()

    def _write_all(self) -> None:
        error = None
        for batch_id, rows in enumerate(self._micro_batches):
            error = self._write(batch_id, rows)
            if error is not None or self._stopping.wait(self._pause_s):
                break
        self._report_end(error)

    def _write(self, batch_id: int, rows: pa.RecordBatch) -> str | None:
        """Write one micro-batch, anew if it is refused; return why it could not be, or None."""
        error = None
        for _ in range(RESTARTS_MAX):
            half = rows.num_rows // 2
            try:
                staged = [self._stage(batch_id, nth, part) for nth, part in enumerate((rows[:half], rows[half:]))]
                self._commit(batch_id, staged)
                return None
            except (OSError, StagingRefused) as failure:
                self.restarts += 1
                error = f"flux.spark.Stream: the Spark query failed: {failure}"
        return error

    def _stage(self, batch_id: int, partition: int, rows: pa.RecordBatch) -> list[Any]:
        """Do what a task does, and return what it reports to the commit."""

        def stage() -> list[Any]:
            attempt = os.urandom(6).hex()
            connection = StagingConnection(self._address, self._secret.hex(), ANSWER_TIMEOUT_S)
            try:
                connection.ask(
                    {"do": "stage", "query": QUERY, "batch": batch_id, "partition": partition, "attempt": attempt}
                )
                connection.send_chunk(memoryview(rows.schema.serialize()))
                connection.send_chunk(memoryview(rows.serialize()))
                return [partition, attempt, rows.num_rows, connection.end_chunks()]
            finally:
                connection.close()

        return self._tried_again(stage)

    def _commit(self, batch_id: int, staged: list[list[Any]]) -> None:
        attempts = [each for each in staged if each[2]]
        request = {"do": "commit", "query": QUERY, "batch": batch_id, "attempts": attempts}
        self._tried_again(lambda: ask_once(self._address, self._secret.hex(), request, ANSWER_TIMEOUT_S))

    def _tried_again(self, act: Callable[[], T]) -> T:
        """Act, again when the ingress has died meanwhile, until the run is over."""
        while True:
            try:
                return act()
            except (PermissionError, ConnectionRefusedError):
                raise
            except OSError:
                if self._stopping.wait(RETRY_PAUSE_S):
                    raise
