"""Windows over the last rows of each key.

`CountWindow` keeps the last `history` values of a key, in a ring beside the key, and tells their maximum
and mean each time `slide` further rows have come. The second operator of the thesis's example (Thesis 2.2).

Whatever the batch boundaries, a window is added up from its oldest value to its newest, on its own:
integers exactly, also beyond 64 bits, and floats always in the same order, because their sum depends on it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from flux.batch import Batch
from flux.columns import ColumnError
from flux.errors import OperatorError, PlanError
from flux.operator import Context
from flux.operators.grouping import (
    Groups,
    check_key_type,
    group_by_slot,
    key_array,
    plain_column,
    unknown_parameters,
)
from flux.operators.table import Table
from flux.operators.tabled import Tabled

__all__ = ["CountWindow"]

_WRAPS_FROM = 2**63
# A key keeps so many values, and each is looked at for each window; counts of rows have 64 bits.
_MOST = {"history": 1 << 20, "slide": 1 << 62}
_PARAMETERS = ("history", "slide", "value")

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
Numbers = npt.NDArray[Any]


class CountWindow(Tabled):
    """For each key, maximum and mean of the last `history` rows, told every `slide` rows.

    The key is that of the exchange before it. Emits the key columns, `max_<value>` and `avg_<value>`, first
    when `history` rows of a key have come; a window that is not full emits nothing.

    A NaN makes maximum and mean of the windows it is in NaN; as keys all NaN are one. A row with a null in the key or
    in the value is an `OperatorError` that names it: filter such rows out, or leave them out by ``on_error="skip"``.
    """

    is_by_key = True
    needs_order = True

    def __init__(self, history: int = 2, slide: int = 1, value: str = "dur") -> None:
        self._history, self._slide, self._value = history, slide, value

    def output_for(self, parameters: Mapping[str, Any], key_columns: tuple[str, ...], rows: Any) -> Any:
        # What a run would refuse is refused with the plan; the instance that is asked does not run.
        self.open(Context(dict(parameters), step="CountWindow", key_columns=key_columns))
        value = self._value
        for name in (*key_columns, value):
            if name not in rows.names:
                raise ColumnError(f"expected a column {name!r}, came {', '.join(rows.names)}")
        for name in key_columns:
            check_key_type(rows.field(name).type, name, "CountWindow")
        _check_number(rows.field(value))
        fields = [rows.field(name) for name in key_columns]
        exact = pa.float64() if pa.types.is_floating(rows.field(value).type) else pa.int64()
        return pa.schema([*fields, pa.field(f"max_{value}", exact), pa.field(f"avg_{value}", pa.float64())])

    def open(self, context: Context) -> None:
        unknown_parameters(context.step, list(context.parameters), _PARAMETERS)
        self._step, self._key = context.step, context.key_columns
        self._history = context.parameters.get("history", self._history)
        self._slide = context.parameters.get("slide", self._slide)
        self._value = context.parameters.get("value", self._value)
        self._table = None
        # No integer seen is further from zero than this: it tells when sums may leave 64 bits.
        self._farthest = 0
        for name, given in (("history", self._history), ("slide", self._slide)):
            if not isinstance(given, int) or isinstance(given, bool) or not 1 <= given <= _MOST[name]:
                raise PlanError(
                    f"step {self._step!r}: {name} is a number of rows, from 1 to {_MOST[name]:,}; {given!r} came"
                )
        if not isinstance(self._value, str):
            raise PlanError(f"step {self._step!r}: value is the name of a column; {self._value!r} came")
        if not self._key:
            raise PlanError(f"step {self._step!r}: CountWindow groups by its exchange's columns. Put one before it")

    def process(self, batch: Batch) -> Batch | None:
        keys = [key_array(batch, name, self._step) for name in self._key]
        value = self._numbers(batch)
        self._note_farthest(value)
        if self._table is None:
            self._table = self._new_table([key.dtype for key in keys], value.dtype)
        slots, new = self._table.find_or_insert(keys, batch.partition)
        if new.any():
            self._table.values["count"][slots[new]] = 0

        groups = group_by_slot(slots)
        grouped = value.take(groups.row)
        rank, count = self._counted(groups)
        due = np.flatnonzero(self._is_due(count))
        greatest, mean = self._aggregate(due, grouped, groups.slot, rank, count)
        self._remember(groups, grouped, count)

        # Output goes by input row, not by group.
        row = groups.row.take(due)
        is_due = np.zeros(len(batch), np.bool_)
        is_due[row] = True
        origin = np.flatnonzero(is_due)
        greatest_by_row, mean_by_row = np.empty(len(batch), value.dtype), np.empty(len(batch))
        greatest_by_row[row], mean_by_row[row] = greatest, mean
        columns: dict[str, Any] = {name: batch.column(name) for name in self._key}
        if len(origin) < len(batch):
            where = pa.array(origin)
            columns = {name: column.take(where) for name, column in columns.items()}
        columns[f"max_{self._value}"] = greatest_by_row.take(origin)
        columns[f"avg_{self._value}"] = mean_by_row.take(origin)
        return batch.emit(columns, origin)

    def _numbers(self, batch: Batch) -> Numbers:
        value = plain_column(batch, self._value, self._step)
        try:
            _check_number(batch.arrow.schema.field(self._value))
        except ColumnError as error:
            raise OperatorError(str(error), self._step) from error
        return value.astype(np.float64 if value.dtype.kind == "f" else np.int64, copy=False)

    def _note_farthest(self, value: Numbers) -> None:
        if value.dtype.kind == "i" and len(value):
            self._farthest = max(self._farthest, int(value.max()), -int(value.min()))

    def _new_table(self, keys: list[npt.DTypeLike], value: npt.DTypeLike) -> Table:
        return Table(keys, {"count": np.int64, "ring": (value, (self._history,))})

    def _counted(self, groups: Groups) -> tuple[Ints, Ints]:
        """Return each entry's rank in its group, and the key's count of rows once it has been added."""
        assert self._table is not None
        places = np.arange(len(groups.slot))
        begins = np.where(groups.first, places, 0)
        np.maximum.accumulate(begins, out=begins)
        rank = places - begins
        count = self._table.values["count"].take(groups.slot)
        count += rank
        count += 1
        return rank, count

    def _is_due(self, count: Ints) -> Bools:
        full: Bools = count >= self._history
        if self._slide > 1:
            full &= (count - self._history) % self._slide == 0
        return full

    # Infinities are values like others; what comes of adding them is nobody's mistake here.
    @np.errstate(invalid="ignore", over="ignore")
    def _aggregate(self, due: Ints, grouped: Numbers, slot: Ints, rank: Ints, count: Ints) -> tuple[Numbers, Numbers]:
        """Return the greatest value and the mean of the windows that end with the entries `due`.

        A window's value is in this batch as far back as the group reaches, and in the ring before that.
        """
        assert self._table is not None
        ring = self._table.values["ring"].reshape(-1)
        rank, count = rank.take(due), count.take(due)
        place_in_ring = slot.take(due) * self._history
        greatest: Numbers | None = None
        total: Numbers | None = None
        # Sums of integers wrap around; beside them, rough ones tell how often.
        may_wrap = self._farthest * self._history >= _WRAPS_FROM
        rough = np.zeros(len(due)) if may_wrap else None
        for back in range(self._history - 1, -1, -1):
            at = grouped.take(due - back, mode="wrap")
            if back:
                older = np.flatnonzero(rank < back)
                kept = place_in_ring.take(older) + (count.take(older) - 1 - back) % self._history
                at[older] = ring.take(kept)
            if greatest is None or total is None:
                greatest, total = at, at.copy()
            else:
                np.maximum(greatest, at, out=greatest)
                total += at
            if rough is not None:
                rough += at
        assert greatest is not None and total is not None
        exact = total if rough is None else _unwrapped(total, rough)
        return greatest, exact / self._history

    def _remember(self, groups: Groups, grouped: Numbers, count: Ints) -> None:
        """Put into the ring what windows to come may need of each group: one value less than `history`."""
        assert self._table is not None
        last = np.flatnonzero(groups.last)
        final = count.take(last)
        self._table.values["count"][groups.slot.take(last)] = final
        # How many entries of its group follow each entry.
        follow = np.repeat(final, np.diff(last, prepend=-1)) - count
        kept = np.flatnonzero(follow < self._history - 1)
        place = groups.slot.take(kept) * self._history + (count.take(kept) - 1) % self._history
        self._table.values["ring"].reshape(-1)[place] = grouped.take(kept)

    def get_partition_state(self, pid: int) -> Any:
        state = super().get_partition_state(pid)
        if state is not None:
            # What no window needs any more is still in the ring, or not, as batches were cut; sent, it is 0.
            age = (state["count"][:, None] - 1 - np.arange(self._history)) % self._history
            state["ring"][age >= np.minimum(state["count"], self._history - 1)[:, None]] = 0
        return state

    def install_partition_state(self, pid: int, state: Any) -> None:
        if self._table is None:
            keys = [state[f"key{i}"].dtype for i in range(len(self._key))]
            self._table = self._new_table(keys, state["ring"].dtype)
        self._note_farthest(state["ring"].reshape(-1))
        self._table.install(pid, state)


def _check_number(value: Any) -> None:
    """Raise if there is no maximum and mean of a column with this Arrow field."""
    kind = value.type
    is_whole = pa.types.is_boolean(kind) or (pa.types.is_integer(kind) and kind != pa.uint64())
    if not is_whole and not pa.types.is_floating(kind):
        raise ColumnError(
            f"column {value.name!r} is {kind}; expected signed integers, or floats. Cast it before the step"
        )


def _unwrapped(total: Ints, rough: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return sums of integers as floats, from the sums modulo 2**64 and from ones that are nearly right."""
    exact = total.astype(np.float64)
    wrapped = np.rint((rough - exact) / 2.0**64)
    for i in np.flatnonzero(wrapped).tolist():
        # Rounded once, from the whole number, as a sum that fits in 64 bits is.
        exact[i] = float(int(total[i]) + int(wrapped[i]) * 2**64)
    return exact
