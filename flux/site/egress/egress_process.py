"""The egress process: it hands rows to the sinks and acknowledges what is durable there.

Each sink is a stage of the dataflow with a machine of its own: one that is slow holds up no other until buffers are
full. A sink that blocks is called in a thread, and what comes meanwhile is in the next call. An egress that takes the
place of one that died goes on behind what each sink has.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import trio

from ...plan.plan import EGRESS
from ...protocols.messages import Consume
from ...protocols.node import Node
from ...sinks import Sink
from ..config import ProcessConfig, place_of
from ..shell import Shell
from .sink_writer import SinkWork, SinkWriter


class EgressProcess(Shell):
    """The process behind the dataflow; the `incarnation`-th that is."""

    def __init__(self, config: ProcessConfig, sinks: Sequence[Sink], incarnation: int = 1) -> None:
        stages = config.plan.sink_stages
        self._outlets = [
            SinkWriter(number, stages[number], sink, place_of(config.directory, "sink", number))
            for number, sink in enumerate(sinks)
        ]
        self._incarnation = incarnation
        super().__init__(config, self._node())
        self._inputs = {outlet.stage: self.input_of(outlet.stage) for outlet in self._outlets}
        self._work = {outlet.stage: trio.open_memory_channel[SinkWork](1) for outlet in self._outlets}

    def _node(self) -> Node:
        name = EGRESS if self._incarnation == 1 else f"{EGRESS}.{self._incarnation}"
        return Node(name, [outlet.machine(name) for outlet in self._outlets], self._incarnation)

    async def prepare(self) -> None:
        """What was collected is held by the program: an egress that is started again goes on behind that."""
        for _ in [outlet for outlet in self._outlets if outlet.collects]:
            if (frame := await self.reports.receive()) is not None:
                held = frame[0]
                self._outlets[held.get("sink", 0)].go_on(held["upto"], held.get("reached"))
        self.node = self._node()

    @property
    def unusable(self) -> Exception | None:
        """Why a sink cannot be written to."""
        return next((outlet.unusable for outlet in self._outlets if outlet.unusable is not None), None)

    def start(self, nursery: trio.Nursery) -> None:
        if self.unusable is not None:
            raise self.unusable
        for outlet in self._outlets:
            if outlet.progress is not None and outlet.progress.ended:
                outlet.sink.close()
            if outlet.sink.blocks and not outlet.collects:
                nursery.start_soon(self._serve_sink, outlet)
        if self._incarnation > 1:
            self.repeat_report()

    def repeat_report(self) -> None:
        """What the sinks took, from this egress or the last, the program may not have heard of."""
        for outlet in self._outlets:
            if outlet.progress is not None:
                self.reports.send_batch(outlet.last_report, None)

    def perform(self, job: Consume) -> None:
        outlet = self._outlets[self.plan.sink_stages.index(job.stage)]
        inputs = self._inputs[job.stage]
        work = outlet.work(job, inputs.merged(job))
        inputs.forget(job.after)
        if outlet.collects:
            self.reports.send_batch(outlet.report(work), work.rows.user if len(work.rows) else None)
        elif outlet.sink.blocks:
            self._work[job.stage][0].send_nowait(work)  # The machine gives the next one when this one is consumed.
        else:
            outlet.write(work)
            self._finish(outlet, work)

    def last_words(self) -> dict[str, Any]:
        for outlet in self._outlets:
            if outlet.progress is not None:
                outlet.sink.interrupt()
                try:
                    outlet.flush()
                except Exception as error:
                    self.log(f"flushing the sink: {error}")
        return {}

    async def _serve_sink(self, outlet: SinkWriter) -> None:
        """Give a sink that blocks its work, one call at a time, and let it flush now and then."""
        given = self._work[outlet.stage][1]
        every_s = math.inf if outlet.sink.flush_every_s is None else outlet.sink.flush_every_s
        flush_at = trio.current_time() + every_s
        try:
            while True:
                work: SinkWork | None = None
                with trio.move_on_at(flush_at):
                    work = await given.receive()
                if work is not None:
                    await trio.to_thread.run_sync(partial(outlet.write, work))
                    self._finish(outlet, work)
                if trio.current_time() >= flush_at:
                    await trio.to_thread.run_sync(outlet.flush)
                    flush_at = trio.current_time() + every_s
        except Exception as error:
            self.fail(error)

    def _finish(self, outlet: SinkWriter, work: SinkWork) -> None:
        self.reports.send_batch(outlet.report(work), None)
        self._durable(outlet, work.upto)

    def hear_program(self, header: dict[str, Any]) -> None:
        if header["kind"] == "durable":
            self._durable(self._outlets[header.get("sink", 0)], header["upto"])

    def _durable(self, outlet: SinkWriter, upto: int) -> None:
        if (consumed := outlet.finish(upto)) is not None:
            self.enqueue(consumed)
