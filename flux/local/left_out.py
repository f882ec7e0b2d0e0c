"""Left out: the rows of a run that are not in its output because the user chose so: skipped ones and shed ones.

Each copy tells of the rows it skips; they are counted once. The rows of a partition that a step skipped have numbers
that are the same in all copies, so the highest that was heard is how many there are.
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
        self._shown: set[tuple[Any, ...]] = set()
        self._totals: dict[tuple[Any, ...], int] = {}  # By the step's stage and number there, and partition.

    @property
    def skipped(self) -> int:
        """How many rows the operators refused."""
        return sum(self._totals.values())

    def hear(self, header: dict[str, Any]) -> list[str]:
        """A process tells of rows; return what the log is to say."""
        return self._hear_shed(header) if header["kind"] == "shed" else self._hear_skipped(header)

    def _hear_skipped(self, header: dict[str, Any]) -> list[str]:
        where, step, texts = tuple(header["place"]), header["step"], []
        for partition, total in header["totals"]:
            place = (*where, partition)
            self._totals[place] = max(total, self._totals.get(place, 0))
        for partition, nth, sn, values, error in header["rows"]:
            if (*where, partition, nth) in self._shown or len(self.rows) == ROWS_MAX:
                continue
            self._shown.add((*where, partition, nth))
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
