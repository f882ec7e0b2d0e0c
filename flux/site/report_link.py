"""Report link: how a process reports to the driver of the run, or to the controller that takes its part."""

from __future__ import annotations

import pyarrow as pa

from ..wire.link import Link
from ..wire.reports import Load, Measures, ProcessUp, Report, RowsNumbered, RowsShed, RowsWritten, report_frame

# Each holds totals, so the next one includes what the last reported.
_TOTALS = (RowsWritten, RowsNumbered, RowsShed, Load, Measures)


class ReportLink(Link):
    """A link for reports. Its first frame is `ProcessUp`, because a controller may take the driver's part.

    `again` if it replaces a link that broke: rows flow on without a driver, maybe for hours. Until it is connected,
    totals are not queued; the process repeats the last of them then.
    """

    def __init__(self, *, again: bool = False) -> None:
        super().__init__("program")
        self._drops_totals = again
        self.send_report(ProcessUp())

    def send_report(self, report: Report, rows: pa.RecordBatch | None = None) -> None:
        """Queue a report, with these rows if it carries any."""
        if self.connected or not self._drops_totals or not isinstance(report, _TOTALS):
            if isinstance(report, RowsWritten):
                self.send_batch(report_frame(report), rows)
            else:
                self.send(report_frame(report))
