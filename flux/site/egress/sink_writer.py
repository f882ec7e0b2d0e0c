"""Sink writer: one sink at the egress, what it is given and its position.

Rows of a `Collect` are held by the driver: they are durable when it acknowledges them. Other sinks live in the egress,
and the position of each is in a journal of its own.

An ordered sink is given ranges of sequence numbers. An unordered one is given rows as they arrive: its positions count
what it was given, and the position of the dataflow is noted with them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from ...exchange.rows import Rows
from ...model.error_location import end_error
from ...model.plain_calls import check_result
from ...protocols.egress import ONLY, Egress
from ...protocols.messages import Consume, Consumed
from ...sinks import Collect, Sink
from ...sinks.sink import check_alike
from ...system import filesystem
from ...types.errors import RAISED, FluxError, SinkError
from ...wire.reports import Reached, RowsWritten
from .sink_journal import SinkJournal

JOURNAL = "egress.journal"


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkWork:
    """What a sink is to take, in its own positions, and the position that the dataflow has `reached` with it."""

    after: int
    upto: int
    rows: Rows
    end: bool
    reached: Reached


class SinkWriter:
    """Sink number `number` of the flow, which is the stage `stage`; it may write to `directory`."""

    def __init__(self, number: int, stage: int, sink: Sink, directory: Path) -> None:
        self.number = number
        self.stage = stage
        self.sink = sink
        self.collects = isinstance(sink, Collect)
        self.unusable: Exception | None = None
        self.progress: SinkJournal | None = None
        self._directory = directory
        self._upto = 0
        self._reached: Reached = (0, ())
        self._given: SinkWork | None = None
        self._in_use = threading.Lock()
        self._schema: pa.Schema | None = None
        self._edition = 0  # Of the code before the sink.
        self._journal: SinkJournal | None = None
        if not self.collects:
            try:
                filesystem.make_directory(self._directory, 0o700)
                self._journal = SinkJournal(self._directory / JOURNAL)
            except Exception as error:
                self.unusable = error  # Reported when there is a connection to report it on.

    def open(self) -> None:
        """Open the sink, and resume after what it has; an error is reported later, too."""
        if (progress := self._journal) is None:
            return
        try:
            with self._blaming("was opened"):
                progress.resume(self.sink.open(self._directory))
        except Exception as error:
            self.unusable = error
            return
        self.progress = progress
        self.resume(progress.reached, progress.upto)

    def resume(self, reached: Reached, upto: int) -> None:
        """Begin after `upto`, a position of the sink, at which the dataflow had `reached` its own."""
        self._upto = upto
        self._reached = reached

    def machine(self, node: str) -> Egress:
        """Return the machine of an egress that begins after what the sink has."""
        return Egress(node, self.stage, *self._reached)

    @property
    def last_report(self) -> RowsWritten:
        """The report of what the sink took last."""
        assert self.progress is not None
        work = SinkWork(
            after=self._upto, upto=self._upto, rows=Rows(None), end=self.progress.ended, reached=self.progress.reached
        )
        return self.report(work)

    def work(self, job: Consume, rows: Rows) -> SinkWork:
        """Return what the machine wants consumed, as work for the sink."""
        if job.edition != self._edition:
            self._edition, self._schema = (
                job.edition,
                None,
            )  # The change was refused if the sink takes no other columns.
        after, upto = (job.after, job.upto) if job.ordered else (self._upto, self._upto + 1)
        end = any(mark.kind == "end" for mark in rows.punctuations)
        self._given = SinkWork(after=after, upto=upto, rows=rows, end=end, reached=(job.upto, job.ahead))
        return self._given

    def write(self, work: SinkWork) -> None:
        """Give the sink its work; on return it is durable."""
        assert self.progress is not None
        with self._in_use:
            self.progress.give(work.upto, len(work.rows), work.end, work.reached)
            if len(work.rows):
                rows = self._alike(work.rows.user)
                doing = f"took the output of the input {self._reached[0] + 1:,} to {work.reached[0]:,}"
                with self._blaming(doing):
                    write: Callable[..., object] = self.sink.write
                    check_result(write(rows, work.after, work.upto))
            if work.end:
                self.close()
            self.progress.take()

    def _alike(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows in the schema of all that this egress has written; raise if they have another."""
        self._schema = check_alike(self._schema, rows.schema)
        return rows if rows.schema == self._schema else rows.cast(self._schema)

    def finish(self, upto: int) -> Consumed | None:
        """Return the message for the machine when all up to `upto` is durable; None if it does not wait for that."""
        work = self._given
        if work is None or work.upto != upto:
            return None
        self._given = None
        self.resume(work.reached, upto)
        return Consumed(stage=self.stage, cohort=ONLY, upto=work.reached[0], rows=0, body=None)

    def flush(self) -> None:
        """Let readers see what was written."""
        with self._in_use, self._blaming("was flushed"):
            self.sink.flush()

    def close(self) -> None:
        """Let the sink finish: the stream has ended."""
        with self._blaming("was closed"):
            self.sink.close()

    def report(self, work: SinkWork) -> RowsWritten:
        """Return the report of work that is done; rows that the driver collects go with it."""
        position, ahead = work.reached
        return RowsWritten(
            sink=self.number,
            after=work.after,
            upto=work.upto,
            rows=len(work.rows),
            end=work.end,
            position=position,
            ahead=ahead,
            # Of all egresses of the run: it includes what the last one had not reported.
            total=None if self.progress is None else self.progress.rows,
        )

    @contextmanager
    def _blaming(self, doing: str) -> Iterator[None]:
        try:
            yield
        except FluxError:
            raise  # It says what to do already.
        except RAISED as error:
            advice = "Fix it, and run the flow again; output before that is safe"
            raise end_error(SinkError, f"sink {type(self.sink).__name__}", error, doing, advice) from error
