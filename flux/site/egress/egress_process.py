"""The egress process: it hands rows to the sinks and acknowledges what is durable there.

Each sink is a stage of the dataflow with a machine of its own: a slow one holds up no other until buffers are full. A
sink that blocks is called in a thread, and what arrives meanwhile is in the next call. An egress that is started again
resumes after what each sink has.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from functools import partial

import trio

from ...plan.plan import EGRESS
from ...protocols.messages import Consume
from ...protocols.node import Node
from ...sinks import Sink
from ...system import threads
from ...wire.frames import BadFrame
from ...wire.reports import Collected, Command, ProcessStopped, RowsDurable, read_command
from ..config import ProcessConfig, place_of
from ..role import Role
from ..shell import Shell
from .sink_writer import SinkWork, SinkWriter


class EgressProcess(Role):
    """The process after the dataflow; the `incarnation`-th of its run."""

    def __init__(self, config: ProcessConfig, sinks: Sequence[Sink], incarnation: int = 1) -> None:
        stages = config.plan.sink_stages
        self._writers = [
            SinkWriter(number, stages[number], sink, place_of(config.directory, "sink", number))
            for number, sink in enumerate(sinks)
        ]
        self._incarnation = incarnation
        self._stages = stages
        self.shell = Shell(config, self._node(), self)
        self._inputs = {writer.stage: self.shell.input_of(writer.stage) for writer in self._writers}
        self._work = {writer.stage: trio.open_memory_channel[SinkWork](1) for writer in self._writers}

    async def run(self) -> None:
        """Live until the driver sends `StopProcess`."""
        await self.shell.run()

    def _node(self) -> Node:
        name = EGRESS if self._incarnation == 1 else f"{EGRESS}.{self._incarnation}"
        return Node(name, [writer.machine(name) for writer in self._writers], self._incarnation)

    async def prepare(self) -> Node:
        """Open the sinks, and resume after what they have and the driver has collected."""
        for writer in self._writers:
            self._call_watched(writer, "it is opened", writer.open)
        for _ in [writer for writer in self._writers if writer.collects]:
            if (frame := await self.shell.reports.receive()) is not None:
                held = read_command(frame[0])
                if not isinstance(held, Collected):
                    raise BadFrame(f"expected what was collected, got {held!r:.200}")
                self._writers[held.sink].resume((held.position, held.ahead), held.upto)
        return self._node()

    @property
    def unusable(self) -> Exception | None:
        """Why a sink cannot be written to."""
        return next((writer.unusable for writer in self._writers if writer.unusable is not None), None)

    def start(self, nursery: trio.Nursery) -> None:
        if self.unusable is not None:
            raise self.unusable
        for writer in self._writers:
            if writer.progress is not None and writer.progress.ended:
                self._call_watched(writer, "it is closed", writer.close)
            if writer.sink.blocks and not writer.collects:
                nursery.start_soon(self._serve_sink, writer)
            elif writer.sink.flush_every_s is not None and not writer.collects:
                nursery.start_soon(self._flush_regularly, writer, writer.sink.flush_every_s)
        if self._incarnation > 1:
            self.repeat_reports()

    def repeat_reports(self) -> None:
        """Report what the sinks took, from this egress or the last: the driver may not know of it."""
        for writer in self._writers:
            if writer.progress is not None:
                self.shell.report(writer.last_report)

    def perform(self, job: Consume) -> None:
        writer = self._writers[self._stages.index(job.stage)]
        inputs = self._inputs[job.stage]
        work = writer.work(job, inputs.merged(job))
        inputs.forget(job.after)
        if writer.collects:
            self.shell.report_rows(writer.report(work), work.rows.user if len(work.rows) else None)
        elif writer.sink.blocks:
            self._work[job.stage][0].send_nowait(work)  # The machine gives the next one when this one is consumed.
        else:
            writer.write(work)
            self._finish(writer, work)

    def stop(self) -> ProcessStopped:
        for writer in self._writers:
            if writer.progress is not None:
                writer.sink.interrupt()
                try:
                    writer.flush()
                except Exception as error:
                    self.shell.log(f"flushing the sink as the run stops: {error}", logging.WARNING)
        return ProcessStopped()

    async def _serve_sink(self, writer: SinkWriter) -> None:
        """Give a sink that blocks its work, one call at a time, and let it flush now and then."""
        given = self._work[writer.stage][1]
        every_s = math.inf if writer.sink.flush_every_s is None else writer.sink.flush_every_s
        flush_at = trio.current_time() + every_s
        try:
            while True:
                work: SinkWork | None = None
                with trio.move_on_at(flush_at):
                    work = await given.receive()
                if work is not None:
                    rows = f"rows up to {work.reached[0]}"
                    await threads.call_in_thread(partial(self._call_watched, writer, rows, partial(writer.write, work)))
                    self._finish(writer, work)
                if trio.current_time() >= flush_at:
                    await threads.call_in_thread(partial(self._call_watched, writer, "it is flushed", writer.flush))
                    flush_at = trio.current_time() + every_s
        except Exception as error:
            self.shell.fail(error)

    def _call_watched(self, writer: SinkWriter, doing: str, call: Callable[[], None]) -> None:
        """Call a sink, in this thread: there its stack is looked for if it does not return."""
        with self.shell.watch.calling(f"sink {type(writer.sink).__name__}", f"stage {writer.stage}, {doing}"):
            call()

    async def _flush_regularly(self, writer: SinkWriter, every_s: float) -> None:
        """Let a sink that does not block flush, between its writes."""
        try:
            while True:
                await trio.sleep(every_s)
                self._call_watched(writer, "it is flushed", writer.flush)
        except Exception as error:
            self.shell.fail(error)

    def _finish(self, writer: SinkWriter, work: SinkWork) -> None:
        self.shell.report(writer.report(work))
        self._acknowledge(writer, work.upto)

    def on_command(self, command: Command) -> None:
        if isinstance(command, RowsDurable):
            self._acknowledge(self._writers[command.sink], command.upto)

    def _acknowledge(self, writer: SinkWriter, upto: int) -> None:
        if (consumed := writer.finish(upto)) is not None:
            self.shell.enqueue(consumed)
