"""What operators by event time share: how far each partition's time has come, and which rows were too late.

The partitions at hand need not have come equally far, so each has a watermark of its own. It is part of the partition's
state, as is the number of its late rows: both are the same in all copies. The end of the stream is the end of time.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from flux.batch import Batch
from flux.columns import ColumnError
from flux.errors import OperatorError
from flux.event_time import EXPECTED, FARTHEST_MS, is_event_time, milliseconds
from flux.punctuation import Punctuation

__all__ = ["BEFORE_TIME", "END_OF_TIME", "Clock", "check_time_column", "instants_of"]

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

# What is beyond every instant, on both sides; a window's ends can be reckoned from them within 64 bits.
END_OF_TIME = 2 * FARTHEST_MS
BEFORE_TIME = -END_OF_TIME


class Clock:
    """The watermark of each partition, and how many of its rows came too late."""

    def __init__(self, partitions: int) -> None:
        self.watermark: Ints = np.full(partitions, BEFORE_TIME, np.int64)
        self._late: Ints = np.zeros(partitions, np.int64)
        self._news: set[int] = set()

    def advance(self, p: Punctuation) -> bool:
        """Take in a punctuation; whether it has to do with time. Time does not run backwards."""
        if p.kind not in ("watermark", "end"):
            return False
        value = END_OF_TIME if p.kind == "end" else p.value
        assert value is not None, "a watermark has a value"
        where: Any = slice(None) if p.partitions is None else sorted(p.partitions)
        self.watermark[where] = np.maximum(self.watermark[where], value)
        return True

    def count_late(self, partition: npt.NDArray[np.uint16]) -> None:
        """Count a row of each of these partitions as late."""
        if len(partition):
            np.add.at(self._late, partition, 1)
            self._news.update(np.unique(partition).tolist())

    def take_late(self) -> dict[int, int]:
        """How many rows came too late so far, of the partitions of which that is news."""
        news, self._news = self._news, set()
        return {pid: int(self._late[pid]) for pid in sorted(news) if self._late[pid]}

    def get(self, pid: int) -> dict[str, int]:
        """What is to go along with a partition's state."""
        return {"watermark": int(self.watermark[pid]), "late": int(self._late[pid])}

    def install(self, pid: int, state: Mapping[str, int]) -> None:
        """Take over what `get` returned elsewhere."""
        self.watermark[pid], self._late[pid] = state["watermark"], state["late"]
        self._news.add(pid)

    def drop(self, pid: int) -> None:
        """Forget a partition that lives elsewhere now."""
        self.watermark[pid], self._late[pid] = BEFORE_TIME, 0


def check_time_column(name: str, rows: Any) -> None:
    """Raise if rows of this schema have no such column that tells event time."""
    if name not in rows.names:
        raise ColumnError(f"expected a column {name!r} that tells event time, came {', '.join(rows.names)}")
    if not is_event_time(rows.field(name).type):
        raise ColumnError(f"column {name!r} is {rows.field(name).type}; {EXPECTED}")


def instants_of(batch: Batch, name: str, step: str) -> tuple[Ints, Bools | None]:
    """Return the event time of each row in milliseconds, and which have none."""
    try:
        column = batch.column(name)
    except KeyError as error:
        raise OperatorError(str(error.args[0]), step) from None
    if not is_event_time(column.type):
        raise OperatorError(f"column {name!r} is {column.type}; {EXPECTED}", step)
    return milliseconds(column)
