"""Sessions between pairs of hosts, the first operator of the thesis's example (Thesis 2.2).

Packets have the columns `src`, `dst`, `data` and `ts`. The first byte of `data` is b"S" when the packet
starts a session and b"E" when it ends one; the second byte of a start is the number of the application. The
end of an open session emits its application, its source and how long it took. A start within a session
begins it anew; an end without a start and all other packets emit nothing. `ts` is an integer, a timestamp or a
date, and the duration is in its unit.

A key is in the table exactly while its session is open, so that presence is the state's most important bit.
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

__all__ = ["Sessions"]

_START, _END = b"SE"
_KEY = ("src", "dst")
_VALUES = {"app": np.int32, "ts": np.int64}

Bytes = npt.NDArray[np.uint8]
Rows = npt.NDArray[np.int64]


class Sessions(Tabled):
    """Turn packets into sessions: (app, src, dur) for each that ends.

    A packet has the columns src, dst, data and ts. The first byte of its data says what it is: ``S`` starts the
    session of its two hosts, or starts it anew, and the second byte is the application; ``E`` ends it, if there is
    one; others are payload. `src` is as it came. `dur` is how much later the end came, in the unit of ts. A packet
    with a null in one of these columns is an `OperatorError` that names it: filter such rows out, or leave them out by
    ``on_error="skip"``.
    """

    is_by_key = True
    needs_order = True

    def output_for(self, parameters: Mapping[str, Any], key_columns: tuple[str, ...], rows: Any) -> Any:
        # What a run would refuse is refused with the plan; the instance that is asked does not run.
        self.open(Context(dict(parameters), step="Sessions", key_columns=key_columns))
        missing = [name for name in (*_KEY, "data", "ts") if name not in rows.names]
        if missing:
            raise ColumnError(
                f"expected packets with the columns src, dst, data and ts; without {', '.join(missing)} came "
                f"{', '.join(rows.names)}. Rename columns with select(...) before the exchange"
            )
        for name in _KEY:
            check_key_type(rows.field(name).type, name, "Sessions")
        _check_data(rows.field("data").type)
        _check_instants(rows.field("ts").type)
        src = pa.field("src", rows.field("src").type)
        return pa.schema([pa.field("app", pa.int32()), src, pa.field("dur", pa.int64())])

    def open(self, context: Context) -> None:
        unknown_parameters(context.step, list(context.parameters), [])
        if not set(context.key_columns) <= set(_KEY):
            raise PlanError(
                f"step {context.step!r}: Sessions keeps its state by src and dst, and the exchange before it "
                f"partitions by {', '.join(context.key_columns)}. Exchange by src, dst or both"
            )
        self._step = context.step
        self._table = None

    def process(self, batch: Batch) -> Batch | None:
        kind, app = _first_two_bytes(batch, self._step)
        is_start = kind == _START
        rows = np.flatnonzero(is_start | (kind == _END))
        # Also of a batch without any, so that what is refused does not depend on where batches are cut.
        src, dst = (key_array(batch, name, self._step) for name in _KEY)
        ts = _instants(batch, self._step)
        if not len(rows):
            return None
        if len(rows) < len(batch):
            key, partition = [src.take(rows), dst.take(rows)], batch.partition.take(rows)
        else:
            key, partition = [src, dst], batch.partition
        if self._table is None:
            self._table = Table([src.dtype, dst.dtype], _VALUES)
        slots, new = self._table.find_or_insert(key, partition)

        # The state an event meets was left by the event before it in its session: in this batch, or in the
        # table.
        groups = group_by_slot(slots)
        row = rows.take(groups.row)
        starts = is_start.take(row)
        is_open = ~new.take(groups.row)
        np.copyto(is_open[1:], starts[:-1], where=~groups.first[1:])
        ends = np.flatnonzero(is_open & ~starts)
        begun, by_app = self._begun(ends, groups, row, ts, app)
        self._remember(groups, row, starts, ts, app)

        # Output goes by input row, not by group.
        ended = row.take(ends)
        since, application = np.empty(len(batch), np.int64), np.empty(len(batch), np.int32)
        since[ended], application[ended] = begun, by_app
        finished = np.zeros(len(batch), np.bool_)
        finished[ended] = True
        origin = np.flatnonzero(finished)
        return batch.emit(
            {
                "app": application.take(origin),
                "src": batch.column("src").take(pa.array(origin)),
                "dur": self._lasted(batch, origin, ts.take(origin), since.take(origin)),
            },
            origin,
        )

    def _lasted(self, batch: Batch, origin: Rows, ended: Rows, begun: Rows) -> Rows:
        lasted: Rows = ended - begun
        # A difference has wrapped around if its sign is neither end's.
        wrapped = np.flatnonzero(((ended ^ begun) & (ended ^ lasted)) < 0)
        if len(wrapped):
            i, row = int(wrapped[0]), int(origin[wrapped[0]])
            raise OperatorError(
                f"a session from ts {begun[i]} to ts {ended[i]} is longer than 64 bits can tell",
                self._step,
                int(batch.partition[row]),
                int(batch.sn[row]),
            )
        return lasted

    def _begun(
        self, ends: Rows, groups: Groups, row: Rows, ts: npt.NDArray[Any], app: Bytes
    ) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        """Return when, and by which application, the sessions were begun that these entries end."""
        assert self._table is not None
        before = row.take(ends - 1, mode="wrap")
        slot = groups.slot.take(ends)
        first = groups.first.take(ends)
        values = self._table.values
        begun = np.where(first, values["ts"].take(slot), ts.take(before))
        return begun, np.where(first, values["app"].take(slot), app.take(before))

    def _remember(self, groups: Groups, row: Rows, starts: npt.NDArray[np.bool_], ts: Any, app: Bytes) -> None:
        """Keep in the table the sessions whose last event is a start, and only those."""
        assert self._table is not None
        self._table.delete(groups.slot.take(np.flatnonzero(groups.last & ~starts)))
        left_open = np.flatnonzero(groups.last & starts)
        slot, begun_by = groups.slot.take(left_open), row.take(left_open)
        self._table.values["ts"][slot] = ts.take(begun_by)
        self._table.values["app"][slot] = app.take(begun_by)

    def install_partition_state(self, pid: int, state: Any) -> None:
        if self._table is None:
            self._table = Table([state["key0"].dtype, state["key1"].dtype], _VALUES)
        self._table.install(pid, state)


def _instants(batch: Batch, step: str) -> Rows:
    """Return `ts` as 64-bit integers, in its own unit."""
    ts = plain_column(batch, "ts", step)
    try:
        _check_instants(batch.column("ts").type)
    except ColumnError as error:
        raise OperatorError(str(error), step) from error
    return ts.view(np.int64) if ts.dtype.kind in "mM" else ts.astype(np.int64, copy=False)


def _check_instants(kind: Any) -> None:
    is_time = pa.types.is_timestamp(kind) or pa.types.is_date(kind) or pa.types.is_duration(kind)
    if not is_time and (not pa.types.is_integer(kind) or kind == pa.uint64()):
        raise ColumnError(
            f"column 'ts' is {kind}; expected integers that fit in int64, timestamps or dates. Cast it before the step"
        )


def _first_two_bytes(batch: Batch, step: str) -> tuple[Bytes, Bytes]:
    """Return the first and second byte of each row's `data`, 0 where it is shorter.

    Spark knows no binary of fixed size: `data` may also come with offsets.
    """
    column = batch.column("data")
    kind = column.type
    if pa.types.is_fixed_size_binary(kind) and kind.byte_width >= 2:
        data = plain_column(batch, "data", step)
        return data[:, 0], data[:, 1]
    try:
        _check_data(kind)
    except ColumnError as error:
        raise OperatorError(str(error), step) from error
    if column.null_count:
        plain_column(batch, "data", step)  # Refuses them, and says which row it is.
    wide: Any = np.int64 if pa.types.is_large_binary(kind) else np.int32
    _, offsets, values = column.buffers()
    starts: npt.NDArray[Any] = np.frombuffer(offsets, wide)[column.offset : column.offset + len(column) + 1]
    # Two zeros more, so that even an empty value at the end has two bytes to look at.
    if int(starts[-1]) + 2 > (0 if values is None else values.size):
        flat = np.frombuffer((b"" if values is None else values.to_pybytes()) + bytes(2), np.uint8)
    else:
        flat = np.frombuffer(values, np.uint8)
    lengths = np.diff(starts)
    first, second = flat.take(starts[:-1]), flat.take(starts[:-1] + 1)
    return first * (lengths >= 1), second * (lengths >= 2)


def _check_data(kind: Any) -> None:
    if pa.types.is_fixed_size_binary(kind) and kind.byte_width >= 2:
        return
    if not (pa.types.is_binary(kind) or pa.types.is_large_binary(kind)):
        raise ColumnError(
            f"column 'data' is {kind}; expected binary, of at least two bytes if its size is fixed: the kind of "
            "packet and the application. Cast it before the step"
        )
