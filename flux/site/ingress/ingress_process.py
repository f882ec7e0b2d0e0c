"""The ingress process: it takes rows from the sources, numbers them as its machine asks, and partitions them.

Rows of several sources are numbered as they arrive, a batch of one after a batch of another. Steps before the first
exchange run here, after the numbering: they have no state, so the same input gives the same rows. Event time may be a
column of what they emit, so watermarks are placed after them; see `flux.site.ingress.watermarks`.

Every number is in the journal before the rows go out. An ingress that is started again replays what the journal has, in
the same ranges, and then numbers on.

When rows arrive faster than they are processed, the machine asks for no more, and the source waits. If the user wants
that, rows without room are shed instead, before they have numbers, so that no copy ever sees them.
"""

from __future__ import annotations

import contextlib
import time
import zlib
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial

import msgpack
import numpy as np
import pyarrow as pa
import trio

from ...exchange.edge_bodies import LaneBody, rows_of_edges
from ...exchange.rows import PARTITION
from ...exchange.stage_output import route_output
from ...model.batch import Batch
from ...model.error_location import end_error
from ...model.punctuation import Punctuation
from ...plan.plan import INGRESS, INPUT
from ...protocols.ingress import Ingress
from ...protocols.inspection import is_full
from ...protocols.messages import Effect, EndOfSource, Pull, Released, Sourced
from ...protocols.node import Node
from ...sources import Source, SourceBatch
from ...types.errors import RAISED, FluxError, SourceError, unwrap_group
from ...wire.reports import Command, OutputReached
from ..config import ProcessConfig, place_of
from ..role import Role
from ..shell import Shell
from ..spill import TRANSFER_POOLS_MAX
from ..steps import StepOutputs, Steps
from .admission import Admission
from .batch_coalescer import BatchCoalescer
from .input_reports import InputReports
from .numbering import Numbering
from .sequence_journal import Replay, SequenceJournal, Span
from .source_input import SourceInput
from .time_watch import TimeWatch
from .watched_batches import WatchedBatches
from .watermarks import NumberedWatermarks, Watermarks, find_time_places, renumber

JOURNAL = "numbering.journal"
_ROOM_TIMEOUT_S = 0.05  # So long the first rows for which there is no room wait for it, before they are shed.


class IngressProcess(Role):
    """The process before the dataflow; the `incarnation`-th of its run."""

    reports_work = True

    def __init__(self, config: ProcessConfig, sources: Sequence[Source], incarnation: int = 1) -> None:
        self.unusable: FluxError | None = None
        self._journal: SequenceJournal | None = None
        try:
            self._journal = SequenceJournal.open(config.directory / JOURNAL)
        except FluxError as error:
            self.unusable = error  # Reported when there is a connection to report it on.
        released = 0 if self._journal is None else self._journal.released
        name = INGRESS if incarnation == 1 else f"{INGRESS}.{incarnation}"
        pool_rows = config.plan.pool_rows
        numbered = None if incarnation == 1 else 0 if self._journal is None else self._journal.upto
        self._machine = Ingress(name, pool_rows, released, TRANSFER_POOLS_MAX * pool_rows, numbered)
        self.shell = Shell(config, Node(name, [self._machine], incarnation), self)
        self._inputs = [
            SourceInput(number, source, place_of(config.directory, "source", number), incarnation > 1)
            for number, source in enumerate(sources)
        ]
        self._reports = InputReports(self._journal, self.shell.report)
        if config.plan.policy.on_error == "skip":
            for source_input in self._inputs:
                source_input.report_skipped = partial(self._reports.send_skipped, source_input)
        self._incarnation = incarnation
        self._times = find_time_places(config.plan.first, {n: source.event_time for n, source in enumerate(sources)})
        self._steps = Steps(config.plan, 0, (place for time in self._times.values() for place in time.places))
        self._edges = config.plan.output_edges(0)
        self._sheds = config.plan.policy.on_overload == "shed"
        self._numbering = Numbering(self._inputs, bool(self._times), self._sheds)
        self._received: deque[tuple[int, Callable[[], None]]] = deque()
        self._overloaded = False
        self._admission: Admission | None = None
        if (limit_ms := config.plan.policy.max_latency_ms) is not None:
            self._admission = Admission(limit_ms / 1000, config.plan.pool_rows, released)
        self._output_moved = trio.Event()
        self._watermarks = Watermarks({}, {})

    async def run(self) -> None:
        """Live until the driver sends `StopProcess`."""
        await self.shell.run()

    def start(self, nursery: trio.Nursery) -> None:
        if self._journal is None:
            assert self.unusable is not None
            raise self.unusable
        self._steps.open([0], self.shell.watch.calling)
        nursery.start_soon(self._pump, self._journal)
        nursery.start_soon(self._reports.send_regularly)

    def carry_out(self, effect: Effect) -> None:
        if isinstance(effect, Pull):
            self._numbering.offer(effect.after, effect.given_upto)
        elif isinstance(effect, Released):
            self._release(effect.upto)
        else:
            super().carry_out(effect)

    def _release(self, upto: int) -> None:
        assert self._journal is not None
        # Written first: a source whose `received` was called may forget the rows, and must not be asked for them again.
        calls_source = bool(self._received) and self._received[0][0] <= upto
        self._journal.release(upto, at_once=calls_source)
        self._call_received(upto)
        if self.shell.reports.broken:
            self._on_output(upto)  # Without a driver the position of the output is not known: rows flow on.

    def _call_received(self, upto: int) -> None:
        while self._received and self._received[0][0] <= upto:
            self._received.popleft()[1]()

    async def _pump(self, journal: SequenceJournal) -> None:
        try:
            async with contextlib.AsyncExitStack() as open_inputs:
                for source_input in self._inputs:
                    if source_input.number in journal.replay.offsets:
                        source_input.offset = tuple(journal.replay.offsets[source_input.number])
                    with self._locating(source_input):
                        batches = self._watched(source_input.batches(), source_input, journal)
                        slicer = source_input.take_from(self._coalesced(batches))
                    await open_inputs.enter_async_context(contextlib.aclosing(slicer))
                await self._replay(journal.replay)
                if not journal.ended:
                    await self._number_all(journal)
            await self._numbering.next()
            self.shell.enqueue(EndOfSource())
            self._reports.send()
        except Exception as error:
            self.shell.fail(unwrap_group(error))

    @contextlib.contextmanager
    def _locating(self, source_input: SourceInput) -> Iterator[None]:
        assert self._journal is not None
        try:
            yield
        except FluxError:
            raise
        except RAISED as error:
            doing, advice = f"was read after row {self._journal.upto:,}", "Fix it, and run the flow again"
            raise end_error(SourceError, f"source {source_input.name}", error, doing, advice) from error

    def _watched(
        self, batches: AsyncIterator[SourceBatch], source_input: SourceInput, journal: SequenceJournal
    ) -> AsyncIterator[SourceBatch]:
        return WatchedBatches(
            batches, self.shell.watch, source_input.name, lambda: f"it was asked for rows after {journal.upto:,}"
        )

    def _coalesced(self, batches: AsyncIterator[SourceBatch]) -> AsyncIterator[SourceBatch]:
        if self._admission is None:
            return batches
        coalescer = BatchCoalescer(batches, self._admission)
        self.shell.nursery.start_soon(coalescer.read)
        return coalescer

    # Replay of what the last ingress numbered.

    async def _replay(self, replay: Replay) -> None:
        """Replay what not every copy is known to have: the same rows with the same numbers."""
        for source_input in self._inputs:
            if source_input.source.replays:
                with self._locating(source_input):
                    await source_input.skip(replay.skip_rows.get(source_input.number, 0))
        for span in replay.spans:
            source_input = self._inputs[span.source]
            with self._locating(source_input):
                await self._replay_span(span, source_input)

    async def _replay_span(self, span: Span, source_input: SourceInput) -> None:
        if span.shed:
            # A source that replays gives rows that were shed again: they are dropped again.
            if source_input.source.replays:
                for piece in await source_input.take(span.shed, "rows that were shed"):
                    self._note_received(span.upto, piece)
            return
        after = await self._numbering.next()
        assert after == span.after, f"{self.shell.name} is asked for rows after {after}, not {span.after}"
        if span.mark is not None:
            self._enqueue_punctuation(span.upto, span.mark, span.value)
            return
        rows = span.kept_rows() if span.kept is not None else await self._replayed_rows(span, source_input)
        outputs = self._processed(rows, span.first_unmarked, span.source)
        outputs = renumber(outputs, span.first_unmarked, span.after, rows.num_rows, span.punctuations)
        body = self._routed(outputs, span.punctuations)
        if span.digest is not None and _digest(body) != span.digest:
            raise source_input.differs(span)
        self._enqueue_rows(span.after, span.upto, rows.num_rows, body, span.when)

    def _note_received(self, upto: int, batch: SourceBatch) -> None:
        """Call the batch's `received` when the copies have what is up to `upto`, which may be at once."""
        assert self._journal is not None
        if batch.received is not None:
            self._received.append((upto, batch.received))
            self._call_received(self._journal.released)

    async def _replayed_rows(self, span: Span, source_input: SourceInput) -> pa.RecordBatch:
        pieces = await source_input.take(span.rows, f"rows {span.after + 1:,} to {span.upto:,}")
        count, numbers = 0, span.numbers()
        for piece in pieces:
            count += piece.rows.num_rows
            self._note_received(int(numbers[count - 1]), piece)
        if not pieces:
            # If all of a range was received except the watermark at its end, there are no rows.
            return pa.RecordBatch.from_pylist([], source_input.source.schema)
        return pa.concat_batches([piece.rows for piece in pieces])

    # Numbering of new rows.

    async def _number_all(self, journal: SequenceJournal) -> None:
        """Number the rows of all sources as they arrive; each is read by a task of its own."""
        self._watermarks = Watermarks(self._times, journal.reached, journal.watermark, journal.idle)
        watch = TimeWatch(self._inputs, self._watermarks, self._numbering, partial(self._write_punctuation, journal))
        async with trio.open_nursery() as watching:
            await watch.start(watching)
            async with trio.open_nursery() as nursery:
                for source_input in self._inputs:
                    source_input.resume(journal)
                    nursery.start_soon(self._number_source, journal, source_input)
            watching.cancel_scope.cancel()
        await self._numbering.next()
        self._reports.send()
        # An operator that emits at the end, as Spark's batch mode does, needs a clock that is the same in every copy.
        now_ms = time.time_ns() // 1_000_000
        self._write_punctuation(journal, "end", now_ms, "the source has ended before them")

    async def _number_source(self, journal: SequenceJournal, source_input: SourceInput) -> None:
        with self._locating(source_input):
            while (batch := await source_input.next(self._piece_rows)) is not None:
                number = self._number if batch.rows.num_rows else self._number_punctuations
                async with self._numbering.turn:
                    await number(journal, source_input, batch)
            async with self._numbering.turn:
                await self._end_source(journal, source_input)

    def _write_punctuation(
        self,
        journal: SequenceJournal,
        kind: str,
        value: int | None,
        why_not: str,
        *,
        idle: frozenset[int] = frozenset(),
        source: SourceInput | None = None,
    ) -> None:
        """Number a punctuation, with the source that gave it, if one did; `why_not` as in `Numbering.check`."""
        self._numbering.check(journal.upto, why_not)
        number, offset = (0, None) if source is None else (source.number, source.offset)
        sn = journal.mark(kind, value, when=time.monotonic(), source=number, offset=offset, idle=idle)
        self._enqueue_punctuation(sn, kind, value)

    async def _end_source(self, journal: SequenceJournal, source_input: SourceInput) -> None:
        """End a source: it holds back the watermark no longer, and the others may have reached more."""
        value = self._watermarks.end(source_input.number)
        if value is not None:
            await self._numbering.next()
            self._write_punctuation(journal, "watermark", value, "a watermark was among them")

    async def _number_punctuations(
        self, journal: SequenceJournal, source_input: SourceInput, batch: SourceBatch
    ) -> None:
        """Number the punctuations of a source, except those that the last ingress numbered."""
        offset, rows_after = source_input.offset
        if rows_after == 0 and batch.offset is not None and msgpack.packb(batch.offset) == msgpack.packb(offset):
            batch = replace(batch, punctuations=())
        for nth, (kind, value) in enumerate(batch.punctuations, start=1):
            await self._numbering.next()
            if nth == len(batch.punctuations) and batch.offset is not None:
                source_input.offset = (batch.offset, 0)
            why_not = "the source gave a punctuation among them"
            self._write_punctuation(journal, kind, value, why_not, source=source_input)
        self._note_received(journal.upto, batch)

    async def _number(self, journal: SequenceJournal, source_input: SourceInput, batch: SourceBatch) -> None:
        with self.shell.meter.pool_waits.source_rows_at_hand():
            after = await self._room()
        if after is None:
            self._shed(journal, source_input, batch)
            return
        self._numbering.check(journal.upto, self._numbering.why_not_again(source_input))
        which, count = source_input.number, batch.rows.num_rows
        outputs = self._processed(batch.rows, after + 1, which)
        punctuations = self._watermarks.advance(which, outputs, after)
        upto = after + count + len(punctuations)
        body = self._routed(renumber(outputs, after + 1, after, count, punctuations), punctuations)
        when = time.monotonic()
        kept, digest, reached = source_input.kept(batch.rows), _digest(body), self._watermarks.reached(which)
        journal.number(
            upto,
            source_input.offset,
            when=when,
            digest=digest,
            kept=kept,
            source=which,
            punctuations=punctuations,
            reached=reached,
        )
        if batch.received is not None:
            self._received.append((upto, batch.received))
        self._enqueue_rows(after, upto, count, body, when)

    async def _room(self) -> int | None:
        """Return the number after which the next rows are numbered, when there is room; None if they are shed."""
        if not self._sheds:
            return await self._admit()
        await trio.lowlevel.checkpoint()  # The machine may still have to take the last rows.
        # After an overload, rows do not wait for room: later rows are newer.
        while not (self._overloaded and self._is_full()):
            with trio.move_on_after(_ROOM_TIMEOUT_S):
                after = await self._admit()
                self._overloaded = False
                return after
            self._overloaded = True
        return None

    async def _admit(self) -> int:
        while self._admission is not None and not self._admission.has_room():
            await self._output_moved.wait()
        return await self._numbering.next()

    def _is_full(self) -> bool:
        return is_full(self._machine) or (self._admission is not None and not self._admission.has_room())

    @property
    def _piece_rows(self) -> int | None:
        return None if self._admission is None else self._admission.piece_rows

    def on_command(self, command: Command) -> None:
        if isinstance(command, OutputReached):
            self._on_output(command.upto)

    def _on_output(self, upto: int) -> None:
        if self._admission is not None:
            self._admission.come_out(upto, time.monotonic())
            self._output_moved.set()
            self._output_moved = trio.Event()

    def _shed(self, journal: SequenceJournal, source_input: SourceInput, batch: SourceBatch) -> None:
        journal.leave_out(batch.rows.num_rows, source_input.offset, when=time.monotonic(), source=source_input.number)
        self._note_received(journal.upto, batch)
        self._reports.send_if_due()

    def _enqueue_punctuation(self, sn: int, kind: str, value: int | None = None) -> None:
        self._note_watermarks([value] if kind == "watermark" and value is not None else [])
        body = route_output(self._edges, {}, (Punctuation(sn, kind, value),))
        self._reports.note_numbered(time.monotonic(), sn, 0)
        self.shell.enqueue(Sourced(after=sn - 1, upto=sn, rows=0, body=body))

    def _enqueue_rows(self, after: int, upto: int, count: int, body: LaneBody, when: float) -> None:
        self._reports.note_numbered(when, upto, count)
        if self._admission is not None:
            self._admission.let_in(upto, time.monotonic())
        # Rows that a filter has dropped count too: the numbers in flight are bounded.
        counts = self.shell.count_rows(0, body) if len(body) >= count else ()
        self.shell.enqueue(Sourced(after=after, upto=upto, rows=max(count, len(body)), counts=counts, body=body))

    def _processed(self, rows: pa.RecordBatch, first: int, source: int) -> StepOutputs:
        """Return what the steps make of a source's rows, numbered from `first` on."""
        count = rows.num_rows
        if not count:
            return {}
        numbers = np.arange(first, first + count, dtype=np.int64)
        given = Batch(rows, numbers, None, np.zeros(count, dtype=np.uint16))
        steps, rows_given = self.shell.plan.segment(0).title, f"stage 0, rows {first} to {first + count - 1}"
        with self.shell.watch.calling(f"step {steps}", rows_given):
            outputs = self._steps.process(given, place=INPUT - source)
        for report, _ in self._steps.skipped():
            if report is not None:
                self.shell.report(report)
        return outputs

    def _routed(self, outputs: StepOutputs, punctuations: NumberedWatermarks) -> LaneBody:
        """Return what goes on each edge, of what the steps emitted and the watermarks among it."""
        self._note_watermarks([value for _, value in punctuations])
        among = tuple(Punctuation(sn, "watermark", value) for sn, value in punctuations)
        return route_output(self._edges, outputs, among)

    def _note_watermarks(self, values: Sequence[int]) -> None:
        if values:
            self.shell.meter.watermarks[0] = values[-1]

    def repeat_reports(self) -> None:
        """Report the totals again, to a driver that may not have them."""
        self._reports.send_again()


def _digest(body: LaneBody) -> int:
    """Return a checksum of the rows' partitions: those are computed already, so it costs next to nothing."""
    digest = 0
    for rows in rows_of_edges(body):
        if len(rows):
            digest = zlib.crc32(rows.hidden(PARTITION), digest)
    return digest
