"""Horizons: which of its rows a join no longer needs, and which rows came late.

Each partition has a *floor*: rows whose `when` is below it are forgotten. It is a matter of the input alone, so it is
the same in all copies: a row below the floor is no partner of a later row, even if it has not been cleared away yet.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ..model.event_time import in_unit_of
from ..model.punctuation import Punctuation
from ..types.array_types import Int64s, Pids
from .event_time_state import BEFORE_TIME, EventClock
from .join_spec import Joined

__all__ = ["NOTHING", "Arrived", "Horizon", "horizon_of"]

_LEAST, _MOST = -(2**63), 2**63 - 1


@dataclass(frozen=True)
class Arrived:
    """Rows that have come: `when` and `partition` of each, and its `place` in a batch with these sequence numbers."""

    when: npt.NDArray[Any]
    partition: Pids
    place: Int64s
    sn: Int64s

    def where(self, mask: npt.NDArray[np.bool_]) -> Arrived:
        """Those for which it holds."""
        return Arrived(self.when[mask], self.partition[mask], self.place[mask], self.sn)


NOTHING = Arrived(np.zeros(0, np.int64), np.zeros(0, np.uint16), np.zeros(0, np.int64), np.zeros(0, np.int64))


def horizon_of(joined: Joined, partitions: int) -> Horizon:
    """The horizon of a join."""
    if joined.column is None:
        return _ByNumber(joined, partitions)
    return (_ByWatermark if joined.is_event_time else Horizon)(joined, partitions)


class Horizon:
    """Where nothing says that no further row comes near: rows are kept until the end of the stream."""

    def __init__(self, joined: Joined, partitions: int) -> None:
        self._joined = joined
        column = joined.column
        is_float = column is not None and pa.types.is_floating(joined.sides[0].field(column).type)
        self._least: Any = np.float64(-np.inf) if is_float else np.int64(_LEAST)
        self.floor: npt.NDArray[Any] = np.full(partitions, self._least)

    def move(self, came: Arrived, punctuations: Sequence[Punctuation]) -> npt.NDArray[Any] | None:
        """Move the floors behind rows, and punctuations among them; return what they were at each row.

        None where rows that are near enough to be partners are above the floor anyway.
        """
        return None

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


class _ByNumber(Horizon):
    """Of a join by sequence number: they only grow, so a row far enough behind the last is out of reach."""

    def move(self, came: Arrived, punctuations: Sequence[Punctuation]) -> None:
        np.maximum.at(self.floor, came.partition, came.when - self._joined.bound)


class _ByWatermark(Horizon):
    """Of a join by event time: what is below a watermark by more than the bound is forgotten.

    A row below the watermark is late: those that it would have met may be forgotten. It is matched with all that is
    kept, as if it were in time, and counted; so is one whose `event_time` was promised, by `map` or by an operator, and
    is below the watermark. A row without a time has no pair, and is not late.
    """

    def __init__(self, joined: Joined, partitions: int) -> None:
        super().__init__(joined, partitions)
        self._clock = EventClock(partitions)

    def move(self, came: Arrived, punctuations: Sequence[Punctuation]) -> npt.NDArray[Any]:
        watermarks = [
            (mark.sn, mark.value) for mark in punctuations if mark.kind == "watermark" and mark.value is not None
        ]
        # A row is behind the watermarks whose numbers are below its own: so many, and so far have these come.
        cuts = np.searchsorted(came.sn, [sn for sn, _ in watermarks], side="right")
        sizes = np.diff(cuts, prepend=0, append=len(came.sn))
        behind = np.repeat(np.arange(len(sizes)), sizes).take(came.place)
        reached = np.maximum.accumulate([BEFORE_TIME, *(value for _, value in watermarks)])
        self._count_late(came, behind, reached)
        floors = np.maximum(self.floor.take(came.partition), self._floor_at(reached).take(behind))
        for mark in punctuations:
            if mark.kind == "watermark":
                self._clock.advance(mark)
        if watermarks:
            self.floor = self._floor_at(self._clock.watermark)
        return np.asarray(floors)

    def _count_late(self, came: Arrived, behind: Int64s, reached: Int64s) -> None:
        """Count the rows below the watermark of their partition, or below what those of the batch had reached."""
        highest = np.maximum(reached, self._clock.watermark.max())
        late = np.flatnonzero(came.when < self._in_time_from(highest).take(behind))
        if len(late):
            partition = came.partition.take(late)
            watermark = np.maximum(self._clock.watermark.take(partition), reached.take(behind.take(late)))
            self._clock.count_late(partition.compress(came.when.take(late) < self._in_time_from(watermark)))

    def _floor_at(self, watermarks: Int64s) -> Int64s:
        return _each(watermarks, lambda value: self._in_unit(value) - self._joined.bound)

    def _in_time_from(self, watermarks: Int64s) -> Int64s:
        """The first values that are not late; what counts coarser than milliseconds is rounded up."""
        return _each(watermarks, lambda value: max(self._in_unit(value), self._in_unit(value - 1) + 1))

    def _in_unit(self, instant: int) -> int:
        assert self._joined.column is not None
        return in_unit_of(self._joined.sides[0].field(self._joined.column).type, instant)

    def take_late(self) -> dict[int, int]:
        return self._clock.take_late()

    def get(self, pid: int) -> Any:
        return self._clock.get(pid)

    def install(self, pid: int, state: Any) -> None:
        self._clock.install(pid, state)
        self.floor = self._floor_at(self._clock.watermark)

    def drop(self, pid: int) -> None:
        super().drop(pid)
        self._clock.drop(pid)


def _each(watermarks: Int64s, made: Callable[[int], int]) -> Int64s:
    """What is made of watermarks, of which few differ, as far as 64 bits can say it; of none, the least there is."""
    values = watermarks.tolist()
    found = {BEFORE_TIME: _LEAST}
    found |= {value: min(max(made(value), _LEAST), _MOST) for value in set(values) - {BEFORE_TIME}}
    return np.array([found[value] for value in values], np.int64)
