"""Left out: the rows of a run that are not in its output because the user chose so: skipped, shed and late ones.

Each copy tells of the rows it skips, and of those that came too late; they are counted once. How many rows of a
partition a step has left out is the same in all copies, so the highest number that was heard is how many there are. The
ingress has no copy, but may be started again: there the sequence numbers tell which rows were counted.
"""

from __future__ import annotations

from typing import Any

from .report import SkippedRow

ROWS_MAX = 100  # Rows that are shown with their content; the others are counted.


class DroppedRows:
    """What was heard so far."""

    def __init__(self) -> None:
        self.rows: list[SkippedRow] = []
        self.shed = 0
        self._shown: set[tuple[Any, ...]] = set()
        self._totals: dict[tuple[Any, ...], int] = {}  # By the step's stage and number there, and partition.
        self._told_upto: dict[tuple[Any, ...], int] = {}  # Of steps in the ingress: the last number that was skipped.
        self._late: dict[tuple[Any, ...], int] = {}

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
            place = (*header["place"], partition)
            self._late[place] = max(total, self._late.get(place, 0))
        if not is_first:
            return []
        return [
            f"rows come to step {header['step']!r} when the watermark has passed their time: the report counts them. "
            "If they are to be waited for, give flow.source(...) a greater lateness_ms"
        ]

    def _hear_skipped(self, header: dict[str, Any]) -> list[str]:
        where, step, texts = tuple(header["place"]), header["step"], []
        told_upto = self._told_upto.get(where, 0)
        if "numbers" in header:
            self._count_once(where, header["numbers"])
        else:
            for partition, total in header["totals"]:
                place = (*where, partition)
                self._totals[place] = max(total, self._totals.get(place, 0))
        for partition, nth, sn, values, error in header["rows"]:
            if (*where, partition, nth) in self._shown or sn <= told_upto or len(self.rows) == ROWS_MAX:
                continue
            if "numbers" not in header:
                self._shown.add((*where, partition, nth))
            self.rows.append(SkippedRow(step=step, partition=partition, row=sn, values=values, error=error))
            texts.append(f"step {step!r}, partition {partition} skipped row {sn}, {values}: {error}")
            if len(self.rows) == ROWS_MAX:
                texts.append(f"{ROWS_MAX} skipped rows were shown; further ones are only counted")
        return texts

    def _count_once(self, where: tuple[Any, ...], numbers: list[int]) -> None:
        """An ingress takes rows in the order of their numbers; one that was started again takes some once more."""
        upto = self._told_upto.get(where, 0)
        self._totals[where] = self._totals.get(where, 0) + sum(number > upto for number in numbers)
        self._told_upto[where] = max([upto, *numbers])

    def _hear_shed(self, header: dict[str, Any]) -> list[str]:
        first = not self.shed
        self.shed = max(self.shed, header["total"])
        if not first:
            return []
        return [
            "rows come faster than they are processed, and are shed: the report counts them. Give more sites, or let "
            'the source wait with on_overload="wait"'
        ]
