"""Join: pairs of rows of two streams with equal keys, close to each other.

It is the symmetric join: a row of either side is matched against the kept rows of the other side, and then kept itself.
Kept rows are in sorted runs (`sorted_runs`). A run finds all partners of a batch at once, whatever the number of keys
and partitions. A new run is merged with the one before it unless that is much larger. So runs are few, and a row is
merged about as often as the state has doubled since the row arrived.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ..exchange.sides import SIDE
from ..model.batch import Batch
from ..model.operator import Context, PooledOperator, Punctuation
from ..types.array_types import Int64s, Pids
from ..types.errors import PlanError
from ..types.hashing import hash_rows
from .join_spec import JoinSpec, times_of
from .key_order import in_order
from .retention import NO_ROWS, ArrivedRows, horizon_of
from .sorted_runs import SideRows, SortedRun, Ticks, words_of

__all__ = ["TWO_STREAMS", "Join", "JoinSpec"]

TWO_STREAMS = 'Join takes two streams: write a.join(b, on="key", within=1000) instead of apply(Join)'
_PIECE_ROWS = 16_384  # In one piece of state.
_MERGE_RATIO = 3  # A run is merged with the one before it unless that is more than so many times as long.
_SAMPLE_EVERY = 16  # One row in so many is sampled to estimate how much of a run is live.
_MIN_LIVE = 0.75  # A run of which a smaller part is live loses its other rows when it is merged.


class Join(PooledOperator):
    """The symmetric window join of `a.join(b, on=..., within=...)`.

    **Which pairs.** A row of `a` and a row of `b` are a pair if their keys are equal and they are close. If `within` is
    a number, their sequence numbers are at most `within` apart. With `within={column: bound}`, their values of the
    column are at most `bound` apart. Sequence numbers count the rows of all sources as they enter the flow, with the
    watermarks among them; a row that stems from another has its number. Keys with a null, and rows without a value in
    the column, have no pair. All NaN are equal, as they are to the exchange.

    **Where a pair is emitted.** At the later of its two rows in the merged input, in the order of (sn, sub, edge,
    partition); if both stem from one input row in the same way, that is the row of `b`. The pair takes that row's
    sequence number. The pairs of one row are in the arrival order of their other rows.

    **When a row is forgotten.** With a number, when a row of its partition arrives that is more than `within` after it.
    With a column that is the event time of both streams, a watermark W forgets rows whose value is below W - bound. A
    late row, itself below W, is still matched with all kept rows, and is counted (`report.late`). With any other column
    rows are kept until the end of the stream, because later rows may still be near them. The plan knows event time by
    ``event_time`` of sources, of `map` and `flat_map`, and of operators. It follows the column through `filter`,
    `select` and `Distinct`, and knows the ``window_end`` of a `TimeWindow` or `SessionWindow`. With `within=None` every
    row is kept.

    `OuterJoin` also emits rows that are in no pair, for ``how="left"``, ``"right"`` and ``"outer"``.
    """

    changeable = ()

    def __init__(self) -> None:
        self._runs: list[SortedRun] = []  # The oldest first.

    def open(self, context: Context) -> None:
        spec = context.parameters.get("joined")
        if not isinstance(spec, JoinSpec):
            raise PlanError(TWO_STREAMS)
        self._spec = spec
        self._ticks: Ticks | None = None  # None until the first row.
        self._far = 0  # The number of rows that are too far for the ticks.
        self._horizon = horizon_of(spec, context.partitions)

    def process(self, batch: Batch) -> Batch | None:
        return self.process_with_punctuations(batch, ())

    def process_with_punctuations(self, batch: Batch, punctuations: Sequence[Punctuation]) -> Batch | None:
        rows, arrived, has_key = self._split_sides(batch)
        keyed = arrived
        if not has_key.all():
            rows = rows[0].filter(pa.array(has_key[: len(rows[0])])), rows[1].filter(pa.array(has_key[len(rows[0]) :]))
            keyed = arrived.where(has_key)
        if not len(keyed.place):
            self._advance(arrived, punctuations)
            return None
        new = self._run_of(rows, keyed.when, keyed.partition)
        self._add(new)
        floors = self._horizon.advance(arrived, punctuations)
        probes = NewRows(new, keyed.place, None if floors is None else floors[has_key], self._runs[-1])
        found = [self._find_pairs(probes, run) for run in self._runs]
        self._forget()
        return self._emit(batch, probes, [some for some in found if len(some.new)])

    def _split_sides(self, batch: Batch) -> tuple[SideRows, ArrivedRows, npt.NDArray[np.bool_]]:
        """Return the rows of each side that have a time, their arrival, and which have a key: others have no pair."""
        spec, sides = self._spec, batch[SIDE]
        left, right = (_with_times(spec, batch, np.flatnonzero(sides == side), side) for side in (0, 1))
        rows, place = (left[0], right[0]), np.concatenate([left[1], right[1]])
        if spec.column is None:
            when = batch.sn.take(place)
        else:
            when = np.concatenate([times_of(side.column(spec.column)) for side in rows])
        has_key = np.concatenate([_all_valid(rows[side], spec.keys(side)) for side in (0, 1)])
        return rows, ArrivedRows(when, batch.partition.take(place), place, batch.sn), has_key

    def on_punctuation(self, p: Punctuation) -> None:
        self._advance(NO_ROWS, (p,))

    def _advance(self, arrived: ArrivedRows, punctuations: Sequence[Punctuation]) -> None:
        self._horizon.advance(arrived, punctuations)
        self._forget()

    def _forget(self) -> None:
        """Forget runs without a live row; other runs lose their dead rows when they are merged."""
        floor = self._horizon.floor
        highest = floor.max()
        self._runs = [r for r in self._runs if r.newest >= highest or r.newest >= floor.take(r.partitions).min()]

    def _run_of(self, rows: SideRows, when: npt.NDArray[Any], partition: Pids) -> SortedRun:
        ticks = self._ticks_for(when).of(when)
        return SortedRun.of(words_of(self._hash_keys(rows), ticks, len(rows[0])), when, partition, rows)

    def _hash_keys(self, rows: SideRows) -> npt.NDArray[np.uint64]:
        """Return the hash of each row's key, in one call if both sides have keys of one type."""
        sides = [[rows[side].column(name) for name in self._spec.keys(side)] for side in (0, 1)]
        if all(ours.type == theirs.type for ours, theirs in zip(*sides, strict=True)):
            return hash_rows([pa.concat_arrays(both) for both in zip(*sides, strict=True)])
        return np.concatenate([hash_rows(side) for side in sides])

    def _ticks_for(self, when: npt.NDArray[Any]) -> Ticks:
        """Return ticks for new rows; if these are too far for the present ticks, all rows get other ticks.

        Rows of one key that share a tick may all be compared with each other. Other ticks are worth it when that would
        be more comparisons than there are rows to sort again.
        """
        far = 0 if self._ticks is None else self._ticks.far(when)
        self._far += far
        if self._ticks is not None and self._far * far <= sum(map(len, self._runs)):
            return self._ticks
        ticks = Ticks(self._spec.bound, np.partition(when, len(when) // 2)[len(when) // 2].item())
        if self._ticks is not None and 2 * ticks.far(when) > far:
            return self._ticks  # Other ticks would not help.
        self._ticks = ticks
        self._runs = [run.with_ticks(ticks) for run in self._runs]
        self._far = sum(ticks.far(run.when) for run in self._runs)
        return ticks

    def _add(self, run: SortedRun) -> None:
        runs = self._runs
        runs.append(run)
        while len(runs) > 1 and len(runs[-2]) <= _MERGE_RATIO * len(runs[-1]):
            last, before = runs.pop(), runs.pop()
            some = self._is_live(before, _SAMPLE_EVERY)
            if np.count_nonzero(some) < _MIN_LIVE * len(some):
                before = before.where(self._is_live(before))
            runs.append(before.merge(last))

    def _is_live(self, run: SortedRun, every: int = 1) -> npt.NDArray[np.bool_]:
        """Return which rows of a run, or of a sample of it, must be kept."""
        return self._horizon.is_live(run.when[::every], run.partition[::every])

    # Lookup.

    def _find_pairs(self, new: NewRows, run: SortedRun) -> FoundPairs:
        """Return the pairs of new rows with rows of a run that arrived before them; new rows may be in the run."""
        assert self._ticks is not None
        new_rows, kept_rows = run.candidates(new.run.word, self._ticks.reach)
        new_rows = new.run.at.take(new_rows)
        when = run.when.take(kept_rows)
        near = self._spec.distance(new.run.when.take(new_rows), when) <= self._spec.bound
        if new.floors is not None:
            near &= when >= new.floors.take(new_rows)
        if run is new.within:
            near &= kept_rows < new.first_later.take(new_rows)
        fits = np.flatnonzero(near)
        return FoundPairs(run, new_rows.take(fits), kept_rows.take(fits))

    def _emit(self, batch: Batch, new: NewRows, found: list[FoundPairs]) -> Batch | None:
        if not found:
            return None
        left, right, place = self._pairs(new, found)
        return batch.emit(self._columns(left, right), place)

    def _columns(self, left: pa.RecordBatch, right: pa.RecordBatch) -> dict[str, Any]:
        """Return the columns of pairs."""
        spec = self._spec
        columns = [left.column(name) for name in spec.sides[0].names]
        columns += [right.column(name) for name in spec.taken]
        return dict(zip(spec.output.names, columns, strict=True))

    def _pairs(self, new: NewRows, found: list[FoundPairs]) -> tuple[pa.RecordBatch, pa.RecordBatch, Int64s]:
        """Return the rows of both sides, and where each pair is emitted, in the order of emission."""
        place = new.place.take(np.concatenate([some.new for some in found]))
        # Older runs come first, and in each run the rows of a side are in arrival order.
        before = [0, *np.cumsum([len(some.run) for some in found]).tolist()]
        order = in_order([place, np.concatenate([some.kept + far for some, far in zip(found, before, strict=False)])])
        left, right = (_rows_of(side, new, found, order) for side in (0, 1))
        place = place.take(order)
        agree = _agree(self._spec, left, right)
        if not agree.all():
            left, right, place = left.filter(pa.array(agree)), right.filter(pa.array(agree)), place[agree]
        return left, right, place

    # State.

    def get_partition_state(self, pid: int) -> Any:
        return self._pieces(pid)

    def _pieces(self, pid: int) -> Iterator[Any]:
        """Yield the rows in arrival order, in pieces that do not depend on how they were batched."""
        yield {"horizon": self._horizon.get(pid)}
        own = [run.where((run.partition == pid) & self._is_live(run)) for run in self._runs]
        for side in (0, 1) if own else ():
            rows = pa.concat_batches([run.rows[side] for run in own])
            when = np.concatenate([run.when[run.left :] if side else run.when[: run.left] for run in own])
            for start in range(0, len(rows), _PIECE_ROWS):
                piece = {"side": side, **self._piece_of(rows.slice(start, _PIECE_ROWS))}
                if self._spec.column is None:
                    piece["sn"] = when[start : start + _PIECE_ROWS]
                yield piece

    def _piece_of(self, rows: pa.RecordBatch) -> dict[str, Any]:
        """Return rows in the form that is sent to another site."""
        return {"rows": pa.Table.from_batches([rows])}

    def _installed_rows(self, state: Any) -> pa.RecordBatch:
        """Return the rows of what `_piece_of` returned on another site."""
        return state["rows"].combine_chunks().to_batches()[0]

    def _no_rows(self, side: int) -> pa.RecordBatch:
        schema = self._spec.sides[side]
        return pa.RecordBatch.from_arrays([pa.array([], field.type) for field in schema], names=schema.names)

    def install_partition_state(self, pid: int, state: Any) -> None:
        if "horizon" in state:
            self._horizon.install(pid, state["horizon"])
            return
        side = state["side"]
        rows = [self._no_rows(0), self._no_rows(1)]
        rows[side] = self._installed_rows(state)
        count = len(rows[side])
        column = self._spec.column
        when = np.asarray(state["sn"]) if column is None else times_of(rows[side].column(column))
        self._add(self._run_of((rows[0], rows[1]), when, np.full(count, pid, np.uint16)))

    @classmethod
    def waits_for_watermarks(cls, parameters: Mapping[str, Any]) -> bool:
        """Return whether rows are kept until watermarks have passed their bound."""
        return parameters["joined"].column is not None

    def take_late(self) -> dict[int, int]:
        return self._horizon.take_late()

    def drop_partition(self, pid: int) -> None:
        left = [run.where(run.partition != pid) for run in self._runs]
        self._runs = [run for run in left if len(run)]
        self._horizon.drop(pid)

    def partition_info(self) -> dict[int, int]:
        counts = np.zeros(len(self._horizon.floor), np.int64)
        for run in self._runs:
            counts += np.bincount(run.partition, minlength=len(counts))
        return {int(pid): int(counts[pid]) for pid in np.flatnonzero(counts)}


@dataclass(frozen=True)
class NewRows:
    """New rows: those of `run`, their places in the batch, and the floors in force when they arrived.

    They are the last ones of each side in the run `within`.
    """

    run: SortedRun
    place: Int64s
    floors: npt.NDArray[Any] | None
    within: SortedRun

    @cached_property
    def own(self) -> Int64s:
        """The places of the new rows in `within`."""
        place = np.arange(len(self.within) - len(self.run), len(self.within))
        place[: self.run.left] -= len(self.within) - self.within.left - (len(self.run) - self.run.left)
        return place

    @cached_property
    def first_later(self) -> Int64s:
        """For each new row, the first row of the other side in `within` that arrived after it."""
        left, right = self.place[: self.run.left], self.place[self.run.left :]
        flags = np.zeros(int(self.place.max()) + 1, np.int64)
        flags[right] = 1
        rights = np.cumsum(flags).take(left)
        flags[right] = 0
        flags[left] = 1
        lefts = np.cumsum(flags).take(right)
        old = self.within.left - self.run.left
        return np.concatenate([rights + (len(self.within) - len(right)), lefts + old])


@dataclass(frozen=True, slots=True)
class FoundPairs:
    """Pairs of new rows with rows of a run; the pairs of new rows of side 0 come first."""

    run: SortedRun
    new: Int64s
    kept: Int64s


def _with_times(spec: JoinSpec, batch: Batch, place: Int64s, side: int) -> tuple[pa.RecordBatch, Int64s]:
    """Return the rows of a side that have a value in the column, if there is one, and their places in the batch."""
    names = spec.sides[side].names
    rows = pa.RecordBatch.from_arrays([batch.column(f"{side}.{name}") for name in names], names=names)
    if len(place) < len(batch):
        rows = rows.take(pa.array(place))
    if spec.column is None:
        return rows, place
    has_time = _all_valid(rows, (spec.column,))
    column = rows.column(spec.column)
    if pa.types.is_floating(column.type):
        has_time &= ~np.isnan(column.to_numpy(zero_copy_only=False))
    return (rows, place) if has_time.all() else (rows.filter(pa.array(has_time)), place[has_time])


def _all_valid(rows: pa.RecordBatch, names: Sequence[str]) -> npt.NDArray[np.bool_]:
    """Return which rows have no null in these columns."""
    valid = np.ones(len(rows), np.bool_)
    for name in names:
        column = rows.column(name)
        if column.null_count:
            valid &= column.is_valid().to_numpy(zero_copy_only=False)
    return valid


def _rows_of(side: int, new: NewRows, found: Sequence[FoundPairs], order: Int64s) -> pa.RecordBatch:
    """Return the rows of a side in the found pairs, new rows and those of runs, in this order."""
    parts: list[tuple[SortedRun, Int64s]] = []
    for some in found:
        cut = int(np.count_nonzero(some.new < new.run.left))
        own, kept = new.own.take(some.new), some.kept
        pairs = [(new.within, own[:cut]), (some.run, kept[cut:])]
        if side:
            pairs = [(some.run, kept[:cut] - some.run.left), (new.within, own[cut:] - new.within.left)]
        parts += pairs
    if all(run is new.within for run, _ in parts):
        return new.within.rows[side].take(pa.array(np.concatenate([rows for _, rows in parts]).take(order)))
    return pa.concat_batches([run.rows[side].take(pa.array(rows)) for run, rows in parts]).take(pa.array(order))


def _agree(spec: JoinSpec, left: pa.RecordBatch, right: pa.RecordBatch) -> npt.NDArray[np.bool_]:
    """Return which pairs have equal keys; all NaN are equal."""
    agree = np.ones(len(left), np.bool_)
    for ours, theirs in zip(spec.ours, spec.theirs, strict=True):
        a, b = left.column(ours), right.column(theirs)
        if not pa.types.is_integer(a.type) and not pa.types.is_floating(a.type):
            agree &= pc.equal(a, b).to_numpy(zero_copy_only=False)
            continue
        # Numpy compares signed and unsigned integers as the numbers they are.
        left_numbers, right_numbers = a.to_numpy(), b.to_numpy()
        equal = left_numbers == right_numbers
        if pa.types.is_floating(a.type):
            equal |= np.isnan(left_numbers) & np.isnan(right_numbers)
        agree &= equal
    return agree
