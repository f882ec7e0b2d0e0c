"""The ingress process: it takes rows from the source, numbers them as its machine says, partitions them.

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
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Any

import msgpack
import numpy as np
import pyarrow as pa
import trio

from ..errors import FluxError, blamed
from ..hashing import partition_of
from ..plan.plan import INGRESS
from ..protocols.ingress import Ingress
from ..protocols.messages import Effect, Pull, Released, Sourced, SourceEnded
from ..protocols.node import Node
from ..punctuation import Punctuation
from ..sources import Source, SourceBatch, SourceContext
from ..wire.rows import PARTITION, Rows
from .admission import Admission
from .gathering import Gathering
from .numbering import Numbering, Replay, Span
from .shell import Shell
from .surroundings import Surroundings
from .taking import Taking

JOURNAL = "numbering.journal"
_REPORT_EVERY_S = 0.05
_PATIENCE_S = 0.05  # So long the first rows for which there is no room wait for it, before they are shed.


class IngressProcess(Shell):
    """The process in front of the dataflow; the `incarnation`-th that is."""

    def __init__(self, surroundings: Surroundings, source: Source, incarnation: int = 1) -> None:
        self._unusable: FluxError | None = None
        self._numbering: Numbering | None = None
        try:
            self._numbering = Numbering.open(surroundings.directory / JOURNAL)
        except FluxError as error:
            self._unusable = error  # Told when there is a connection to tell it on.
        released = 0 if self._numbering is None else self._numbering.released
        name = INGRESS if incarnation == 1 else f"{INGRESS}.{incarnation}"
        self._machine = Ingress(name, surroundings.plan.pool_rows, released)
        super().__init__(surroundings, Node(name, [self._machine], incarnation))
        self._source = source
        self._incarnation = incarnation
        self._pulls, self._pulled = trio.open_memory_channel[int](1)
        self._received: deque[tuple[int, Callable[[], None]]] = deque()
        self._numbered: list[tuple[float, int, int]] = []  # (when, upto, rows), for the report.
        self._reported_at = 0.0
        self._sheds = surroundings.plan.policy.on_overload == "shed"
        self._overloaded = False
        self._shed_told = 0
        # Where the source stands: an offset that it gave, and a number of rows behind it.
        self._offset: tuple[Any, int] = (None, 0)
        self._admission: Admission | None = None
        if (limit_ms := surroundings.plan.policy.max_latency_ms) is not None:
            self._admission = Admission(limit_ms / 1000, surroundings.plan.pool_rows, released)
        self._came_out = trio.Event()

    def start(self, nursery: trio.Nursery) -> None:
        if self._numbering is None:
            assert self._unusable is not None
            raise self._unusable
        nursery.start_soon(self._pump, self._numbering)

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
        if self.program.broken:
            self._come_out(upto)  # Nobody tells how far the output is: rows flow on without.

    def _tell_received(self, upto: int) -> None:
        while self._received and self._received[0][0] <= upto:
            self._received.popleft()[1]()

    async def _pump(self, numbering: Numbering) -> None:
        try:
            if numbering.replay.offset is not None:
                self._offset = tuple(numbering.replay.offset)
            async with contextlib.aclosing(Taking(self._gathered(self._batches()))) as taking:
                await self._give_again(numbering.replay, taking)
                if not numbering.ended:
                    await self._number_on(numbering, taking)
            await self._pulled.receive()
            self.tell(SourceEnded())
            self._report()
        except Exception as error:
            doing = f"was read behind row {numbering.upto:,}"
            self.fail(blamed(f"source {type(self._source).__name__}", error, doing, "Mend it, and run the flow again"))

    def _gathered(self, batches: AsyncIterator[SourceBatch]) -> AsyncIterator[SourceBatch]:
        if self._admission is None:
            return batches
        gathering = Gathering(batches, self._admission)
        self._nursery.start_soon(gathering.read)
        return gathering

    def _batches(self) -> AsyncIterator[SourceBatch]:
        """The source from where it is to go on."""
        who = type(self._source).__name__
        if self._incarnation > 1 and self._source.replays is None:
            raise FluxError(
                f"the ingress died, and source {who} does not say how another one is to go on: whether `batches` can "
                "begin behind an offset (replays = True) or gives only what is new (replays = False)"
            )
        context = SourceContext(self.surroundings.directory)
        offset, _ = self._offset
        if self._source.replays and offset is not None:
            return self._source.batches(context, offset)
        return self._source.batches(context)

    async def _give_again(self, replay: Replay, taking: Taking) -> None:
        """What the last ingress numbered and not every copy is known to have: the same rows, the same numbers."""
        if self._source.replays:
            _, behind = self._offset
            skip_rows = behind + replay.skip_rows
            skipped = await taking.take(skip_rows)
            self._expect(sum(piece.rows.num_rows for piece in skipped), skip_rows, "rows that were received")
            for piece in skipped:
                if piece.received is not None:
                    piece.received()
        for span in replay.spans:
            if span.shed:
                await self._shed_again(span, taking)
                continue
            after = await self._pulled.receive()
            assert after == span.after, f"{self.name} is asked for what is behind {after}, not {span.after}"
            if span.mark is not None:
                self._tell_mark(span.upto, span.mark, span.value)
            else:
                rows = span.kept_rows() if span.kept is not None else await self._taken_again(span, taking)
                self._tell_rows(span.upto, self._partitioned(rows, span.upto, expected=span.digest), span.when)

    async def _shed_again(self, span: Span, taking: Taking) -> None:
        """A source that cannot replay does not give again what was shed; from another it is taken, and left out."""
        if self._source.replays:
            pieces = await taking.take(span.shed)
            self._expect(sum(piece.rows.num_rows for piece in pieces), span.shed, "rows that were shed")
            for piece in pieces:
                self._note_received(span.upto, piece)

    def _note_received(self, upto: int, batch: SourceBatch) -> None:
        """Tell the source when the copies have what is up to `upto`; they may have said so already."""
        assert self._numbering is not None
        if batch.received is not None:
            self._received.append((upto, batch.received))
            self._tell_received(self._numbering.released)

    async def _taken_again(self, span: Span, taking: Taking) -> pa.RecordBatch:
        pieces = await taking.take(span.upto - span.after)
        position = span.after
        for piece in pieces:
            position += piece.rows.num_rows
            self._note_received(position, piece)
        self._expect(position - span.after, span.upto - span.after, f"rows {span.after + 1:,} to {span.upto:,}")
        return pa.concat_batches([piece.rows for piece in pieces])

    def _expect(self, came: int, expected: int, which: str) -> None:
        if came != expected:
            raise FluxError(
                f"the ingress was started again, and source {type(self._source).__name__} gave only {came:,} of the "
                f"{expected:,} rows that it had given before ({which}). What it reads was cut or replaced meanwhile; "
                "it must be the same when it is read again. Run the flow anew"
            )

    async def _number_on(self, numbering: Numbering, taking: Taking) -> None:
        if numbering.offset is not None:
            self._offset = tuple(numbering.offset)
        while (batch := await taking.next(self._piece_rows)) is not None:
            count = batch.rows.num_rows
            if not count:
                await self._number_marks(numbering, batch)
                continue
            if self._source.replays and batch.offset is None and not taking.is_within_batch:
                raise FluxError(
                    f"source {type(self._source).__name__} says that it replays, and gave a batch without an offset; "
                    "give SourceBatch(rows, offset=...), or say replays = False"
                )
            offset, behind = self._offset
            self._offset = (offset, behind + count) if taking.is_within_batch else (batch.offset, 0)
            after = await self._room()
            if after is None:
                self._shed(numbering, batch)
                continue
            upto = after + count
            rows, when = self._partitioned(batch.rows, upto), time.monotonic()
            kept = batch.rows if self._source.replays is False else None
            numbering.number(upto, self._offset, when=when, digest=_digest(rows), kept=kept)
            if batch.received is not None:
                self._received.append((upto, batch.received))
            self._tell_rows(upto, rows, when)
        await self._pulled.receive()
        self._report()
        self._tell_mark(numbering.mark("end", when=time.monotonic()), "end")

    async def _number_marks(self, numbering: Numbering, batch: SourceBatch) -> None:
        """Give each punctuation of the source its number; of those that have theirs from the last ingress, none."""
        offset, behind = self._offset
        if behind == 0 and batch.offset is not None and msgpack.packb(batch.offset) == msgpack.packb(offset):
            batch = replace(batch, marks=())
        for nth, (kind, value) in enumerate(batch.marks, start=1):
            await self._pulled.receive()
            if nth == len(batch.marks) and batch.offset is not None:
                self._offset = (batch.offset, 0)
            sn = numbering.mark(kind, value, when=time.monotonic(), offset=self._offset)
            self._tell_mark(sn, kind, value)
        self._note_received(numbering.upto, batch)

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

    def _shed(self, numbering: Numbering, batch: SourceBatch) -> None:
        numbering.leave_out(batch.rows.num_rows, self._offset, when=time.monotonic())
        self._note_received(numbering.upto, batch)
        self._report_if_due()

    def _tell_mark(self, sn: int, kind: str, value: int | None = None) -> None:
        self.tell(Sourced(after=sn - 1, upto=sn, rows=0, body=Rows(None, (Punctuation(sn, kind, value),))))

    def _tell_rows(self, upto: int, rows: Rows, when: float) -> None:
        self._numbered.append((when, upto, len(rows)))
        self._report_if_due()
        if self._admission is not None:
            self._admission.let_in(upto, time.monotonic())
        self.tell(Sourced(after=upto - len(rows), upto=upto, rows=len(rows), body=rows))

    def _partitioned(self, batch: pa.RecordBatch, upto: int, expected: int | None = None) -> Rows:
        """The batch's rows with the numbers up to `upto`; if they were given before, they must look the same."""
        count = batch.num_rows
        first = self.plan.segments[0]
        columns = [batch.column(name) for name in first.columns]
        rows = Rows.of(
            batch,
            np.arange(upto - count + 1, upto + 1, dtype=np.int64),
            None,
            np.zeros(count, dtype=np.uint16),
            partition_of(columns, first.partitions),
        )
        if expected is not None and _digest(rows) != expected:
            raise FluxError(
                f"the ingress was started again, and source {type(self._source).__name__} gave other rows than before "
                f"for the numbers {upto - count + 1:,} to {upto:,}. What it reads was changed meanwhile, or is made "
                "anew each time; it must be the same when it is read again. Run the flow anew"
            )
        return rows

    def _report_if_due(self) -> None:
        if time.monotonic() > self._reported_at + _REPORT_EVERY_S:
            self._report()

    def _report(self) -> None:
        self._reported_at = time.monotonic()
        if self._numbering is not None and self._numbering.shed > self._shed_told:
            self._shed_told = self._numbering.shed
            self.program.send({"kind": "shed", "total": self._shed_told})
        if self._numbered:
            self.program.send({"kind": "inputs", "log": self._numbered})
            self._numbered = []


def _digest(rows: Rows) -> int:
    """Tells rows from others as far as their partitions differ: those are at hand, so it costs next to nothing."""
    return zlib.crc32(rows.hidden(PARTITION))
