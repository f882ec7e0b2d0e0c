"""Join: pairs of rows of two streams with equal keys, close to each other.

It is the symmetric join: a row of either side is matched against what the other side has kept, and kept itself. Kept
rows are in runs (`flux.operators.runs`), each in an order in which the partners of a batch are found at once, whatever
the number of keys and partitions. A new run is merged with the one before it when that is not much larger, so there are
few, and a row is merged about as often as the state has doubled since it came.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from flux.batch import Batch
from flux.errors import PlanError
from flux.event_time import in_unit_of
from flux.hashing import hash_rows
from flux.operator import Context, PooledOperator, Punctuation
from flux.operators.joining import Joined, times_of
from flux.operators.ordering import in_order
from flux.operators.runs import Rows, Run, Ticks, words_of
from flux.plan.sides import SIDE

__all__ = ["TWO_STREAMS", "Join", "Joined"]

TWO_STREAMS = 'Join takes two streams: write a.join(b, on="key", within=1000) instead of apply(Join)'
_PIECE_ROWS = 16_384  # Of one piece of state.
_LEAST = np.iinfo(np.int64).min
_RATIO = 3  # A run is merged with the one before it unless that is more than so many times as long.
_SAMPLED = 16  # One row in so many tells how many of a run count.
_WORTH_KEEPING = 0.75  # A run of which less than this part counts is rid of the rest when it is merged.

Ints = npt.NDArray[np.int64]
Pids = npt.NDArray[np.uint16]


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
        self._runs: list[Run] = []  # The oldest first.
        self._came = 0

    def open(self, context: Context) -> None:
        joined = context.parameters.get("joined")
        if not isinstance(joined, Joined):
            raise PlanError(TWO_STREAMS)
        self._joined = joined
        self._ticks: Ticks | None = None  # Until there is a row.
        self._far = 0  # How many rows have come that are too far for them.
        column = joined.column
        is_float = column is not None and pa.types.is_floating(joined.sides[0].field(column).type)
        self._least: Any = np.float64(-np.inf) if is_float else np.int64(_LEAST)
        # Of each partition, below which values of `when` rows are forgotten.
        self._floor: npt.NDArray[Any] = np.full(context.partitions, self._least)

    def process(self, batch: Batch) -> Batch | None:
        sides = batch[SIDE]
        left, right = (_usable(self._joined, batch, np.flatnonzero(sides == side), side) for side in (0, 1))
        place = np.concatenate([left[1], right[1]])
        if not len(place):
            return None
        new = self._run_of((left[0], right[0]), place + self._came, batch.sn.take(place), batch.partition.take(place))
        self._add(new)
        found = [self._found(new, run) for run in self._runs]
        if self._joined.column is None:
            np.maximum.at(self._floor, new.partition, new.when - self._joined.bound)
            self._forget()
        out = self._emitted(batch, new, [some for some in found if len(some.asking)])
        self._came += len(batch)
        return out

    def _run_of(self, rows: Rows, came: Ints, sn: Ints, partition: Pids) -> Run:
        joined = self._joined
        hashed = self._hashed(rows)
        when = sn if joined.column is None else np.concatenate([times_of(side.column(joined.column)) for side in rows])
        ticks = self._ticks_for(when).of(when)
        return Run.of(words_of(hashed, ticks, len(rows[0])), came, when, partition, rows)

    def _hashed(self, rows: Rows) -> npt.NDArray[np.uint64]:
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

    def _add(self, run: Run) -> None:
        runs = self._runs
        runs.append(run)
        while len(runs) > 1 and len(runs[-2]) <= _RATIO * len(runs[-1]):
            last, before = runs.pop(), runs.pop()
            some = self._counts(before, _SAMPLED)
            if np.count_nonzero(some) < _WORTH_KEEPING * len(some):
                before = before.where(self._counts(before))
            runs.append(before.followed_by(last))

    def _counts(self, run: Run, every: int = 1) -> npt.NDArray[np.bool_]:
        """Which rows of a run, or which of some of them, are not to be forgotten."""
        return np.asarray(run.when[::every] >= self._floor.take(run.partition[::every]))

    # Looking up.

    def _found(self, new: Run, run: Run) -> _Found:
        """The pairs of new rows with rows of a run that came before them, the new rows in it included."""
        assert self._ticks is not None
        asking, asked = run.candidates(new.word, self._ticks.reach)
        asking = new.at.take(asking)
        when = run.when.take(asked)
        near = self._joined.distance(new.when.take(asking), when) <= self._joined.bound
        near &= when >= self._floor.take(run.partition.take(asked))
        near &= run.came.take(asked) < new.came.take(asking)
        fits = np.flatnonzero(near)
        return _Found(run, asking.take(fits), asked.take(fits))

    def _emitted(self, batch: Batch, new: Run, found: list[_Found]) -> Batch | None:
        if not found:
            return None
        joined = self._joined
        place = np.concatenate([new.came.take(some.asking) for some in found]) - self._came
        other = np.concatenate([some.run.came.take(some.asked) for some in found])
        order = in_order([place, other])
        left, right = (_rows_of(side, new, found, order) for side in (0, 1))
        place = place.take(order)
        columns = [left.column(name) for name in joined.sides[0].names]
        columns += [right.column(name) for name in joined.taken]
        agree = _agree(joined, left, right)
        if not agree.all():
            columns, place = [column.filter(pa.array(agree)) for column in columns], place[agree]
        return batch.emit(dict(zip(joined.output.names, columns, strict=True)), place)

    def on_punctuation(self, p: Punctuation) -> None:
        if p.kind == "watermark" and p.value is not None and self._joined.is_event_time:
            assert self._joined.column is not None
            kind = self._joined.sides[0].field(self._joined.column).type
            floor = max(in_unit_of(kind, p.value) - self._joined.bound, _LEAST)
            held = slice(None) if p.partitions is None else sorted(p.partitions)
            self._floor[held] = np.maximum(self._floor[held], floor)
            self._forget()

    def _forget(self) -> None:
        """Forget runs of which no row counts; others are rid of such rows when they are merged."""
        highest = self._floor.max()
        self._runs = [
            run for run in self._runs if run.newest >= highest or run.newest >= self._floor.take(run.partitions).min()
        ]

    # State.

    def get_partition_state(self, pid: int) -> Any:
        return self._pieces(pid)

    def _pieces(self, pid: int) -> Iterator[Any]:
        """The rows as they came, in pieces that do not tell in which batches they did."""
        yield {"floor": self._floor[pid].item()}
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
        if "floor" in state:
            self._floor[pid] = state["floor"]
            return
        side = state["side"]
        rows = [_no_rows(schema) for schema in self._joined.sides]
        [rows[side]] = state["rows"].combine_chunks().to_batches()
        count = len(rows[side])
        sn = np.asarray(state["sn"]) if "sn" in state else np.zeros(count, np.int64)
        came = np.arange(self._came, self._came + count)
        self._add(self._run_of((rows[0], rows[1]), came, sn, np.full(count, pid, np.uint16)))
        self._came += count

    def drop_partition(self, pid: int) -> None:
        left = [run.where(run.partition != pid) for run in self._runs]
        self._runs = [run for run in left if len(run)]
        self._floor[pid] = self._least

    def partition_info(self) -> dict[int, int]:
        counts = np.zeros(len(self._floor), np.int64)
        for run in self._runs:
            counts += np.bincount(run.partition, minlength=len(counts))
        return {int(pid): int(counts[pid]) for pid in np.flatnonzero(counts)}


@dataclass(frozen=True, slots=True)
class _Found:
    """Pairs of new rows with rows of a run, those that rows of side 0 have found first."""

    run: Run
    asking: Ints
    asked: Ints


def _usable(joined: Joined, batch: Batch, place: Ints, side: int) -> tuple[pa.RecordBatch, Ints]:
    """The rows of a side that may have a pair, and their places in the batch."""
    names = joined.sides[side].names
    rows = pa.RecordBatch.from_arrays([batch.column(f"{side}.{name}") for name in names], names=names)
    if len(place) < len(batch):
        rows = rows.take(pa.array(place))
    needed = [*joined.keys(side), *([] if joined.column is None else [joined.column])]
    usable = np.ones(len(place), np.bool_)
    for name in dict.fromkeys(needed):
        column = rows.column(name)
        if column.null_count:
            usable &= column.is_valid().to_numpy(zero_copy_only=False)
        if name == joined.column and pa.types.is_floating(column.type):
            usable &= ~np.isnan(column.to_numpy(zero_copy_only=False))
    if not usable.all():
        rows, place = rows.filter(pa.array(usable)), place[usable]
    return rows, place


def _no_rows(schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array([], field.type) for field in schema], names=schema.names)


def _rows_of(side: int, new: Run, found: Sequence[_Found], order: Ints) -> pa.RecordBatch:
    """The rows of a side in the pairs, in this order of what was found."""
    rows, count = [new.rows[side]], len(new.rows[side])
    indices: list[Ints] = []
    for some in found:
        cut = int(np.count_nonzero(some.asking < new.left))
        if side:
            kept, own = some.asked[:cut] - some.run.left, some.asking[cut:] - new.left
        else:
            own, kept = some.asking[:cut], some.asked[cut:]
        if len(kept):
            rows.append(some.run.rows[side].take(pa.array(kept)))
        taken = np.arange(count, count + len(kept))
        indices += [taken, own] if side else [own, taken]
        count += len(kept)
    return pa.concat_batches(rows).take(pa.array(np.concatenate(indices).take(order)))


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
