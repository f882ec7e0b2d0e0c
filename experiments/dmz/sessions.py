"""Sessions between pairs of hosts, the first operator of the thesis's example (Thesis 2.2).

Packets have the columns `src`, `dst`, `data` and `ts`. The first byte of `data` is b"S" when the packet starts a
session and b"E" when it ends one; the second byte of a start is the number of the application. The end of an open
session emits its application, its source and its duration. A start within a session restarts it; an end without a start
and all other packets emit nothing. `ts` is an integer, a timestamp or a date, and the duration is in its unit.

A key is in the table exactly while its session is open, so that presence is the state's most important bit.

For one release a link makes this file part of the library, too, as `flux.operators.Sessions`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from flux.model.batch import Batch
from flux.model.operator import Context
from flux.operators.keys import KeyTable, KeyTableOperator, check_keys
from flux.operators.row_groups import Groups, column_of, group_by_slot, in_row_order, unknown_parameters
from flux.types.array_types import Bools
from flux.types.arrays import ColumnError
from flux.types.errors import OperatorError, PlanError

__all__ = ["Sessions"]

_START, _END = b"SE"
_KEY = ("src", "dst")
_VALUES = {"app": np.int32, "ts": np.int64, "no_ts": np.bool_}

Bytes = npt.NDArray[np.uint8]
RowNumbers = npt.NDArray[np.int64]
Event = Mapping[str, npt.NDArray[Any]]  # The values of a start, by the names of `_VALUES`.


class Sessions(KeyTableOperator):
    """Turn packets into sessions: (app, src, dur) for each that ends.

    A packet has the columns src, dst, data and ts. The first byte of its data is its kind: ``S`` starts the session of
    its two hosts, or restarts it, and the second byte is the application; ``E`` ends it, if there is one; others are
    payload. `src` is unchanged. `dur` is the time from start to end, in the unit of ts.

    A null in src or dst is a host like any other, as it is to the exchange. A packet whose data is null is payload.
    Where the ts of a start or of its end is null, so is the `dur` of that session.
    """

    changeable = ()

    is_by_key = True
    needs_order = True

    def output_for(self, parameters: Mapping[str, Any], key_columns: tuple[str, ...], rows: Any) -> Any:
        # The plan refuses what a run would refuse; this instance never runs.
        self.open(Context(dict(parameters), step="Sessions", key_columns=key_columns))
        missing = [name for name in (*_KEY, "data", "ts") if name not in rows.names]
        if missing:
            raise ColumnError(
                f"expected packets with the columns src, dst, data and ts; got {', '.join(rows.names)}, without "
                f"{', '.join(missing)}. Rename columns with select(...) before the exchange"
            )
        check_keys(_KEY, rows)
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
        # Whether a ts has been null; until then, nulls cost nothing.
        self._has_nulls = False

    def process(self, batch: Batch) -> Batch | None:
        kind, app = _first_two_bytes(batch, self._step)
        # Also for a batch without events, so that errors do not depend on where batches are cut.
        event = {"app": app, **self._instants(batch)}
        key = [column_of(batch, name, self._step) for name in _KEY]
        table = self._table_for([column.type for column in key])
        is_start = kind == _START
        rows = np.flatnonzero(is_start | (kind == _END))
        if not len(rows):
            return None
        partition = batch.partition
        if len(rows) < len(batch):
            key, partition = [column.take(pa.array(rows)) for column in key], partition.take(rows)
        slots, new = table.find_or_insert(key, partition)

        # An event meets the state that the event before it in its session left: in this batch, or in the table.
        groups = group_by_slot(slots)
        row = rows.take(groups.row)
        starts = is_start.take(row)
        is_open = ~new.take(groups.row)
        np.copyto(is_open[1:], starts[:-1], where=~groups.first[1:])
        ends = np.flatnonzero(is_open & ~starts)
        begun = {name: self._starts_of(name, values, ends, groups, row) for name, values in event.items()}
        self._store(groups, row, starts, event)

        origin, order = in_row_order(row.take(ends), len(batch))
        begun = {name: values.take(order) for name, values in begun.items()}
        columns = {
            "app": begun["app"].astype(np.int32, copy=False),
            "src": batch.column("src").take(pa.array(origin)),
            "dur": self._durations(batch, origin, begun, event),
        }
        return batch.emit(columns, origin)

    def _durations(self, batch: Batch, origin: RowNumbers, begun: Event, event: Event) -> Any:
        since, ended = begun["ts"], event["ts"].take(origin)
        durations: RowNumbers = ended - since
        no_ts = begun["no_ts"] | event["no_ts"].take(origin) if self._has_nulls else None
        # A difference has wrapped around if its sign is neither end's.
        wrapped = np.flatnonzero(((ended ^ since) & (ended ^ durations)) < 0)
        if no_ts is not None:
            wrapped = wrapped.compress(~no_ts.take(wrapped))
        if len(wrapped):
            i, row = int(wrapped[0]), int(origin[wrapped[0]])
            raise OperatorError(
                f"a session from ts {since[i]} to ts {ended[i]} is longer than 64 bits can hold",
                self._step,
                int(batch.partition[row]),
                int(batch.sn[row]),
            )
        return pa.array(durations, mask=no_ts)

    def _instants(self, batch: Batch) -> dict[str, npt.NDArray[Any]]:
        """Return `ts` as 64-bit integers, in its own unit, and which rows have none, once some had none."""
        try:
            _check_instants(column_of(batch, "ts", self._step).type)
        except ColumnError as error:
            raise OperatorError(str(error), self._step) from error
        given, ts = batch["ts"], np.ma.getdata(batch["ts"])
        found = {"ts": ts.view(np.int64) if ts.dtype.kind in "mM" else ts.astype(np.int64, copy=False)}
        self._has_nulls |= isinstance(given, np.ma.MaskedArray)
        return {**found, "no_ts": np.ma.getmaskarray(given)} if self._has_nulls else found

    def _table_for(self, kinds: Sequence[Any]) -> KeyTable:
        if self._table is None:
            self._table = KeyTable(self._step, dict(zip(_KEY, kinds, strict=True)), _VALUES)
        return self._table

    def _starts_of(self, name: str, values: npt.NDArray[Any], ends: RowNumbers, groups: Groups, row: RowNumbers) -> Any:
        """Return one value of the starts of the sessions that these entries end."""
        assert self._table is not None
        before = values.take(row.take(ends - 1, mode="wrap"))
        kept = self._table.values[name].take(groups.slot.take(ends))
        return np.where(groups.first.take(ends), kept, before)

    def _store(self, groups: Groups, row: RowNumbers, starts: Bools, event: Event) -> None:
        """Store the sessions whose last event is a start, and delete the others."""
        assert self._table is not None
        self._table.delete(groups.slot.take(np.flatnonzero(groups.last & ~starts)))
        left_open = np.flatnonzero(groups.last & starts)
        slot, begun_by = groups.slot.take(left_open), row.take(left_open)
        for name, values in event.items():
            self._table.values[name][slot] = values.take(begun_by)

    def install_partition_state(self, pid: int, state: Any) -> None:
        self._has_nulls |= bool(state["values"]["no_ts"].any())
        self._table_for([column.type for column in state["keys"].columns]).install(pid, state)


def _check_instants(kind: Any) -> None:
    is_time = pa.types.is_timestamp(kind) or pa.types.is_date(kind) or pa.types.is_duration(kind)
    if not is_time and (not pa.types.is_integer(kind) or kind == pa.uint64()):
        raise ColumnError(
            f"column 'ts' is {kind}; expected integers that fit in int64, timestamps or dates. Cast it before the step"
        )


def _first_two_bytes(batch: Batch, step: str) -> tuple[Bytes, Bytes]:
    """Return the first and second byte of each row's `data`, 0 where it is shorter, or null.

    Spark has no binary of fixed size, so `data` may also have offsets.
    """
    column = column_of(batch, "data", step)
    kind = column.type
    try:
        _check_data(kind)
    except ColumnError as error:
        raise OperatorError(str(error), step) from error
    if pa.types.is_fixed_size_binary(kind):
        data = np.ma.getdata(batch["data"])
        first, second = data[:, 0], data[:, 1]
    else:
        first, second = _with_offsets(column)
    if column.null_count:
        is_there = column.is_valid().to_numpy(zero_copy_only=False)
        first, second = first * is_there, second * is_there
    return first, second


def _with_offsets(column: Any) -> tuple[Bytes, Bytes]:
    wide: Any = np.int64 if pa.types.is_large_binary(column.type) else np.int32
    _, offsets, values = column.buffers()
    starts: npt.NDArray[Any] = np.frombuffer(offsets, wide)[column.offset : column.offset + len(column) + 1]
    # Two zeros more, so that even an empty value at the end has two bytes to read.
    if int(starts[-1]) + 2 > (0 if values is None else values.size):
        flat = np.frombuffer((b"" if values is None else values.to_pybytes()) + bytes(2), np.uint8)
    else:
        flat = np.frombuffer(values, np.uint8)
    lengths = np.diff(starts)
    return flat.take(starts[:-1]) * (lengths >= 1), flat.take(starts[:-1] + 1) * (lengths >= 2)


def _check_data(kind: Any) -> None:
    if pa.types.is_fixed_size_binary(kind) and kind.byte_width >= 2:
        return
    if not (pa.types.is_binary(kind) or pa.types.is_large_binary(kind)):
        raise ColumnError(
            f"column 'data' is {kind}; expected binary, of at least two bytes if its size is fixed: the kind of "
            "packet and the application. Cast it before the step"
        )
