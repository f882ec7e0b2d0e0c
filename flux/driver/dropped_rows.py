"""Dropped rows: the rows of a run that are not in its output because the user chose so: skipped, shed and late ones.

Each copy reports the rows that it skips and those that are late; they are counted once. A step drops the same number of
rows of a partition in all copies, so the highest number reported is how many there are. The ingress has no copy, but
may be started again: there the sequence numbers say which rows were counted.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from ..wire.reports import RowsLate, RowsShed, RowsSkipped
from .report import SkippedRow

ROWS_MAX = 100  # Rows that are shown with their content; the others are counted.

Step = tuple[int, int]  # Its stage, and its number there.


class DroppedRows:
    """What was reported until now."""

    def __init__(self) -> None:
        self.rows: list[SkippedRow] = []
        self.shed = 0
        self._shown: set[tuple[Step, int, int]] = set()
        self._totals: dict[tuple[Step, int], int] = {}  # By step and partition.
        self._counted_upto: dict[Step, int] = {}  # Of steps in the ingress: the last number that was skipped.
        self._late: dict[tuple[Step, int], int] = {}

    @property
    def skipped(self) -> int:
        """How many rows the operators refused."""
        return sum(self._totals.values())

    @property
    def late(self) -> int:
        """How many rows arrived when the watermark had passed their time."""
        return sum(self._late.values())

    def skipped_counts(self) -> list[tuple[Step, int, int]]:
        """Return step, partition and count of the rows that were refused."""
        return [(step, partition, count) for (step, partition), count in sorted(self._totals.items())]

    def late_counts(self) -> list[tuple[Step, int, int]]:
        """Return step, partition and count of the late rows."""
        return [(step, partition, count) for (step, partition), count in sorted(self._late.items())]

    def restore(self, skipped: Iterable[Sequence[Any]], late: Iterable[Sequence[Any]], upto: Iterable[Any]) -> None:
        """Set what an earlier driver has counted, and up to which numbers it has counted steps in the ingress."""
        self._totals = {((stage, number), partition): count for (stage, number), partition, count in skipped}
        self._late = {((stage, number), partition): count for (stage, number), partition, count in late}
        self._counted_upto = {(stage, number): last for (stage, number), last in upto}

    @property
    def counted_upto(self) -> dict[Step, int]:
        """The last number that each step in the ingress has skipped."""
        return self._counted_upto

    def apply(self, report: RowsSkipped | RowsShed | RowsLate) -> list[str]:
        """Count what a process reports; return lines for the log."""
        match report:
            case RowsLate():
                return self._apply_late(report)
            case RowsShed():
                return self._apply_shed(report)
            case RowsSkipped():
                return self._apply_skipped(report)

    def _apply_late(self, report: RowsLate) -> list[str]:
        is_first = not self._late
        for partition, total in report.totals:
            place = (report.stage, report.number), partition
            self._late[place] = max(total, self._late.get(place, 0))
        if not is_first:
            return []
        return [
            f"rows arrive at step {report.step!r} when the watermark has passed their time: the report counts them. "
            "To wait for them, give event_time a greater lateness_ms; to have them, take late() of the step's stream"
        ]

    def _apply_skipped(self, report: RowsSkipped) -> list[str]:
        step, texts = (report.stage, report.number), []
        counted_upto = self._counted_upto.get(step, 0)
        if report.numbers is not None:
            self._count_once(step, report.numbers)
        else:
            for partition, total in report.totals:
                self._totals[step, partition] = max(total, self._totals.get((step, partition), 0))
        for row in report.rows:
            place = (step, row.partition, row.nth)
            if place in self._shown or row.sn <= counted_upto or len(self.rows) == ROWS_MAX:
                continue
            if report.numbers is None:
                self._shown.add(place)
            self.rows.append(SkippedRow(report.step, row.partition, row.sn, row.values, row.error))
            texts.append(
                f"step {report.step!r}, partition {row.partition} skipped row {row.sn}, {row.values}: {row.error}"
            )
            if len(self.rows) == ROWS_MAX:
                texts.append(f"{ROWS_MAX} skipped rows were shown; further ones are only counted")
        return texts

    def _count_once(self, step: Step, numbers: tuple[int, ...]) -> None:
        """Count rows that the ingress skipped. It takes them in order, and after a restart some of them again."""
        upto = self._counted_upto.get(step, 0)
        self._totals[step, 0] = self._totals.get((step, 0), 0) + sum(number > upto for number in numbers)
        self._counted_upto[step] = max([upto, *numbers])

    def _apply_shed(self, report: RowsShed) -> list[str]:
        is_first = not self.shed
        self.shed = max(self.shed, report.total)
        if not is_first:
            return []
        return [
            "rows arrive faster than they are processed, and are shed: the report counts them. Give more sites, or let "
            'the source wait with on_overload="wait"'
        ]
