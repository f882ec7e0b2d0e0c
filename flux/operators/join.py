"""Join: pairs of rows of two streams with equal keys, close to each other.

It is the symmetric join: a row of either side is matched against what the other side has kept, and kept itself. Kept
rows are in runs (`sorted_runs`), each in an order in which the partners of a batch are found at once, whatever the
number of keys and partitions. A new run is merged with the one before it when that is not much larger, so there are
few, and a row is merged about as often as the state has doubled since it came.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
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
from .join_spec import Joined, times_of
from .key_order import in_order
from .retention import NOTHING, Arrived, horizon_of
from .sorted_runs import SideRows, SortedRun, Ticks, words_of

__all__ = ["TWO_STREAMS", "Join", "Joined"]

TWO_STREAMS = 'Join takes two streams: write a.join(b, on="key", within=1000) instead of apply(Join)'
_PIECE_ROWS = 16_384  # Of one piece of state.
_RATIO = 3  # A run is merged with the one before it unless that is more than so many times as long.
_SAMPLED = 16  # One row in so many tells how many of a run count.
_WORTH_KEEPING = 0.75  # A run of which less than this part counts is rid of the rest when it is merged.


class Join(PooledOperator):
    """The symmetric window join behind `a.join(b, on=..., within=...)`.

    **Which pairs.** A row l of `a` and a row r of `b` are a pair if their keys are equal and they are close: their
    sequence numbers are at most `within` apart, if that is a number; or, with `within={column: bound}`, their values of
    the column are at most `bound` apart. Numbers count the rows of all sources as they came into the flow, with the
    watermarks among them, and a row that stems from another has its number. Keys with a null, and rows without a value
    in the column, have no pair; all NaN are equal, as they are to the exchange.

    **Where a pair comes out.** At that of its two rows which comes later in the merged input, in the order of (sn, sub,
    edge, partition); if both stem from one input row in the same way, that is the row of `b`. It takes that row's
    sequence number. The pairs of one row come in the order in which their other rows came.

    **When a row is forgotten.** With a number, when a row of its partition has come that is more than `within` behind
    it. With a column that tells the event time of both streams, when a watermark W has passed, for rows whose value is
    below W - bound; a late row, itself below W, is still matched with all that is kept. With any other column rows are
    kept until the end of the stream, because nothing says that no further row comes near them. The plan knows event
    time by ``event_time`` of sources, of `map` and `flat_map`, and of operators; it follows the column through
    `filter`, `select` and `Distinct`, and knows the ``window_end`` of a `TimeWindow`. Late rows are counted
    (`report.late`).
    """

    def __init__(self) -> None:
        self._runs: list[SortedRun] = []  # The oldest first.

    def open(self, context: Context) -> None:
        joined = context.parameters.get("joined")
        if not isinstance(joined, Joined):
            raise PlanError(TWO_STREAMS)
        self._joined = joined
        self._ticks: Ticks | None = None  # Until there is a row.
        self._far = 0  # How many rows have come that are too far for them.
        self._horizon = horizon_of(joined, context.partitions)

    def process(self, batch: Batch) -> Batch | None:
        return self.process_with_punctuations(batch, ())

    def process_with_punctuations(self, batch: Batch, punctuations: Sequence[Punctuation]) -> Batch | None:
        rows, came, has_key = self._taken(batch)
        keyed = came
        if not has_key.all():
            rows = rows[0].filter(pa.array(has_key[: len(rows[0])])), rows[1].filter(pa.array(has_key[len(rows[0]) :]))
            keyed = came.where(has_key)
        if not len(keyed.place):
            self._move(came, punctuations)
            return None
        new = self._run_of(rows, keyed.when, keyed.partition)
        self._add(new)
        floors = self._horizon.move(came, punctuations)
        asking = _Asking(new, keyed.place, None if floors is None else floors[has_key], self._runs[-1])
        found = [self._found(asking, run) for run in self._runs]
        self._forget()
        return self._emitted(batch, asking, [some for some in found if len(some.asking)])

    def _taken(self, batch: Batch) -> tuple[SideRows, Arrived, npt.NDArray[np.bool_]]:
        """The rows of each side that have a time, when they came, and which have a key: others have no pair."""
        joined, sides = self._joined, batch[SIDE]
        left, right = (_with_times(joined, batch, np.flatnonzero(sides == side), side) for side in (0, 1))
        rows, place = (left[0], right[0]), np.concatenate([left[1], right[1]])
        if joined.column is None:
            when = batch.sn.take(place)
        else:
            when = np.concatenate([times_of(side.column(joined.column)) for side in rows])
        has_key = np.concatenate([_all_valid(rows[side], joined.keys(side)) for side in (0, 1)])
        return rows, Arrived(when, batch.partition.take(place), place, batch.sn), has_key

    def on_punctuation(self, p: Punctuation) -> None:
        self._move(NOTHING, (p,))

    def _move(self, came: Arrived, punctuations: Sequence[Punctuation]) -> None:
        self._horizon.move(came, punctuations)
        self._forget()

    def _forget(self) -> None:
        """Forget runs of which no row counts; others are rid of such rows when they are merged."""
        floor = self._horizon.floor
        highest = floor.max()
        self._runs = [r for r in self._runs if r.newest >= highest or r.newest >= floor.take(r.partitions).min()]

    def _run_of(self, rows: SideRows, when: npt.NDArray[Any], partition: Pids) -> SortedRun:
        ticks = self._ticks_for(when).of(when)
        return SortedRun.of(words_of(self._hashed(rows), ticks, len(rows[0])), when, partition, rows)

    def _hashed(self, rows: SideRows) -> npt.NDArray[np.uint64]:
        """The hash of each row's key, in one go if both sides have keys of one type."""
        sides = [[rows[side].column(name) for name in self._joined.keys(side)] for side in (0, 1)]
        if all(ours.type == theirs.type for ours, theirs in zip(*sides, strict=True)):
            return hash_rows([pa.concat_arrays(both) for both in zip(*sides, strict=True)])
        return np.concatenate([hash_rows(side) for side in sides])

    def _ticks_for(self, when: npt.NDArray[Any]) -> Ticks:
        """Ticks for new rows. If these are too far for those that there are, all rows get others.

        Rows that share a tick may all be compared with each other, if they have one key: when that is more than there
        are rows to be put in order anew, it is time.
        """
        far = 0 if self._ticks is None else self._ticks.far(when)
        self._far += far
        if self._ticks is not None and self._far * far <= sum(map(len, self._runs)):
            return self._ticks
        ticks = Ticks(self._joined.bound, np.partition(when, len(when) // 2)[len(when) // 2].item())
        if self._ticks is not None and 2 * ticks.far(when) > far:
            return self._ticks  # It would do no good.
        self._ticks = ticks
        self._runs = [run.retimed(ticks) for run in self._runs]
        self._far = sum(ticks.far(run.when) for run in self._runs)
        return ticks

    def _add(self, run: SortedRun) -> None:
        runs = self._runs
        runs.append(run)
        while len(runs) > 1 and len(runs[-2]) <= _RATIO * len(runs[-1]):
            last, before = runs.pop(), runs.pop()
            some = self._counts(before, _SAMPLED)
            if np.count_nonzero(some) < _WORTH_KEEPING * len(some):
                before = before.where(self._counts(before))
            runs.append(before.followed_by(last))

    def _counts(self, run: SortedRun, every: int = 1) -> npt.NDArray[np.bool_]:
        """Which rows of a run, or which of some of them, are not to be forgotten."""
        return self._horizon.counts(run.when[::every], run.partition[::every])

    # Looking up.

    def _found(self, new: _Asking, run: SortedRun) -> _FoundPairs:
        """The pairs of new rows with rows of a run that came before them, the new rows in it included."""
        assert self._ticks is not None
        asking, asked = run.candidates(new.run.word, self._ticks.reach)
        asking = new.run.at.take(asking)
        when = run.when.take(asked)
        near = self._joined.distance(new.run.when.take(asking), when) <= self._joined.bound
        if new.floors is not None:
            near &= when >= new.floors.take(asking)
        if run is new.within:
            near &= asked < new.first_later.take(asking)
        fits = np.flatnonzero(near)
        return _FoundPairs(run, asking.take(fits), asked.take(fits))

    def _emitted(self, batch: Batch, new: _Asking, found: list[_FoundPairs]) -> Batch | None:
        if not found:
            return None
        joined = self._joined
        place = new.place.take(np.concatenate([some.asking for some in found]))
        # Older runs come first, and the rows of a side stand in each as they came.
        before = [0, *np.cumsum([len(some.run) for some in found]).tolist()]
        order = in_order([place, np.concatenate([some.asked + far for some, far in zip(found, before, strict=False)])])
        left, right = (_rows_of(side, new, found, order) for side in (0, 1))
        place = place.take(order)
        columns = [left.column(name) for name in joined.sides[0].names]
        columns += [right.column(name) for name in joined.taken]
        agree = _agree(joined, left, right)
        if not agree.all():
            columns, place = [column.filter(pa.array(agree)) for column in columns], place[agree]
        return batch.emit(dict(zip(joined.output.names, columns, strict=True)), place)

    # State.

    def get_partition_state(self, pid: int) -> Any:
        return self._pieces(pid)

    def _pieces(self, pid: int) -> Iterator[Any]:
        """The rows as they came, in pieces that do not tell in which batches they did."""
        yield {"horizon": self._horizon.get(pid)}
        own = [run.where((run.partition == pid) & self._counts(run)) for run in self._runs]
        for side in (0, 1) if own else ():
            rows = pa.concat_batches([run.rows[side] for run in own])
            when = np.concatenate([run.when[run.left :] if side else run.when[: run.left] for run in own])
            for start in range(0, len(rows), _PIECE_ROWS):
                piece = {"side": side, "rows": pa.Table.from_batches([rows.slice(start, _PIECE_ROWS)])}
                if self._joined.column is None:
                    piece["sn"] = when[start : start + _PIECE_ROWS]
                yield piece

    def install_partition_state(self, pid: int, state: Any) -> None:
        if "horizon" in state:
            self._horizon.install(pid, state["horizon"])
            return
        side = state["side"]
        rows = [_no_rows(schema) for schema in self._joined.sides]
        [rows[side]] = state["rows"].combine_chunks().to_batches()
        count = len(rows[side])
        column = self._joined.column
        when = np.asarray(state["sn"]) if column is None else times_of(rows[side].column(column))
        self._add(self._run_of((rows[0], rows[1]), when, np.full(count, pid, np.uint16)))

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
class _Asking:
    """New rows: those of `run`, their places in the batch, and the floors that were in force when they came.

    They are the last ones of each side in the run `within`.
    """

    run: SortedRun
    place: Int64s
    floors: npt.NDArray[Any] | None
    within: SortedRun

    @cached_property
    def own(self) -> Int64s:
        """Where the new rows are in `within`."""
        place = np.arange(len(self.within) - len(self.run), len(self.within))
        place[: self.run.left] -= len(self.within) - self.within.left - (len(self.run) - self.run.left)
        return place

    @cached_property
    def first_later(self) -> Int64s:
        """The first row of `within` that is of the other side than a new row, and came after it."""
        left, right = self.place[: self.run.left], self.place[self.run.left :]
        came = np.zeros(int(self.place.max()) + 1, np.int64)
        came[right] = 1
        rights = np.cumsum(came).take(left)
        came[right] = 0
        came[left] = 1
        lefts = np.cumsum(came).take(right)
        old = self.within.left - self.run.left
        return np.concatenate([rights + (len(self.within) - len(right)), lefts + old])


@dataclass(frozen=True, slots=True)
class _FoundPairs:
    """Pairs of new rows with rows of a run, those that rows of side 0 have found first."""

    run: SortedRun
    asking: Int64s
    asked: Int64s


def _with_times(joined: Joined, batch: Batch, place: Int64s, side: int) -> tuple[pa.RecordBatch, Int64s]:
    """The rows of a side that have a value in the column, if there is one, and their places in the batch."""
    names = joined.sides[side].names
    rows = pa.RecordBatch.from_arrays([batch.column(f"{side}.{name}") for name in names], names=names)
    if len(place) < len(batch):
        rows = rows.take(pa.array(place))
    if joined.column is None:
        return rows, place
    has_time = _all_valid(rows, (joined.column,))
    column = rows.column(joined.column)
    if pa.types.is_floating(column.type):
        has_time &= ~np.isnan(column.to_numpy(zero_copy_only=False))
    return (rows, place) if has_time.all() else (rows.filter(pa.array(has_time)), place[has_time])


def _all_valid(rows: pa.RecordBatch, names: Sequence[str]) -> npt.NDArray[np.bool_]:
    """Which rows have no null in these columns."""
    valid = np.ones(len(rows), np.bool_)
    for name in names:
        column = rows.column(name)
        if column.null_count:
            valid &= column.is_valid().to_numpy(zero_copy_only=False)
    return valid


def _no_rows(schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array([], field.type) for field in schema], names=schema.names)


def _rows_of(side: int, new: _Asking, found: Sequence[_FoundPairs], order: Int64s) -> pa.RecordBatch:
    """The rows of a side in the pairs, in this order of what was found: new rows, and those of runs."""
    parts: list[tuple[SortedRun, Int64s]] = []
    for some in found:
        cut = int(np.count_nonzero(some.asking < new.run.left))
        own, kept = new.own.take(some.asking), some.asked
        pairs = [(new.within, own[:cut]), (some.run, kept[cut:])]
        if side:
            pairs = [(some.run, kept[:cut] - some.run.left), (new.within, own[cut:] - new.within.left)]
        parts += pairs
    if all(run is new.within for run, _ in parts):
        return new.within.rows[side].take(pa.array(np.concatenate([rows for _, rows in parts]).take(order)))
    return pa.concat_batches([run.rows[side].take(pa.array(rows)) for run, rows in parts]).take(pa.array(order))


def _agree(joined: Joined, left: pa.RecordBatch, right: pa.RecordBatch) -> npt.NDArray[np.bool_]:
    """Which pairs have equal keys; all NaN are equal."""
    agree = np.ones(len(left), np.bool_)
    for ours, theirs in zip(joined.ours, joined.theirs, strict=True):
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
