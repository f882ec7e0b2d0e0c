"""Retention: which of its rows a join no longer needs, and which rows are late.

Each partition has a *floor*: rows whose `when` is below it are forgotten. The floor depends only on the input, so it is
the same in all copies. A row below the floor is never paired with a later row, even if it has not been removed yet.
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
from .join_spec import JoinSpec

__all__ = ["NO_ROWS", "ArrivedRows", "Horizon", "horizon_of"]

_LEAST, _MOST = -(2**63), 2**63 - 1


@dataclass(frozen=True)
class ArrivedRows:
    """New rows: `when` and `partition` of each, and its `place` in a batch with these sequence numbers."""

    when: npt.NDArray[Any]
    partition: Pids
    place: Int64s
    sn: Int64s

    def where(self, mask: npt.NDArray[np.bool_]) -> ArrivedRows:
        """Return the rows for which the mask holds."""
        return ArrivedRows(self.when[mask], self.partition[mask], self.place[mask], self.sn)


NO_ROWS = ArrivedRows(np.zeros(0, np.int64), np.zeros(0, np.uint16), np.zeros(0, np.int64), np.zeros(0, np.int64))


def horizon_of(spec: JoinSpec, partitions: int) -> Horizon:
    """Return the horizon of a join."""
    if spec.column is None:
        return _SequenceHorizon(spec, partitions)
    return (_WatermarkHorizon if spec.is_event_time else Horizon)(spec, partitions)


class Horizon:
    """The horizon of any other join: rows are kept until the end of the stream, as later rows may still be near."""

    def __init__(self, spec: JoinSpec, partitions: int) -> None:
        self._spec = spec
        column = spec.column
        is_float = column is not None and pa.types.is_floating(spec.sides[0].field(column).type)
        self._least: Any = np.float64(-np.inf) if is_float else np.int64(_LEAST)
        self.floor: npt.NDArray[Any] = np.full(partitions, self._least)

    def advance(self, arrived: ArrivedRows, punctuations: Sequence[Punctuation]) -> npt.NDArray[Any] | None:
        """Advance the floors past rows and the punctuations among them; return the floor at each row.

        Return None if rows that are near enough to be partners are above the floor anyway.
        """
        return None

    def is_live(self, when: npt.NDArray[Any], partition: Pids) -> npt.NDArray[np.bool_]:
        """Return which rows must be kept."""
        return np.asarray(when >= self.floor.take(partition))

    def take_late(self) -> dict[int, int]:
        """Return the late-row counts that changed since the last call."""
        return {}

    # State by partition.

    def get(self, pid: int) -> Any:
        """Return the horizon's part of a partition's state."""
        return {"floor": self.floor[pid].item()}

    def install(self, pid: int, state: Any) -> None:
        """Install what `get` returned on another site."""
        self.floor[pid] = state["floor"]

    def drop(self, pid: int) -> None:
        """Forget a partition that has moved to another site."""
        self.floor[pid] = self._least


class _SequenceHorizon(Horizon):
    """The horizon of a join by sequence number: numbers only grow, so rows far enough before the last are done."""

    def advance(self, arrived: ArrivedRows, punctuations: Sequence[Punctuation]) -> None:
        np.maximum.at(self.floor, arrived.partition, arrived.when - self._spec.bound)


class _WatermarkHorizon(Horizon):
    """The horizon of a join by event time: rows below the watermark by more than the bound are forgotten.

    A row below the watermark is late: its partners may have been forgotten. It is matched with all kept rows, as if it
    were in time, and counted. So is a row whose `event_time` was declared, by `map` or by an operator, and is below the
    watermark. A row without a time has no pair, and is not late.
    """

    def __init__(self, spec: JoinSpec, partitions: int) -> None:
        super().__init__(spec, partitions)
        self._clock = EventClock(partitions)

    def advance(self, arrived: ArrivedRows, punctuations: Sequence[Punctuation]) -> npt.NDArray[Any]:
        watermarks = [
            (mark.sn, mark.value) for mark in punctuations if mark.kind == "watermark" and mark.value is not None
        ]
        # A row is after the watermarks with lower sequence numbers: `passed` is their number, `reached` their maxima.
        cuts = np.searchsorted(arrived.sn, [sn for sn, _ in watermarks], side="right")
        sizes = np.diff(cuts, prepend=0, append=len(arrived.sn))
        passed = np.repeat(np.arange(len(sizes)), sizes).take(arrived.place)
        reached = np.maximum.accumulate([BEFORE_TIME, *(value for _, value in watermarks)])
        self._count_late(arrived, passed, reached)
        floors = np.maximum(self.floor.take(arrived.partition), self._floor_at(reached).take(passed))
        for mark in punctuations:
            if mark.kind == "watermark":
                self._clock.advance(mark)
        if watermarks:
            self.floor = self._floor_at(self._clock.watermark)
        return np.asarray(floors)

    def _count_late(self, arrived: ArrivedRows, passed: Int64s, reached: Int64s) -> None:
        """Count the rows below the watermark of their partition, or below a watermark before them in the batch."""
        highest = np.maximum(reached, self._clock.watermark.max())
        late = np.flatnonzero(arrived.when < self._in_time_from(highest).take(passed))
        if len(late):
            partition = arrived.partition.take(late)
            watermark = np.maximum(self._clock.watermark.take(partition), reached.take(passed.take(late)))
            self._clock.count_late(partition.compress(arrived.when.take(late) < self._in_time_from(watermark)))

    def _floor_at(self, watermarks: Int64s) -> Int64s:
        return _convert(watermarks, lambda value: self._in_unit(value) - self._spec.bound)

    def _in_time_from(self, watermarks: Int64s) -> Int64s:
        """Return the first values that are not late, rounded up in units coarser than milliseconds."""
        return _convert(watermarks, lambda value: max(self._in_unit(value), self._in_unit(value - 1) + 1))

    def _in_unit(self, instant: int) -> int:
        assert self._spec.column is not None
        return in_unit_of(self._spec.sides[0].field(self._spec.column).type, instant)

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


def _convert(watermarks: Int64s, convert: Callable[[int], int]) -> Int64s:
    """Convert watermarks, of which few differ, and clip to 64 bits; no watermark gives the least number."""
    values = watermarks.tolist()
    found = {BEFORE_TIME: _LEAST}
    found |= {value: min(max(convert(value), _LEAST), _MOST) for value in set(values) - {BEFORE_TIME}}
    return np.array([found[value] for value in values], np.int64)
