"""Late rows: the rows that an operator by event time drops because they are late, as a stream of their own.

`stream.late()` puts this step beside the operator, after the same exchange. It gets the same rows and watermarks, and
forwards the rows that the operator drops. So late rows are output like any other: once, in order, whatever fails.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from ..model.batch import Batch
from ..model.operator import Context, OperatorStep, PooledOperator, operator_class
from ..model.punctuation import Punctuation
from ..types.array_types import Int64s
from ..types.errors import PlanError
from .event_time_state import EventClock, instants_of

__all__ = ["DropsLateRows", "LateRows", "late_step"]


class DropsLateRows(Protocol):
    """An operator that drops late rows; `time` among its parameters is the column of event time."""

    @classmethod
    def in_time_from(cls, parameters: Mapping[str, Any], watermark: Int64s) -> Int64s | None:
        """Return for each watermark the first instant that is not late; None if no row is ever late."""


class LateRows(PooledOperator):
    """Forwards the rows that an operator of the class `dropping`, with the same parameters, drops as late."""

    changeable = ()

    needs_order = True

    def __init__(self, dropping: DropsLateRows) -> None:
        self._dropping = dropping

    def open(self, context: Context) -> None:
        self._step, self._parameters = context.step, context.parameters
        self._clock = EventClock(context.partitions)
        self._set_bound()

    def _set_bound(self) -> None:
        bound = self._dropping.in_time_from(self._parameters, self._clock.watermark)
        assert bound is not None, "the plan refuses late() after an operator for which no row is late"
        self._bound = bound

    def process(self, batch: Batch) -> Batch | None:
        instants, missing = instants_of(batch, self._parameters["time"], self._step)
        late = instants < self._bound.take(batch.partition)
        if missing is not None:
            late |= missing
        chosen = np.flatnonzero(late)
        if not len(chosen):
            return None
        rows = batch.arrow.take(pa.array(chosen))
        return batch.emit(dict(zip(rows.schema.names, rows.columns, strict=True)), chosen)

    def on_punctuation(self, p: Punctuation) -> None:
        if self._clock.advance(p):
            self._set_bound()

    # State by partition.

    def get_partition_state(self, pid: int) -> Any:
        return self._clock.get(pid)

    def install_partition_state(self, pid: int, state: Any) -> None:
        self._clock.install(pid, state)
        self._set_bound()

    def drop_partition(self, pid: int) -> None:
        self._clock.drop(pid)
        self._set_bound()


def late_step(step: OperatorStep, rows: pa.Schema | None) -> OperatorStep:
    """Return the step that emits what `step` drops as late of such rows; `PlanError` if it drops none."""
    dropping = operator_class(step.factory, step.name)
    now = np.zeros(1, np.int64)
    if not hasattr(dropping, "in_time_from") or dropping.in_time_from(step.parameters, now) is None:
        raise PlanError(
            f"late() follows {step.name}, which drops no late rows. TimeWindow, SessionWindow, and TopK and Distinct "
            "with time= and size_ms= do"
        )
    return replace(step, factory=partial(LateRows, dropping), name=f"late({step.name})", output=rows, route=None)
