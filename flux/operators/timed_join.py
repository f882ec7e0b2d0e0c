"""The join by event time: as `Join` says, and rows that come late are counted."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from flux.batch import Batch
from flux.event_time import in_unit_of, milliseconds
from flux.operator import Context
from flux.operators.join import Join
from flux.operators.timed import Clock
from flux.plan.sides import SIDE
from flux.punctuation import Punctuation

__all__ = ["TimedJoin"]

_LEAST = -(2**63)


class TimedJoin(Join):
    """A `Join` within a bound of the column that tells event time.

    A row below the watermark is late: those that it would have met may be forgotten. It is matched with all that is
    kept, as if it were in time, and counted (`report.late`); so is one whose `event_time` was promised, by `map` or by
    an operator, and is below the watermark. A row without a value in the column has no pair, and is not late.
    """

    def open(self, context: Context) -> None:
        super().open(context)
        joined = context.parameters["joined"]
        self._time, self._kind = joined.column, joined.sides[0].field(joined.column).type
        self._clock = Clock(context.partitions)
        self._told = _LEAST  # As the column counts: nothing from here on is late anywhere.

    def process(self, batch: Batch) -> Batch | None:
        for side in (0, 1):
            self._count_late(batch, f"{side}.{self._time}", side)
        return super().process(batch)

    def _count_late(self, batch: Batch, name: str, side: int) -> None:
        column = batch.column(name)
        least = pc.min(column)
        # Looking at the least costs next to nothing, and few rows are late.
        if not least.is_valid or (least.value if pa.types.is_temporal(self._kind) else least.as_py()) >= self._told:
            return
        instants, missing = milliseconds(column)
        late = instants < self._clock.watermark.take(batch.partition)
        late &= batch[SIDE] == side
        if missing is not None:
            late &= ~missing
        self._clock.count_late(batch.partition.compress(late))

    def on_punctuation(self, p: Punctuation) -> None:
        super().on_punctuation(p)
        # Nothing comes behind the end.
        if p.kind == "watermark" and p.value is not None:
            self._clock.advance(p)
            self._look_at(p.value)

    def _look_at(self, watermark: int) -> None:
        """See from where on nothing is late: what counts coarser than milliseconds is rounded up."""
        told = max(in_unit_of(self._kind, watermark), in_unit_of(self._kind, watermark - 1) + 1)
        self._told = max(self._told, told)

    def take_late(self) -> dict[int, int]:
        return self._clock.take_late()

    # Partitions that come and go.

    def get_partition_state(self, pid: int) -> Iterator[Any]:
        yield {"clock": self._clock.get(pid)}
        yield from super().get_partition_state(pid)

    def install_partition_state(self, pid: int, state: Any) -> None:
        if "clock" in state:
            self._clock.install(pid, state["clock"])
            self._look_at(int(self._clock.watermark[pid]))
        else:
            super().install_partition_state(pid, state)

    def drop_partition(self, pid: int) -> None:
        self._clock.drop(pid)
        super().drop_partition(pid)
