"""The egress process: it hands rows to the sink in order and acknowledges what is durable there.

Rows of a `Collect` are held by the program that started the run: they are durable when it says so.
Other sinks live here; one that blocks is called in a thread, and what comes meanwhile is in the next call. An egress
that takes the place of one that died goes on behind what the sink has.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import trio

from ..errors import blamed
from ..plan.plan import EGRESS
from ..protocols.egress import ONLY, Egress
from ..protocols.messages import Consume, Consumed, Frame
from ..protocols.node import Node
from ..sinks import Collect, Sink
from ..wire.rows import Rows, merge
from .progress import Progress
from .shell import Shell
from .surroundings import Surroundings

JOURNAL = "egress.journal"


@dataclass(frozen=True, slots=True)
class _Job:
    """What the sink is to take."""

    after: int
    upto: int
    rows: Rows
    end: bool


class EgressProcess(Shell):
    """The process behind the dataflow; the `incarnation`-th that is."""

    def __init__(self, surroundings: Surroundings, sink: Sink, incarnation: int = 1) -> None:
        self._sink = sink
        self._collects = isinstance(sink, Collect)
        self._unusable: Exception | None = None
        self._progress: Progress | None = None
        if not self._collects:
            try:
                self._progress = self._open(surroundings)
            except Exception as error:
                self._unusable = error  # Told when there is a connection to tell it on.
        self._stage = surroundings.plan.egress_stage
        self._incarnation = incarnation
        super().__init__(surroundings, self._node(0 if self._progress is None else self._progress.upto))
        self._jobs, self._given = trio.open_memory_channel[_Job](1)
        self._sink_in_use = threading.Lock()

    def _open(self, surroundings: Surroundings) -> Progress:
        progress = Progress(surroundings.directory / JOURNAL)
        with self._blaming_sink("was opened"):
            progress.resume(self._sink.open(surroundings.directory))
        return progress

    def _node(self, durable: int) -> Node:
        name = EGRESS if self._incarnation == 1 else f"{EGRESS}.{self._incarnation}"
        return Node(name, [Egress(name, self._stage, durable)], self._incarnation)

    async def prepare(self) -> None:
        """What was collected is held by the program: an egress that is started again goes on behind that."""
        if self._collects and (frame := await self.program.receive()) is not None:
            self.node = self._node(frame[0]["upto"])

    def start(self, nursery: trio.Nursery) -> None:
        if self._unusable is not None:
            raise self._unusable
        if self._progress is None:
            return
        if self._progress.ended:
            self._sink.close()
        if self._incarnation > 1:
            self.repeat_report()
        if self._sink.blocks:
            nursery.start_soon(self._serve_sink)

    def repeat_report(self) -> None:
        """What the sink took, from this egress or the last, the program may not have heard of."""
        if self._progress is not None:
            self._report(_Job(self._progress.upto, self._progress.upto, Rows(None), self._progress.ended))

    def perform(self, job: Consume) -> None:
        rows = merge([self._rows(job, frame) for frame in job.frames])
        work = _Job(job.after, job.upto, rows, any(mark.kind == "end" for mark in rows.marks))
        if self._collects:
            self._report(work)
        elif self._sink.blocks:
            self._jobs.send_nowait(work)  # The machine gives the next one when this one is consumed.
        else:
            self._write(work)
            self._finish(work)

    def last_words(self) -> dict[str, Any]:
        if self._progress is not None:
            self._sink.interrupt()
            try:
                with self._sink_in_use:
                    self._sink.flush()
            except Exception as error:
                self.log(f"flushing the sink: {error}")
        return {}

    async def _serve_sink(self) -> None:
        """Give a sink that blocks its work, one call at a time, and let it flush now and then."""
        every_s = math.inf if self._sink.flush_every_s is None else self._sink.flush_every_s
        flush_at = trio.current_time() + every_s
        try:
            while True:
                job: _Job | None = None
                with trio.move_on_at(flush_at):
                    job = await self._given.receive()
                if job is not None:
                    await trio.to_thread.run_sync(partial(self._write, job))
                    self._finish(job)
                if trio.current_time() >= flush_at:
                    await trio.to_thread.run_sync(self._flush)
                    flush_at = trio.current_time() + every_s
        except Exception as error:
            self.fail(error)

    def _flush(self) -> None:
        with self._sink_in_use, self._blaming_sink("was flushed"):
            self._sink.flush()

    def _write(self, job: _Job) -> None:
        assert self._progress is not None
        with self._sink_in_use:
            self._progress.give(job.upto, len(job.rows), job.end)
            if len(job.rows):
                with self._blaming_sink(f"took the output of the input {job.after + 1:,} to {job.upto:,}"):
                    self._sink.write(job.rows.user, job.after, job.upto)
            if job.end:
                with self._blaming_sink("was closed"):
                    self._sink.close()
            self._progress.take()

    @contextmanager
    def _blaming_sink(self, doing: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            advice = "Mend it, and run the flow again; output before that is safe"
            raise blamed(f"sink {type(self._sink).__name__}", error, doing, advice) from error

    def _finish(self, job: _Job) -> None:
        self._report(job)
        self._durable(job.upto)

    def _report(self, job: _Job) -> None:
        count = len(job.rows)
        header = {"kind": "rows", "after": job.after, "upto": job.upto, "count": count, "end": job.end}
        if self._progress is not None:
            # Of all egresses of the run: what one of them could not tell any more is in it.
            header["total"] = self._progress.rows
        self.program.send_batch(header, job.rows.user if self._collects and count else None)

    def _rows(self, job: Consume, frame: Frame) -> Rows:
        rows: Rows = frame.body.between(job.after, job.upto)
        return rows.select(self.table(frame.channels, frame.edge)) if frame.channels else rows

    def hear_program(self, header: dict[str, Any]) -> None:
        if self._collects:
            self._durable(header["upto"])

    def _durable(self, upto: int) -> None:
        self.tell(Consumed(stage=self._stage, cohort=ONLY, upto=upto, rows=0, body=None))
