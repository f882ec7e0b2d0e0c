"""TopK: the first k rows of each key by some columns.

Theory. Rows that may be among the first k are kept unchanged, in arrival order. From time to time the others are
pruned: rows are sorted by key and rank, and the first k of each key stay. The last of these is the key's *bar*. A row
that does not pass the bar is not kept at all, and after a while few rows pass. The result does not depend on when rows
are pruned.

Rows are ranked by whole numbers in the order of the columns' values (`order_numbers`), one for each column; less is
better.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ..model.batch import Batch
from ..model.operator import Context, PooledOperator
from ..model.punctuation import Punctuation
from ..types.array_types import Bools, Int64s, Slots
from ..types.arrays import ColumnError
from ..types.errors import OperatorError, PlanError
from .event_time_state import Windowed
from .key_order import begins_of, in_order, order_numbers, rank_within
from .keys import KeyTable, check_keys, piece_slices
from .row_groups import emitted_schema, unknown_parameters

__all__ = ["TopK"]

_PARAMETERS = ("k", "by", "largest", "ties", "time", "size_ms")
_DIRECTIONS = ("ascending", "descending")
_TIES = ("first", "all")
_RANK = "rank"
_PRUNE_FROM_ROWS = 16_384


class TopK(PooledOperator):
    """For each key, the `k` rows with the greatest value of a column, or the first ones by several columns.

    >>> import flux
    >>> flow = flux.Dataflow("bids")
    >>> rows = [("a", 7, 1), ("a", 9, 2), ("a", 9, 3), ("b", 5, 4)]
    >>> bids = flow.source(flux.sources.Table([dict(zip(("item", "price", "ts"), row)) for row in rows]))
    >>> first = bids.exchange("item").apply(TopK, k=1, by={"price": "descending", "ts": "ascending"})
    >>> first.sink(flux.sinks.Collect())
    >>> [(row["item"], row["price"], row["ts"]) for row in flow.run().table.sort_by("item").to_pylist()]
    [('a', 9, 2), ('b', 5, 4)]

    Parameters of `apply`: `k`; `by`, a column of numbers, dates or times, or a list of such columns, the most important
    first; `largest=False` for the least values. A dict says for each column whether it is "ascending" or "descending".
    The key is that of the exchange before it. Of rows that are equal in all columns the earlier is first. With
    `ties="all"` they have the same rank, and all rows that are equal to row number k are emitted too, as with ``rank()
    <= k`` in SQL. A row with a null or NaN in one of the columns has no rank and is dropped.

    Emits whole input rows with a further column `rank`, from 1 on. Without `time`, a key emits all its k rows at a
    watermark or at the end of the stream, if they differ from its last emission; by key and rank. With `time`, the
    column of event time, and `size_ms`, a window is emitted once the watermark has passed its end; by window, key and
    rank. Windows begin at multiples of `size_ms`. A row that arrives after that is late: it is dropped and counted
    (`report.late`), and so is a row without event time. These orders hold within a partition; partitions take turns, as
    in `TimeWindow`.

    While rows flow, `k` may be changed (`run.reconfigure`): if it grows, rows that were dropped before stay dropped.

    To rank keys by an aggregate, put a `TimeWindow` before it, exchange by ``window_start``, and give ``time=
    "window_start"`` and the same `size_ms`.
    """

    is_by_key = True
    needs_order = True
    changeable = ("k",)

    def output_for(self, parameters: Mapping[str, Any], key_columns: tuple[str, ...], rows: Any) -> Any:
        unknown_parameters("TopK", list(parameters), _PARAMETERS)
        _, by, _ = _settings(parameters)
        check_keys(key_columns, rows)
        Windowed.check(parameters, rows)
        for name in by:
            if name not in rows.names or not _is_ranked(rows.field(name).type):
                got = rows.field(name).type if name in rows.names else f"only {', '.join(rows.names)}"
                raise ColumnError(f"by={name!r} must be a column of numbers, dates or times; got {got}")
        return emitted_schema([*rows, pa.field(_RANK, pa.int64())])

    def open(self, context: Context) -> None:
        self._step, self._key = context.step, context.key_columns
        unknown_parameters(context.step, list(context.parameters), _PARAMETERS)
        try:
            self._k, self._by, self._has_ties = _settings(context.parameters)
            self._windowed = Windowed(context)
        except ColumnError as error:
            raise PlanError(f"step {context.step!r}: {error}") from error
        if not self._key:
            raise PlanError(f"step {context.step!r}: TopK ranks by its exchange's columns. Put one before it")
        self._schema: pa.Schema | None = None

    def on_change(self, context: Context) -> None:
        """Rank as many rows as the new parameters say from now on; those that were dropped before stay dropped."""
        self._k, _, _ = _settings(context.parameters)
        if self._schema is not None:
            self._table.values["full"][:] = False

    def _begin(self, rows: pa.Schema) -> None:
        """Create the state for rows of this schema."""
        for name in self._by:
            if not _is_ranked(rows.field(name).type):
                raise OperatorError(f"column {name!r} is {rows.field(name).type}; it cannot be ranked", self._step)
        self._schema = rows
        keys = {name: rows.field(name).type for name in self._key}
        values = {"window": np.int64, "bar": (np.int64, (len(self._by),)), "full": np.bool_}
        self._table = KeyTable(self._step, keys, values, self._windowed.key_parts)
        self._held = _HeldRows(rows, len(self._by))
        self._prune_at = _PRUNE_FROM_ROWS

    # Rows.

    def process(self, batch: Batch) -> Batch | None:
        if self._schema is None:
            self._begin(batch.arrow.schema)
        rows, window = self._windowed.rows_in_time(batch)
        best, has_rank = self._rank_numbers(batch)
        arrow, partition = batch.arrow, batch.partition
        if rows is not None or has_rank is not None:
            whole = np.arange(len(batch)) if rows is None else rows
            keep = np.ones(len(whole), np.bool_) if has_rank is None else has_rank.take(whole)
            chosen, window = whole.compress(keep), window.compress(keep)
            arrow, partition, best = arrow.take(pa.array(chosen)), partition.take(chosen), best[chosen]
        if arrow.num_rows:
            self._add(arrow, partition, window, best)
        return None

    def _rank_numbers(self, batch: Batch) -> tuple[Int64s, Bools | None]:
        """Return rows of numbers by which rows are ranked, less being better, and which have one; None if all have."""
        has_rank: Bools | None = None
        best = np.empty((len(batch), len(self._by)), np.int64)
        for i, (name, is_descending) in enumerate(self._by.items()):
            column = batch.column(name)
            if column.null_count or pa.types.is_floating(column.type):
                # NaN is not equal to itself, and null is equal to nothing.
                present = pc.equal(column, column).fill_null(False).to_numpy(zero_copy_only=False)
                if not present.all():
                    has_rank = present if has_rank is None else has_rank & present
            numbers = order_numbers(column)[-1]
            best[:, i] = ~numbers if is_descending else numbers
        return best, has_rank

    def _add(self, rows: pa.RecordBatch, partition: npt.NDArray[np.uint16], window: Int64s, best: Int64s) -> None:
        keys = [rows.column(name) for name in self._key]
        slots, new = self._table.find_or_insert(keys, partition, *self._windowed.key_part(window))
        values = self._table.values
        if new.any():
            fresh = slots.compress(new)
            values["window"][fresh] = window.compress(new)
            values["full"][fresh] = False
        may_be_first = ~values["full"].take(slots) | _is_before(best, values["bar"][slots], self._has_ties)
        if not may_be_first.all():
            chosen = np.flatnonzero(may_be_first)
            rows, slots, best = rows.take(pa.array(chosen)), slots.take(chosen), best[chosen]
        self._held.add(slots, best, np.zeros(len(slots), np.bool_), rows)
        if len(self._held) >= self._prune_at:
            self._prune()
            self._prune_at = max(_PRUNE_FROM_ROWS, 2 * len(self._held))

    def _prune(self) -> None:
        """Keep the first k rows of each key, and set its bar."""
        slots, best = self._held.slots, self._held.best
        order = in_order([slots, *best.T])
        _, place = rank_within(begins_of([slots.take(order)]), len(order))
        last = order.compress(place == self._k - 1)
        self._table.values["bar"][slots.take(last)] = best[last]
        self._table.values["full"][slots.take(last)] = True
        self._held.keep(np.sort(order.compress(self._ranks(slots.take(order), best[order]) < self._k)))

    def _ranks(self, slots: Slots, best: Int64s) -> Int64s:
        """Return the ranks of rows, from 0 on; they are in order, and equal ones have one rank if ties count."""
        _, rank = rank_within(begins_of([slots]), len(slots))
        if not self._has_ties or not len(slots):
            return rank
        begins = begins_of([slots, *best.T])
        return rank.take(begins).repeat(np.diff(begins, append=len(slots)))

    # Time.

    def on_punctuation(self, p: Punctuation) -> tuple[Mapping[str, Any], Any] | None:
        closes = self._windowed.advance(p)
        if self._schema is None or p.kind not in ("watermark", "end"):
            return None
        if self._windowed.time is not None:
            return self._close() if closes else None
        return self._emit_changed(p)

    def _close(self) -> tuple[Mapping[str, Any], Any] | None:
        """Return the first rows of the windows that are closed now, and forget these windows."""
        live = self._table.live
        closed = self._windowed.closed.take(self._table.partition.take(live))
        due = live.compress(self._table.values["window"].take(live) <= closed)
        if not len(due):
            return None
        is_due = np.zeros(len(self._table.partition), np.bool_)
        is_due[due] = True
        self._prune()
        emitted = self._ordered_rows(np.flatnonzero(is_due.take(self._held.slots)))
        self._held.keep(np.flatnonzero(~is_due.take(self._held.slots)))
        self._table.delete(due, for_good=True)
        return emitted

    def _emit_changed(self, p: Punctuation) -> tuple[Mapping[str, Any], Any] | None:
        """Return the first rows of the keys that have other first rows than at their last emission."""
        partition = self._table.partition
        changed = self._held.slots.compress(~self._held.is_emitted)
        if p.partitions is not None:
            changed = changed.compress(np.isin(partition.take(changed), list(p.partitions)))
        if not len(changed):
            return None
        self._prune()
        is_changed = np.zeros(len(partition), np.bool_)
        is_changed[changed] = True
        # A new row that has been pruned is not a change.
        still = self._held.slots.compress(~self._held.is_emitted & is_changed.take(self._held.slots))
        is_changed[:] = False
        is_changed[still] = True
        rows = np.flatnonzero(is_changed.take(self._held.slots))
        self._held.is_emitted[rows] = True
        return self._ordered_rows(rows) if len(rows) else None

    def _ordered_rows(self, rows: Int64s) -> tuple[Mapping[str, Any], Any]:
        """Return these rows, which are the first ones of their keys, by window, key and rank."""
        slots, best = self._held.slots.take(rows), self._held.best[rows]
        numbers = [each for column in self._table.keys_of(slots) for each in order_numbers(column)]
        order = in_order([self._table.values["window"].take(slots), *numbers, *best.T])
        slots = slots.take(order)
        rank = self._ranks(slots, best[order])
        taken = self._held.rows.take(pa.array(rows.take(order)))
        columns = dict(zip(taken.schema.names, taken.columns, strict=True))
        return columns | {_RANK: rank + 1}, self._table.partition.take(slots)

    @classmethod
    def waits_for_watermarks(cls, parameters: Mapping[str, Any]) -> bool:
        """Return True: ranks are emitted at watermarks."""
        return True

    @classmethod
    def in_time_from(cls, parameters: Mapping[str, Any], watermark: Int64s) -> Int64s | None:
        """Return for each watermark the first instant that is not late; None without windows."""
        return Windowed.in_time_from(parameters, watermark)

    def take_late(self) -> dict[int, int]:
        """Return the late-row counts that changed since the last call."""
        return self._windowed.clock.take_late()

    # State by partition.

    def get_partition_state(self, pid: int) -> Iterator[Any]:
        schema = None if self._schema is None else self._schema.empty_table()
        yield {"clock": self._windowed.clock.get(pid), "rows": schema}
        if self._schema is None:
            return
        yield from self._table.pieces(pid)
        is_here = np.zeros(len(self._table.partition), np.bool_)
        is_here[self._table.slots_of(pid)] = True
        for part in self._held.pieces(np.flatnonzero(is_here.take(self._held.slots))):
            piece = {**self._table.rows_piece(part.slots), "best": part.best, "is_emitted": part.is_emitted}
            yield {**piece, "held": pa.Table.from_batches([part.rows])}

    def install_partition_state(self, pid: int, state: Any) -> None:
        if "clock" in state:
            self._windowed.install(pid, state["clock"])
            if state["rows"] is not None and self._schema is None:
                self._begin(state["rows"].schema)
        elif "held" in state:
            slots = self._table.install_keys(pid, state).take(state["at"])
            for rows in state["held"].combine_chunks().to_batches():
                self._held.add(slots, state["best"], state["is_emitted"].copy(), rows)
        else:
            self._table.install(pid, state)

    def drop_partition(self, pid: int) -> None:
        if self._schema is not None:
            dropped = np.zeros(len(self._table.partition), np.bool_)
            dropped[self._table.drop(pid)] = True
            self._held.keep(np.flatnonzero(~dropped.take(self._held.slots)))
        self._windowed.drop(pid)

    def partition_info(self) -> dict[int, int]:
        return {} if self._schema is None else self._table.sizes()


class _HeldRows:
    """Rows that may be among the first, in arrival order; `is_emitted` says which have been emitted."""

    def __init__(self, schema: pa.Schema, ranked_by: int) -> None:
        self._parts: list[tuple[Int64s, Int64s, Bools, pa.RecordBatch]] = []
        self._rows = 0
        self._schema, self._ranked_by = schema, ranked_by

    def __len__(self) -> int:
        return self._rows

    def add(self, slots: Int64s, best: Int64s, is_emitted: Bools, rows: pa.RecordBatch) -> None:
        """Add further rows."""
        if len(slots):
            self._parts.append((slots, best, is_emitted, rows))
            self._rows += len(slots)

    def _whole(self) -> tuple[Int64s, Int64s, Bools, pa.RecordBatch]:
        if not self._parts:
            none = np.zeros((0, self._ranked_by), np.int64)
            return none[:, 0], none, np.zeros(0, np.bool_), pa.RecordBatch.from_pylist([], self._schema)
        if len(self._parts) > 1:
            slots, best, is_emitted, rows = zip(*self._parts, strict=True)
            arrays = (np.concatenate(slots), np.concatenate(best), np.concatenate(is_emitted))
            self._parts = [(*arrays, pa.concat_batches(rows))]
        return self._parts[0]

    @property
    def slots(self) -> Int64s:
        return self._whole()[0]

    @property
    def best(self) -> Int64s:
        return self._whole()[1]

    @property
    def is_emitted(self) -> Bools:
        return self._whole()[2]

    @property
    def rows(self) -> pa.RecordBatch:
        return self._whole()[3]

    def keep(self, places: Int64s) -> None:
        """Forget all rows but those at these places, which ascend."""
        if len(places) < self._rows:
            self._parts, self._rows = [self._at(places)], len(places)

    def pieces(self, places: Int64s) -> Iterator[_HeldRows]:
        """Yield the rows at these places, some at a time."""
        bytes_each = 24 + self.rows.nbytes // max(1, self._rows)
        for some in piece_slices(len(places), bytes_each):
            part = _HeldRows(self._schema, self._ranked_by)
            part.add(*self._at(places[some]))
            yield part

    def _at(self, places: Int64s) -> tuple[Int64s, Int64s, Bools, pa.RecordBatch]:
        slots, best, is_emitted, rows = self._whole()
        return slots.take(places), best[places], is_emitted.take(places), rows.take(pa.array(places))


def _settings(parameters: Mapping[str, Any]) -> tuple[int, dict[str, bool], bool]:
    """Return k, whether each column descends, and whether rows with equal ranks are all emitted."""
    k, ties = parameters.get("k"), parameters.get("ties", "first")
    if not isinstance(k, int) or isinstance(k, bool) or k < 1:
        raise ColumnError(f"k is how many rows of each key are emitted, at least 1; got {k!r}")
    if ties not in _TIES:
        raise ColumnError(f"ties is {' or '.join(map(repr, _TIES))}; got {ties!r}")
    return k, _directions(parameters), ties == "all"


def _directions(parameters: Mapping[str, Any]) -> dict[str, bool]:
    by, largest = parameters.get("by"), parameters.get("largest", True)
    if isinstance(by, Mapping):
        directions = dict(by)
        if "largest" in parameters:
            raise ColumnError("by says for each column whether it is ascending or descending; leave largest out")
    else:
        names = by if isinstance(by, list | tuple) else [by]
        directions = dict.fromkeys(names, _DIRECTIONS[largest]) if isinstance(largest, bool) else {}
        if len(directions) < len(names):
            directions = {}
    is_named = all(isinstance(name, str) and to in _DIRECTIONS for name, to in directions.items())
    if not directions or not is_named:
        raise ColumnError(
            "by is the column that ranks rows, a list of different columns, or a dict such as "
            f'{{"price": "descending", "ts": "ascending"}}, and largest is True or False; got {by!r}, {largest!r}'
        )
    return {name: to == "descending" for name, to in directions.items()}


def _is_before(best: Int64s, bar: Int64s, or_equal: bool) -> Bools:
    """Return which rows of numbers are before those of `bar`, the first column being the most significant."""
    before: Bools = np.full(len(best), or_equal)
    for a, b in zip(reversed(best.T), reversed(bar.T), strict=True):
        before = (a < b) | ((a == b) & before)
    return before


def _is_ranked(kind: Any) -> bool:
    is_number = pa.types.is_integer(kind) or pa.types.is_floating(kind)
    return bool(is_number or (pa.types.is_temporal(kind) and not pa.types.is_interval(kind)))
