"""The ingress process: it takes rows from the sources, numbers them as its machine says, partitions them.

Rows of several sources are numbered as they come, a batch of one after a batch of another. Steps that stand before the
first exchange are done here, behind the numbering: they have no state, so the same rows come of the same input.

Every number that it gives is in the journal (`numbering`) before the rows go out. An ingress that takes the place of
one that died gives again what the journal says, in the same ranges, and then numbers on.

When rows come faster than they are processed, the machine asks for no more, and the source waits. If the user wants
that, rows for which there is no room are shed instead, before they have numbers, so that no copy ever sees them.
"""

from __future__ import annotations

import contextlib
import time
import zlib
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import msgpack
import numpy as np
import pyarrow as pa
import trio

from ...exchange.edge_bodies import LaneBody, make_body, rows_of_edges
from ...exchange.rows import PARTITION, Rows
from ...model.batch import Batch
from ...model.punctuation import Punctuation
from ...plan.plan import INGRESS, INPUT
from ...protocols.ingress import Ingress
from ...protocols.messages import Effect, EndOfSource, Pull, Released, Sourced
from ...protocols.node import Node
from ...sources import Source, SourceBatch
from ...types.errors import FluxError, unwrap_group, with_location
from ..config import ProcessConfig, place_of
from ..shell import Shell
from ..spill import TRANSFER_POOLS_MAX
from ..steps import Steps
from .admission import Admission
from .batch_coalescer import BatchCoalescer
from .sequence_journal import Replay, SequenceJournal, Span
from .source_input import SourceInput
from .watermarks import NumberedWatermarks, Watermarks, number_watermarks

JOURNAL = "numbering.journal"
_REPORT_EVERY_S = 0.05
_PATIENCE_S = 0.05  # So long the first rows for which there is no room wait for it, before they are shed.


class IngressProcess(Shell):
    """The process in front of the dataflow; the `incarnation`-th that is."""

    def __init__(self, config: ProcessConfig, sources: Sequence[Source], incarnation: int = 1) -> None:
        self.unusable: FluxError | None = None
        self._numbering: SequenceJournal | None = None
        try:
            self._numbering = SequenceJournal.open(config.directory / JOURNAL)
        except FluxError as error:
            self.unusable = error  # Told when there is a connection to tell it on.
        released = 0 if self._numbering is None else self._numbering.released
        name = INGRESS if incarnation == 1 else f"{INGRESS}.{incarnation}"
        pool_rows = config.plan.pool_rows
        self._machine = Ingress(name, pool_rows, released, TRANSFER_POOLS_MAX * pool_rows)
        super().__init__(config, Node(name, [self._machine], incarnation))
        self._intakes = [
            SourceInput(number, source, place_of(config.directory, "source", number), incarnation > 1)
            for number, source in enumerate(sources)
        ]
        self._incarnation = incarnation
        self._steps = Steps(self.plan, 0)
        self._edges = self.plan.outputs(0)
        self._pulls, self._pulled = trio.open_memory_channel[int](1)
        self._numbers_one = trio.Lock()  # Held by the intake whose rows are numbered next.
        self._received: deque[tuple[int, Callable[[], None]]] = deque()
        self._numbered: list[tuple[float, int, int]] = []  # (when, upto, rows), for the report.
        self._reported_at = 0.0
        self._sheds = config.plan.policy.on_overload == "shed"
        self._overloaded = False
        self._shed_told = 0
        self._rows_told = 0
        self._admission: Admission | None = None
        if (limit_ms := config.plan.policy.max_latency_ms) is not None:
            self._admission = Admission(limit_ms / 1000, config.plan.pool_rows, released)
        self._came_out = trio.Event()
        self._watermarks = Watermarks({}, {})

    def start(self, nursery: trio.Nursery) -> None:
        if self._numbering is None:
            assert self.unusable is not None
            raise self.unusable
        self._steps.open([0])
        nursery.start_soon(self._pump, self._numbering)
        nursery.start_soon(self._keep_reporting)

    def carry_out(self, effect: Effect) -> None:
        if isinstance(effect, Pull):
            self._pulls.send_nowait(effect.after)
        elif isinstance(effect, Released):
            self._release(effect.upto)
        else:
            super().carry_out(effect)

    def _release(self, upto: int) -> None:
        assert self._numbering is not None
        # Written first: a source that was told to forget rows must not be asked for them again.
        tells = bool(self._received) and self._received[0][0] <= upto
        self._numbering.release(upto, at_once=tells)
        self._tell_received(upto)
        if self.reports.broken:
            self._come_out(upto)  # Nobody tells how far the output is: rows flow on without.

    def _tell_received(self, upto: int) -> None:
        while self._received and self._received[0][0] <= upto:
            self._received.popleft()[1]()

    async def _pump(self, numbering: SequenceJournal) -> None:
        try:
            async with contextlib.AsyncExitStack() as open_intakes:
                for intake in self._intakes:
                    if intake.number in numbering.replay.offsets:
                        intake.offset = tuple(numbering.replay.offsets[intake.number])
                    with self._blaming(intake):
                        taking = intake.take_from(self._gathered(intake.batches()))
                    await open_intakes.enter_async_context(contextlib.aclosing(taking))
                await self._give_again(numbering.replay)
                if not numbering.ended:
                    await self._number_all(numbering)
            await self._pulled.receive()
            self.enqueue(EndOfSource())
            self._report()
        except Exception as error:
            self.fail(unwrap_group(error))

    @contextlib.contextmanager
    def _blaming(self, intake: SourceInput) -> Iterator[None]:
        assert self._numbering is not None
        try:
            yield
        except Exception as error:
            doing = f"was read behind row {self._numbering.upto:,}"
            raise with_location(f"source {intake.name}", error, doing, "Mend it, and run the flow again") from error

    def _gathered(self, batches: AsyncIterator[SourceBatch]) -> AsyncIterator[SourceBatch]:
        if self._admission is None:
            return batches
        gathering = BatchCoalescer(batches, self._admission)
        self._nursery.start_soon(gathering.read)
        return gathering

    # What the last ingress numbered.

    async def _give_again(self, replay: Replay) -> None:
        """What not every copy is known to have: the same rows, the same numbers."""
        for intake in self._intakes:
            if intake.source.replays:
                with self._blaming(intake):
                    await intake.skip(replay.skip_rows.get(intake.number, 0))
        for span in replay.spans:
            intake = self._intakes[span.source]
            with self._blaming(intake):
                await self._give_span_again(span, intake)

    async def _give_span_again(self, span: Span, intake: SourceInput) -> None:
        if span.shed:
            # A source that cannot replay does not give again what was shed; from another it is taken, and left out.
            if intake.source.replays:
                for piece in await intake.take(span.shed, "rows that were shed"):
                    self._note_received(span.upto, piece)
            return
        after = await self._pulled.receive()
        assert after == span.after, f"{self.name} is asked for what is behind {after}, not {span.after}"
        if span.mark is not None:
            self._tell_mark(span.upto, span.mark, span.value)
            return
        rows = span.kept_rows() if span.kept is not None else await self._taken_again(span, intake)
        body = self._partitioned(rows, span.after, span.punctuations, intake)
        if span.digest is not None and _digest(body) != span.digest:
            raise intake.differs(span)
        self._tell_rows(span.after, span.upto, rows.num_rows, body, span.when)

    def _note_received(self, upto: int, batch: SourceBatch) -> None:
        """Tell the source when the copies have what is up to `upto`; they may have said so already."""
        assert self._numbering is not None
        if batch.received is not None:
            self._received.append((upto, batch.received))
            self._tell_received(self._numbering.released)

    async def _taken_again(self, span: Span, intake: SourceInput) -> pa.RecordBatch:
        pieces = await intake.take(span.rows, f"rows {span.after + 1:,} to {span.upto:,}")
        came, numbers = 0, span.numbers()
        for piece in pieces:
            came += piece.rows.num_rows
            self._note_received(int(numbers[came - 1]), piece)
        if not pieces:
            # Of a range that was received but for the watermark at its end, there are no rows.
            return pa.RecordBatch.from_pylist([], intake.source.schema)
        return pa.concat_batches([piece.rows for piece in pieces])

    # What comes now.

    async def _number_all(self, numbering: SequenceJournal) -> None:
        """Number the rows of all sources as they come; each is read by a task of its own."""
        times = {intake.number: intake.source.event_time for intake in self._intakes}
        told = {number: event_time for number, event_time in times.items() if event_time is not None}
        self._watermarks = Watermarks(told, numbering.reached)
        async with trio.open_nursery() as nursery:
            for intake in self._intakes:
                intake.stand(numbering)
                nursery.start_soon(self._number_on, numbering, intake)
        await self._pulled.receive()
        self._report()
        # Who works on all rows at the end, as Spark's batch mode does, needs a clock that is the same in every copy.
        now_ms = time.time_ns() // 1_000_000
        self._tell_mark(numbering.mark("end", now_ms, when=time.monotonic()), "end", now_ms)

    async def _number_on(self, numbering: SequenceJournal, intake: SourceInput) -> None:
        with self._blaming(intake):
            while (batch := await intake.next(self._piece_rows)) is not None:
                number = self._number if batch.rows.num_rows else self._number_marks
                async with self._numbers_one:
                    await number(numbering, intake, batch)
            async with self._numbers_one:
                await self._mark_end(numbering, intake)

    async def _mark_end(self, numbering: SequenceJournal, intake: SourceInput) -> None:
        """A source that has ended holds up event time no longer: the others may have come further."""
        value = self._watermarks.end(intake.number)
        if value is not None:
            await self._pulled.receive()
            self._tell_mark(numbering.mark("watermark", value, when=time.monotonic()), "watermark", value)

    async def _number_marks(self, numbering: SequenceJournal, intake: SourceInput, batch: SourceBatch) -> None:
        """Give each punctuation of a source its number; of those that have theirs from the last ingress, none."""
        offset, behind = intake.offset
        if behind == 0 and batch.offset is not None and msgpack.packb(batch.offset) == msgpack.packb(offset):
            batch = replace(batch, punctuations=())
        for nth, (kind, value) in enumerate(batch.punctuations, start=1):
            await self._pulled.receive()
            if nth == len(batch.punctuations) and batch.offset is not None:
                intake.offset = (batch.offset, 0)
            sn = numbering.mark(kind, value, when=time.monotonic(), source=intake.number, offset=intake.offset)
            self._tell_mark(sn, kind, value)
        self._note_received(numbering.upto, batch)

    async def _number(self, numbering: SequenceJournal, intake: SourceInput, batch: SourceBatch) -> None:
        after = await self._room()
        if after is None:
            self._shed(numbering, intake, batch)
            return
        which, count = intake.number, batch.rows.num_rows
        punctuations = self._watermarks.behind(which, batch.rows, after)
        upto = after + count + len(punctuations)
        body, when = self._partitioned(batch.rows, after, punctuations, intake), time.monotonic()
        kept, digest, reached = intake.kept(batch.rows), _digest(body), self._watermarks.reached(which)
        numbering.number(
            upto,
            intake.offset,
            when=when,
            digest=digest,
            kept=kept,
            source=which,
            punctuations=punctuations,
            reached=reached,
        )
        if batch.received is not None:
            self._received.append((upto, batch.received))
        self._tell_rows(after, upto, count, body, when)

    async def _room(self) -> int | None:
        """The number behind which the next rows are numbered, when there is room for them; None: they are shed."""
        if not self._sheds:
            return await self._let_in()
        await trio.lowlevel.checkpoint()  # The machine may have something to say to the last rows.
        # Once there was no room, rows do not wait to see whether there will be: those that come later are newer.
        while not (self._overloaded and self._is_full()):
            with trio.move_on_after(_PATIENCE_S):
                after = await self._let_in()
                self._overloaded = False
                return after
            self._overloaded = True
        return None

    async def _let_in(self) -> int:
        while self._admission is not None and not self._admission.has_room():
            await self._came_out.wait()
        return await self._pulled.receive()

    def _is_full(self) -> bool:
        return self._machine.prod.buffer.full() or (self._admission is not None and not self._admission.has_room())

    @property
    def _piece_rows(self) -> int | None:
        return None if self._admission is None else self._admission.piece_rows

    def hear_program(self, header: dict[str, Any]) -> None:
        if header["kind"] == "out":
            self._come_out(header["upto"])

    def _come_out(self, upto: int) -> None:
        if self._admission is not None:
            self._admission.come_out(upto, time.monotonic())
            self._came_out.set()
            self._came_out = trio.Event()

    def _shed(self, numbering: SequenceJournal, intake: SourceInput, batch: SourceBatch) -> None:
        numbering.leave_out(batch.rows.num_rows, intake.offset, when=time.monotonic(), source=intake.number)
        self._note_received(numbering.upto, batch)
        self._report_if_due()

    def _tell_mark(self, sn: int, kind: str, value: int | None = None) -> None:
        body = make_body(self._edges, {}, (Punctuation(sn, kind, value),))
        self.enqueue(Sourced(after=sn - 1, upto=sn, rows=0, body=body))

    def _tell_rows(self, after: int, upto: int, count: int, body: LaneBody, when: float) -> None:
        self._numbered.append((when, upto, count))
        self._report_if_due()
        if self._admission is not None:
            self._admission.let_in(upto, time.monotonic())
        # Rows that a filter has taken out count too: the numbers that are under way are what is bounded.
        self.enqueue(Sourced(after=after, upto=upto, rows=max(count, len(body)), body=body))

    def _partitioned(
        self, batch: pa.RecordBatch, after: int, punctuations: NumberedWatermarks, intake: SourceInput
    ) -> LaneBody:
        """What goes on each edge of the rows of a source that have the numbers behind `after`, but for
        `punctuations`."""
        count = batch.num_rows
        nobody = np.zeros(count, dtype=np.uint16)
        given = Batch(batch, number_watermarks(after, count, punctuations), None, nobody)
        taps = self._steps.process(given, place=INPUT - intake.number) if count else {}
        for told, _ in self._steps.skipped():
            if told:
                self.reports.send(told)
        rows, among = {}, tuple(Punctuation(sn, "watermark", value) for sn, value in punctuations)
        for edge in self._edges:
            ends = self.plan.edges[edge]
            if ends.tap in taps:
                out = taps[ends.tap]
                partition = ends.route.partition(out.arrow, out.sn, out.sub)
                rows[edge] = Rows.of(out.arrow, out.sn, out.sub, out.partition, partition, among)
        return make_body(self._edges, rows, among)

    def repeat_report(self) -> None:
        """Totals that nobody was there to hear."""
        self._shed_told = self._rows_told = 0
        self._report()

    async def _keep_reporting(self) -> None:
        """Tell also what came last before a source fell silent; if there is nothing, the next row is told at once."""
        while True:
            await trio.sleep(_REPORT_EVERY_S)
            if self._numbered or (self._numbering is not None and self._numbering.shed > self._shed_told):
                self._report_if_due()

    def _report_if_due(self) -> None:
        if time.monotonic() > self._reported_at + _REPORT_EVERY_S:
            self._report()

    def _report(self) -> None:
        self._reported_at = time.monotonic()
        if self._numbering is not None and self._numbering.shed > self._shed_told:
            self._shed_told = self._numbering.shed
            self.reports.send({"kind": "shed", "total": self._shed_told})
        rows = 0 if self._numbering is None else self._numbering.rows
        if self._numbered or rows > self._rows_told:
            # Of all ingresses of the run: what one of them could not tell any more is in it.
            self.reports.send({"kind": "inputs", "log": self._numbered, "total": rows})
            self._numbered, self._rows_told = [], rows


def _digest(body: LaneBody) -> int:
    """Tells rows from others as far as their partitions differ: those are at hand, so it costs next to nothing."""
    digest = 0
    for rows in rows_of_edges(body):
        if len(rows):
            digest = zlib.crc32(rows.hidden(PARTITION), digest)
    return digest
