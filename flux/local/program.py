"""Program: the user's program's end of a run: what the processes tell it, in a thread of its own.

The thread runs one trio loop: it hears the processes, takes over a `Collect`'s rows, and notices when a
process ends. Everything it learns is in `Heard`, guarded by one condition that callers wait on.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import trio

from ..errors import DataLost, FluxError, from_dict
from ..plan.plan import EGRESS
from ..sinks import Collect, Sink
from ..site.shell import Surroundings
from ..wire import frames
from ..wire.link import Link, accept_loop
from .launcher import Child

log = logging.getLogger("flux")

LogEntry = tuple[float, int, int]  # (when, upto, rows)


@dataclass
class Heard:
    """What the program knows of the run. Times are of the monotonic clock."""

    outputs: int = 0
    safe_upto: int = 0
    started_at: float | None = None
    ended: bool = False
    error: BaseException | None = None
    output_log: list[LogEntry] = field(default_factory=list)
    input_log: list[LogEntry] = field(default_factory=list)
    closed_at: dict[str, float] = field(default_factory=dict)
    whole_at: list[float] = field(default_factory=list)  # When every partition had all its copies (again).
    moved: list[tuple[float, str, int]] = field(default_factory=list)  # When state went to which site, bytes.
    byes: set[str] = field(default_factory=set)


class Program:
    """The thread that hears the processes of one run."""

    def __init__(
        self, surroundings: Surroundings, sink: Sink, listener: socket.socket, children: Sequence[Child]
    ) -> None:
        self.heard = Heard()
        self.changed = threading.Condition()
        self._surroundings = surroundings
        self._sink = sink
        self._listener = listener
        self._children = {child.name: child for child in children}
        self._links: dict[str, Link] = {}
        self._stopping = False
        self._token: trio.lowlevel.TrioToken | None = None
        self._up = threading.Event()
        self._thread = threading.Thread(target=self._live, name="flux-program", daemon=True)
        self._thread.start()

    def wait(self, until: Callable[[Heard], bool], timeout_s: float | None) -> bool:
        """Wait until a condition on what was heard holds; False if time is up before."""
        with self.changed:
            return self.changed.wait_for(lambda: until(self.heard), timeout_s)

    def stop(self, patience_s: float = 5.0) -> None:
        """Tell every process to end, and wait until they have."""
        self._tell(self._stop)
        self.wait(lambda heard: self._all_gone() or not self._thread.is_alive(), patience_s)

    def join(self) -> None:
        """End the thread; every process must be gone by now."""
        self._tell(lambda: self._cancel.cancel())
        self._thread.join()
        for child in self._children.values():
            if child.exited is None:
                child.reap()  # The thread died before it could.

    def _tell(self, what: Callable[[], None]) -> None:
        self._up.wait()
        with contextlib.suppress(trio.RunFinishedError):
            assert self._token is not None
            self._token.run_sync_soon(what)

    def _all_gone(self) -> bool:
        return all(child.exited is not None for child in self._children.values())

    # In the thread.

    def _live(self) -> None:
        """Whatever goes wrong here must reach those who wait."""
        try:
            trio.run(self._run)
        except BaseException as error:
            with self.changed:
                self._stopping = True
                self.heard.error = self.heard.error or _as_one(error)
                self.changed.notify_all()

    async def _run(self) -> None:
        self._token = trio.lowlevel.current_trio_token()
        with trio.CancelScope() as self._cancel:
            self._up.set()
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                for child in self._children.values():
                    nursery.start_soon(self._watch, child)
                with self._listener:
                    await accept_loop(self._listener, self._accepted)

    def _accepted(self, sock: socket.socket) -> None:
        self._nursery.start_soon(self._serve, sock)

    async def _serve(self, sock: socket.socket) -> None:
        link = Link("a process that has not greeted", sock)
        self._nursery.start_soon(link.write)
        try:
            while (frame := await link.receive()) is not None:
                header, body = frame
                if link.peer in self._links:
                    self._hear(link, header, body)
                elif self._surroundings.greets(header):
                    link.peer = header["node"]
                    self._links[link.peer] = link
                else:
                    raise frames.BadFrame("it does not know this run's token")
        except frames.BadFrame as error:
            log.warning("closed the connection to %s: %s", link.peer, error)
        finally:
            link.close()

    async def _watch(self, child: Child) -> None:
        await trio.lowlevel.wait_readable(child.pidfd)
        with self.changed:
            child.reap()
            if not self._stopping and not child.name.startswith("site-"):
                self._fail(
                    FluxError(
                        f"the {child.name} process ended with {_exit(child.exited)}, and it cannot be "
                        "restarted yet: the run ends here. Output up to now is right"
                    )
                )
            elif not self._stopping and self.heard.started_at is None:
                self._fail(FluxError(f"{child.name} ended with {_exit(child.exited)} before the run had started"))
            self.changed.notify_all()

    def _hear(self, link: Link, header: dict[str, Any], body: Any) -> None:
        now = time.monotonic()
        kind = header["kind"]
        with self.changed:
            heard = self.heard
            if kind == "rows":
                self._take_rows(link, header, body, now)
            elif kind == "inputs":
                heard.input_log.extend(header["log"])
            elif kind == "view":
                if heard.started_at is None:
                    heard.started_at = header["at"]
                if header["whole"]:
                    heard.whole_at.append(header["at"])
            elif kind == "moved":
                heard.moved.append((now, header["to"], header["bytes"]))
            elif kind == "closed":
                heard.closed_at.setdefault(header["node"], header["at"])
            elif kind == "error":
                error = from_dict(header["error"])
                self._fail(error)
            elif kind == "bye":
                heard.byes.add(link.peer)
            elif kind == "log":
                log.info("%s: %s", header["node"], header["text"])
            else:
                raise frames.BadFrame(f"{link.peer} sent an unknown {kind!r}")
            self.changed.notify_all()

    def _take_rows(self, link: Link, header: dict[str, Any], body: Any, now: float) -> None:
        heard = self.heard
        rows = link.decode_batch(header, body)
        if isinstance(self._sink, Collect):
            if rows is not None:
                self._sink.write(rows, heard.safe_upto, header["upto"])
            self._links[EGRESS].send({"kind": "durable", "upto": header["upto"]})
        heard.outputs += header["count"]
        heard.safe_upto = header["upto"]
        if header["count"]:
            heard.output_log.append((now, header["upto"], header["count"]))
        heard.ended = heard.ended or header["end"]

    def _fail(self, error: BaseException) -> None:
        # While a run stops, its processes see each other go one by one.
        if self.heard.error is None and not self.heard.ended and not self._stopping:
            if isinstance(error, DataLost):
                error = DataLost(error.partitions, self.heard.safe_upto or None)
            self.heard.error = error

    def _stop(self) -> None:
        self._stopping = True
        for link in self._links.values():
            link.send({"kind": "stop"})


def _as_one(error: BaseException) -> BaseException:
    """The error itself, out of the groups that trio makes."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error


def _exit(status: int | None) -> str:
    return f"signal {-status}" if status is not None and status < 0 else f"exit status {status}"
