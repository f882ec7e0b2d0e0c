"""Left out: the rows of a run that are not in its output because the user chose so: skipped, shed and late ones.

Each copy tells of the rows it skips, and of those that came too late; they are counted once. How many rows of a
partition a step has left out is the same in all copies, so the highest number that was heard is how many there are.
"""

from __future__ import annotations

from typing import Any

from ..report import SkippedRow

ROWS_MAX = 100  # Rows that are shown with their content; the others are counted.


class LeftOut:
    """What was heard so far."""

    def __init__(self) -> None:
        self.rows: list[SkippedRow] = []
        self.shed = 0
        self._shown: set[tuple[int, int, int]] = set()
        self._totals: dict[tuple[int, int], int] = {}  # By the step's level, and partition.
        self._late: dict[tuple[int, int], int] = {}

    @property
    def skipped(self) -> int:
        """How many rows the operators refused."""
        return sum(self._totals.values())

    @property
    def late(self) -> int:
        """How many rows came when their time had passed."""
        return sum(self._late.values())

    def hear(self, header: dict[str, Any]) -> list[str]:
        """A process tells of rows; return what the log is to say."""
        if header["kind"] == "late":
            return self._hear_late(header)
        return self._hear_shed(header) if header["kind"] == "shed" else self._hear_skipped(header)

    def _hear_late(self, header: dict[str, Any]) -> list[str]:
        is_first = not self._late
        for partition, total in header["totals"]:
            place = (header["level"], partition)
            self._late[place] = max(total, self._late.get(place, 0))
        if not is_first:
            return []
        return [
            f"step {header['step']!r} drops rows that come when the watermark has passed their time: the report counts "
            "them. If they are to be waited for, give flow.source(...) a greater lateness_ms"
        ]

    def _hear_skipped(self, header: dict[str, Any]) -> list[str]:
        level, step, texts = header["level"], header["step"], []
        for partition, total in header["totals"]:
            place = (level, partition)
            self._totals[place] = max(total, self._totals.get(place, 0))
        for partition, nth, sn, values, error in header["rows"]:
            if (level, partition, nth) in self._shown or len(self.rows) == ROWS_MAX:
                continue
            self._shown.add((level, partition, nth))
            self.rows.append(SkippedRow(step=step, partition=partition, row=sn, values=values, error=error))
            texts.append(f"step {step!r}, partition {partition} skipped row {sn}, {values}: {error}")
            if len(self.rows) == ROWS_MAX:
                texts.append(f"{ROWS_MAX} skipped rows were shown; further ones are only counted")
        return texts

    def _hear_shed(self, header: dict[str, Any]) -> list[str]:
        first = not self.shed
        self.shed = max(self.shed, header["total"])
        if not first:
            return []
        return [
            "rows come faster than they are processed, and are shed: the report counts them. Give more sites, or let "
            'the source wait with on_overload="wait"'
        ]
