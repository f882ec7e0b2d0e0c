"""Horizons: which of its rows a join no longer needs, and which rows came late.

Each partition has a *floor*: rows whose `when` is below it are forgotten. It is part of the partition's state, so it is
the same in all copies; and it depends on the input alone, so a row that is below the floor is no partner of a later row
even if it has not been cleared away yet.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from flux.batch import Batch
from flux.event_time import in_unit_of, milliseconds
from flux.operators.joining import Joined
from flux.operators.timed import BEFORE_TIME, Clock
from flux.plan.sides import SIDE
from flux.punctuation import Punctuation

__all__ = ["ByNumber", "ByWatermark", "Horizon", "horizon_of"]

_LEAST = -(2**63)

Ints = npt.NDArray[np.int64]
Pids = npt.NDArray[np.uint16]


def horizon_of(joined: Joined, partitions: int) -> Horizon:
    """The horizon of a join."""
    kind = Horizon if joined.column is not None else ByNumber
    return (ByWatermark if joined.is_event_time else kind)(joined, partitions)


class Horizon:
    """Where nothing says that no further row comes near: rows are kept until the end of the stream."""

    def __init__(self, joined: Joined, partitions: int) -> None:
        self._joined = joined
        column = joined.column
        is_float = column is not None and pa.types.is_floating(joined.sides[0].field(column).type)
        self._least: Any = np.float64(-np.inf) if is_float else np.int64(_LEAST)
        self.floor: npt.NDArray[Any] = np.full(partitions, self._least)

    def floors(self, batch: Batch, marks: Sequence[Punctuation]) -> npt.NDArray[Any] | None:
        """Return the floor that is in force at each row of a batch, with these punctuations among them.

        None where rows near enough to be partners are above the floor anyway.
        """
        return None

    def move(self, when: npt.NDArray[Any], partition: Pids, marks: Sequence[Punctuation]) -> bool:
        """Move the floors to where they are behind rows and punctuations; whether there is anything to forget."""
        return False

    def counts(self, when: npt.NDArray[Any], partition: Pids) -> npt.NDArray[np.bool_]:
        """Which rows are not to be forgotten."""
        return np.asarray(when >= self.floor.take(partition))

    def take_late(self) -> dict[int, int]:
        """How many rows came too late so far, of the partitions of which that is news."""
        return {}

    # Partitions that come and go.

    def get(self, pid: int) -> Any:
        """What is to go along with a partition's rows."""
        return {"floor": self.floor[pid].item()}

    def install(self, pid: int, state: Any) -> None:
        """Take over what `get` returned elsewhere."""
        self.floor[pid] = state["floor"]

    def drop(self, pid: int) -> None:
        """Forget a partition that lives elsewhere now."""
        self.floor[pid] = self._least


class ByNumber(Horizon):
    """Of a join by sequence number: they only grow, so a row far enough behind the last is out of reach."""

    def move(self, when: npt.NDArray[Any], partition: Pids, marks: Sequence[Punctuation]) -> bool:
        np.maximum.at(self.floor, partition, when - self._joined.bound)
        return True


class ByWatermark(Horizon):
    """Of a join by event time: what is below a watermark by more than the bound is forgotten.

    A row below the watermark is late: those that it would have met may be forgotten. It is matched with all that is
    kept, as if it were in time, and counted; so is one whose `event_time` was promised, by `map` or by an operator, and
    is below the watermark. A row without a value in the column has no pair, and is not late.
    """

    def __init__(self, joined: Joined, partitions: int) -> None:
        super().__init__(joined, partitions)
        assert joined.column is not None
        self._column, self._kind = joined.column, joined.sides[0].field(joined.column).type
        self._clock = Clock(partitions)

    def _floor_at(self, watermark: int) -> int:
        return int(max(in_unit_of(self._kind, watermark) - self._joined.bound, _LEAST))

    def floors(self, batch: Batch, marks: Sequence[Punctuation]) -> npt.NDArray[Any] | None:
        watermarks = _watermarks(marks)
        # A row is behind the watermarks whose numbers are below its own.
        begins = [0, *np.searchsorted(batch.sn, [sn for sn, _ in watermarks], side="right").tolist(), len(batch)]
        reached = np.maximum.accumulate([BEFORE_TIME, *(value for _, value in watermarks)]).tolist()
        for (start, stop), watermark in zip(pairwise(begins), reached, strict=True):
            if start < stop:
                self._count_late(batch.slice(start, stop), watermark)
        lowest = np.repeat([_LEAST, *map(self._floor_at, reached[1:])], np.diff(begins))
        return np.asarray(np.maximum(self.floor.take(batch.partition), lowest))

    def _count_late(self, rows: Batch, watermark: int) -> None:
        """Count rows below the watermark that they are behind, in this batch or before."""
        highest = max(int(self._clock.watermark.max()), watermark)
        for side in (0, 1):
            column = rows.column(f"{side}.{self._column}")
            # Looking at the least costs next to nothing, and few rows are late.
            least = pc.min(column)
            if not least.is_valid or milliseconds(pa.array([least], self._kind))[0][0] >= highest:
                continue
            instants, missing = milliseconds(column)
            late = instants < np.maximum(self._clock.watermark.take(rows.partition), watermark)
            late &= rows[SIDE] == side
            if missing is not None:
                late &= ~missing
            self._clock.count_late(rows.partition.compress(late))

    def move(self, when: npt.NDArray[Any], partition: Pids, marks: Sequence[Punctuation]) -> bool:
        for mark in marks:
            if mark.kind == "watermark" and mark.value is not None:
                self._clock.advance(mark)
                held: Any = slice(None) if mark.partitions is None else sorted(mark.partitions)
                self.floor[held] = np.maximum(self.floor[held], self._floor_at(mark.value))
        return bool(_watermarks(marks))

    def take_late(self) -> dict[int, int]:
        return self._clock.take_late()

    def get(self, pid: int) -> Any:
        return super().get(pid) | {"clock": self._clock.get(pid)}

    def install(self, pid: int, state: Any) -> None:
        super().install(pid, state)
        self._clock.install(pid, state["clock"])

    def drop(self, pid: int) -> None:
        super().drop(pid)
        self._clock.drop(pid)


def _watermarks(marks: Sequence[Punctuation]) -> list[tuple[int, int]]:
    """The numbers and values of the watermarks among punctuations; nothing comes behind the end."""
    return [(mark.sn, mark.value) for mark in marks if mark.kind == "watermark" and mark.value is not None]
