"""An ingress that only stages: `Staging` in a loop of its own thread, for tests of the hand-off from Spark."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import trio

from flux.spark.source.staging import CommittedBatch, Staging

SECRET = bytes(range(32))
DEADLINE_S = 60.0

IngressFactory = Callable[..., "Ingress"]


class Ingress:
    """Staging in a trio loop of its own thread; keeps what was committed, and holds `done` back if asked to."""

    def __init__(self, directory: Path, *, hold: bool = False) -> None:
        self.taken: list[tuple[int, pa.Table]] = []
        self.error: BaseException | None = None
        self._directory = directory
        self._hold = hold
        self._held: list[CommittedBatch] = []
        self._changed = threading.Condition()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._up = threading.Event()
        self._thread = threading.Thread(target=trio.run, args=(self._main,))
        self._thread.start()
        assert self._up.wait(DEADLINE_S)

    async def _main(self) -> None:
        self._token = trio.lowlevel.current_trio_token()
        staging = Staging(self._directory, SECRET)
        async with trio.open_nursery() as nursery:
            self._scope = nursery.cancel_scope
            listener = trio.SocketListener(trio.socket.from_stdlib_socket(self._listener))
            nursery.start_soon(staging.serve, [listener])
            self._up.set()
            await self._take(staging)
            nursery.cancel_scope.cancel()

    async def _take(self, staging: Staging) -> None:
        try:
            async for committed in staging.committed():
                assert committed is not None
                batches = list(committed.batches())
                with self._changed:
                    self.taken.append((committed.batch_id, pa.Table.from_batches(batches)))
                    self._changed.notify_all()
                if self._hold:
                    self._held.append(committed)
                else:
                    committed.done()
        except Exception as error:
            self.error = error

    def wait_for_taken(self, count: int) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.taken) >= count, DEADLINE_S)

    def release(self) -> None:
        """Say `done` for all that was held back."""
        trio.from_thread.run_sync(self._release, trio_token=self._token)

    def _release(self) -> None:
        while self._held:
            self._held.pop(0).done()

    def wait_for_end(self) -> None:
        self._thread.join(DEADLINE_S)
        assert not self._thread.is_alive()

    def kill(self) -> None:
        """Stop at once, as a killed process does: no connection is ended properly."""
        if self._thread.is_alive():
            trio.from_thread.run_sync(self._scope.cancel, trio_token=self._token)
        self._thread.join(DEADLINE_S)
        self._listener.close()
