"""Input reports: what the ingress reports of the rows it has numbered, shed and skipped; not more often than needed."""

from __future__ import annotations

import time
from collections.abc import Callable

import trio

from ...wire.reports import Report, RowsNumbered, RowsShed, RowsSkipped, SkippedContent
from ..row_skipper import SHOWN_MAX, VALUES_MAX_CHARS
from .sequence_journal import SequenceJournal
from .source_input import SourceInput

_REPORT_INTERVAL_S = 0.05


class InputReports:
    """The reports of one ingress; totals are those of its `journal`, which has them of all ingresses of the run."""

    def __init__(self, journal: SequenceJournal | None, send: Callable[[Report], None]) -> None:
        self._journal = journal
        self._send = send
        self._numbered: list[tuple[float, int, int]] = []  # (when, upto, rows) since the last report.
        self._sent_at = 0.0
        self._shed_sent = 0
        self._upto_sent = 0

    def note_numbered(self, when: float, upto: int, rows: int) -> None:
        """Note that rows were numbered; without rows it is a punctuation, of which rows may stem too."""
        self._numbered.append((when, upto, rows))
        self.send_if_due()

    def send_skipped(self, source_input: SourceInput, nth: int, place: int, content: str, error: str) -> None:
        """Report a record that a source cannot read; the first ones with their content."""
        shown = SkippedContent(partition=0, nth=nth, sn=place, values=content[:VALUES_MAX_CHARS], error=error)
        self._send(
            RowsSkipped(
                step=f"source {source_input.name}",
                stage=0,
                number=-1 - source_input.number,  # Steps have numbers from 0 on.
                totals=((0, nth),),
                rows=(shown,) if nth <= SHOWN_MAX else (),
            )
        )

    def send_again(self) -> None:
        """Report the totals again, to a driver that may not have them."""
        self._shed_sent = self._upto_sent = 0
        self.send()

    async def send_regularly(self) -> None:
        """Report also the last rows before a source fell silent; without any, the next row is reported at once."""
        while True:
            await trio.sleep(_REPORT_INTERVAL_S)
            if self._numbered or self._shed > self._shed_sent:
                self.send_if_due()

    def send_if_due(self) -> None:
        """Report what is new, unless a report was sent a moment ago."""
        if time.monotonic() > self._sent_at + _REPORT_INTERVAL_S:
            self.send()

    def send(self) -> None:
        """Report what is new."""
        self._sent_at = time.monotonic()
        if self._shed > self._shed_sent:
            self._shed_sent = self._shed
            self._send(RowsShed(total=self._shed))
        rows, upto = (0, 0) if self._journal is None else (self._journal.rows, self._journal.upto)
        if self._numbered or upto > self._upto_sent:
            self._send(RowsNumbered(log=tuple(self._numbered), total=rows, upto=upto))
            self._numbered, self._upto_sent = [], upto

    @property
    def _shed(self) -> int:
        return 0 if self._journal is None else self._journal.shed
