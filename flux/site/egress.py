"""The egress process: it hands rows to the sink in order and acknowledges what is durable there.

Rows of a `Collect` are held by the program that started the run: they are durable when it says so.
Other sinks live here.
"""

from __future__ import annotations

from typing import Any

import trio

from ..plan.plan import EGRESS
from ..protocols.egress import ONLY, Egress
from ..protocols.messages import Consume, Consumed, Frame
from ..protocols.node import Node
from ..sinks import Collect, Sink
from ..wire.rows import Rows, merge
from .shell import Shell, Surroundings


class EgressProcess(Shell):
    """The process behind the dataflow."""

    def __init__(self, surroundings: Surroundings, sink: Sink) -> None:
        stage = surroundings.plan.egress_stage
        super().__init__(surroundings, Node(EGRESS, [Egress(EGRESS, stage)]))
        self._stage = stage
        self._collects = isinstance(sink, Collect)
        self._sink = sink

    def start(self, nursery: trio.Nursery) -> None:
        if not self._collects:
            self._sink.open(self.surroundings.directory)

    def perform(self, job: Consume) -> None:
        rows = merge([self._rows(job, frame) for frame in job.frames])
        header = {
            "kind": "rows",
            "upto": job.upto,
            "count": len(rows),
            "end": any(mark.kind == "end" for mark in rows.marks),
        }
        if self._collects:
            self.program.send_batch(header, rows.user if len(rows) else None)
            return
        if len(rows):
            self._sink.write(rows.user, job.after, job.upto)
        if header["end"]:
            self._sink.close()
        self.program.send(header)
        self._durable(job.upto)

    def _rows(self, job: Consume, frame: Frame) -> Rows:
        rows: Rows = frame.body.between(job.after, job.upto)
        return rows.select(self.table(frame.channels, frame.edge)) if frame.channels else rows

    def hear_program(self, header: dict[str, Any]) -> None:
        if self._collects:
            self._durable(header["upto"])

    def _durable(self, upto: int) -> None:
        self.tell(Consumed(stage=self._stage, cohort=ONLY, upto=upto, rows=0, body=None))
