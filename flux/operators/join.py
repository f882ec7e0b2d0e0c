"""Join: pairs of rows of two streams with equal keys, close to each other.

It is the symmetric join: a row of either side is matched against what the other side has kept, and kept itself. The
kept rows of a side are *runs*, each sorted by the hash of the key: a batch looks up all its keys in a run with one
binary search for each, whatever the number of keys and partitions. A new run is merged with the one before it when that
is not much larger, so there are few, and a row is merged about as often as the state has doubled since it came. Hashes
only find candidates; where two keys may share one, the keys themselves are compared.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Self

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
from flux.plan.sides import SIDE

__all__ = ["Join", "Joined"]

_PIECE_ROWS = 16_384  # Of one piece of state.
_LEAST = np.iinfo(np.int64).min

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class _Run:
    """Rows of one side, in the order of their hashes and, among equals, as they came."""

    hashed: npt.NDArray[np.uint64]
    sn: Ints
    when: npt.NDArray[Any]  # The column of times; with a bound on rows, the sequence numbers.
    partition: npt.NDArray[np.uint16]
    rows: pa.RecordBatch

    def __len__(self) -> int:
        return len(self.hashed)

    def take(self, indices: Ints) -> _Run:
        return _Run(
            self.hashed[indices],
            self.sn[indices],
            self.when[indices],
            self.partition[indices],
            self.rows.take(pa.array(indices)),
        )

    def where(self, mask: npt.NDArray[np.bool_]) -> _Run:
        return self if mask.all() else self.take(np.flatnonzero(mask))

    @staticmethod
    def merged(runs: list[_Run]) -> _Run:
        """One run out of several, the oldest first."""
        whole = _Run(
            np.concatenate([run.hashed for run in runs]),
            np.concatenate([run.sn for run in runs]),
            np.concatenate([run.when for run in runs]),
            np.concatenate([run.partition for run in runs]),
            pa.concat_batches([run.rows for run in runs]),
        )
        return whole.take(np.argsort(whole.hashed, kind="stable"))  # Runs that are sorted, it only merges.


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
    time by the sources' ``event_time="ts"``, and follows the column through `filter` and `select`, renamed or not; what
    comes out of `map`, `flat_map` and operators it does not know.
    """

    def __init__(self) -> None:
        self._runs: tuple[list[_Run], list[_Run]] = ([], [])  # Of each side, the oldest first.

    def open(self, context: Context) -> None:
        joined = context.parameters.get("joined")
        if not isinstance(joined, Joined):
            raise PlanError('Join takes two streams: write a.join(b, on="key", within=1000) instead of apply(Join)')
        self._joined = joined
        column = joined.column
        is_float = column is not None and pa.types.is_floating(joined.sides[0].field(column).type)
        self._least: Any = np.float64(-np.inf) if is_float else np.int64(_LEAST)
        # Of each partition, below which values of `when` rows are forgotten.
        self._floor: npt.NDArray[Any] = np.full(context.partitions, self._least)

    def process(self, batch: Batch) -> Batch | None:
        sides = batch[SIDE]
        news = [_News.of(self._joined, batch, np.flatnonzero(sides == side), side) for side in (0, 1)]
        found: list[_Pairs] = []
        for probe, others in ((news[0], news[1]), (news[1], news[0])):
            if not len(probe.run):
                continue
            for run in self._runs[others.side]:
                found.append(self._pairs(probe, run, None))
            found.append(self._pairs(probe, others.run, others.place))
        for new in news:
            self._keep(new)
        return self._emitted(batch, [pairs for pairs in found if len(pairs.place)])

    def _keep(self, new: _News) -> None:
        if not len(new.run):
            return
        if self._joined.rows is not None:
            np.maximum.at(self._floor, new.run.partition, new.run.sn - self._joined.rows)
        self._add(new.side, new.run)

    def _add(self, side: int, run: _Run) -> None:
        runs = self._runs[side]
        runs.append(run)
        while len(runs) > 1 and len(runs[-2]) <= 2 * len(runs[-1]):
            last = runs.pop()
            runs[-1] = _Run.merged([self._pruned(runs[-1]), self._pruned(last)])
        if not len(runs[-1]):
            runs.pop()

    def _pruned(self, run: _Run) -> _Run:
        return run.where(run.when >= self._floor[run.partition])

    # Looking up.

    def _pairs(self, probe: _News, run: _Run, place: Ints | None) -> _Pairs:
        """The pairs of new rows with rows of a run; with a `place`, these are new too, and only earlier ones count."""
        first = np.searchsorted(run.hashed, probe.run.hashed, "left")
        count = np.searchsorted(run.hashed, probe.run.hashed, "right") - first
        asking = np.repeat(np.arange(len(probe.run)), count)
        asked = np.arange(len(asking)) - np.repeat(np.cumsum(count) - count, count) + np.repeat(first, count)
        fits = self._is_near(probe.run, asking, run, asked)
        if place is not None:
            fits &= place[asked] < probe.place[asking]
        asking, asked = asking[fits], asked[fits]
        if len(asking) and not self._joined.hash_is_exact:
            same = self._have_equal_keys(probe, asking, run, asked)
            asking, asked = asking[same], asked[same]
        mine, theirs = probe.run.rows.take(pa.array(asking)), run.rows.take(pa.array(asked))
        left, right = (theirs, mine) if probe.side else (mine, theirs)
        return _Pairs(probe.place[asking], left, right)

    def _is_near(self, probe: _Run, asking: Ints, run: _Run, asked: Ints) -> npt.NDArray[np.bool_]:
        joined = self._joined
        if joined.rows is not None:
            return np.asarray(probe.sn[asking] - run.sn[asked] <= joined.rows)
        near = joined.distance(probe.when[asking], run.when[asked]) <= joined.bound
        return np.asarray(near & (run.when[asked] >= self._floor[run.partition[asked]]))

    def _have_equal_keys(self, probe: _News, asking: Ints, run: _Run, asked: Ints) -> npt.NDArray[np.bool_]:
        same = np.ones(len(asking), np.bool_)
        for ours, theirs in zip(self._joined.keys(probe.side), self._joined.keys(1 - probe.side), strict=True):
            a, b = probe.run.rows.column(ours).take(pa.array(asking)), run.rows.column(theirs).take(pa.array(asked))
            if a.type != b.type:  # Integers: numpy compares signed and unsigned ones as the numbers they are.
                same &= a.to_numpy(zero_copy_only=False) == b.to_numpy(zero_copy_only=False)
                continue
            equal = pc.equal(a, b)
            if pa.types.is_floating(a.type):
                equal = pc.or_(equal, pc.and_(pc.is_nan(a), pc.is_nan(b)))
            same &= equal.to_numpy(zero_copy_only=False)
        return same

    def _emitted(self, batch: Batch, found: list[_Pairs]) -> Batch | None:
        if not found:
            return None
        place = np.concatenate([pairs.place for pairs in found])
        # What is found of one row is in order: the runs are, and in each of them its equals are.
        order = np.argsort(place, kind="stable")
        left, right = (pa.concat_batches(parts) for parts in zip(*((p.left, p.right) for p in found), strict=True))
        joined, indices = self._joined, pa.array(order)
        columns = [left.column(name) for name in joined.sides[0].names]
        columns += [right.column(name) for name in joined.taken]
        made = {name: column.take(indices) for name, column in zip(joined.output.names, columns, strict=True)}
        return batch.emit(made, place[order])

    def on_punctuation(self, p: Punctuation) -> None:
        if p.kind == "watermark" and p.value is not None and self._joined.is_event_time:
            assert self._joined.column is not None
            kind = self._joined.sides[0].field(self._joined.column).type
            floor = max(in_unit_of(kind, p.value) - self._joined.bound, _LEAST)
            held = slice(None) if p.partitions is None else sorted(p.partitions)
            self._floor[held] = np.maximum(self._floor[held], floor)

    # State.

    def get_partition_state(self, pid: int) -> Any:
        return self._pieces(pid)

    def _pieces(self, pid: int) -> Iterator[Any]:
        yield {"floor": self._floor[pid].item()}
        for side in (0, 1):
            own = [run.take(np.flatnonzero(run.partition == pid)) for run in self._runs[side]]
            own = [self._pruned(run) for run in own if len(run)]
            if not own:
                continue
            whole = _Run.merged(own)
            for start in range(0, len(whole), _PIECE_ROWS):
                rows = pa.Table.from_batches([whole.rows.slice(start, _PIECE_ROWS)])
                yield {"side": side, "rows": rows, "sn": whole.sn[start : start + _PIECE_ROWS]}

    def install_partition_state(self, pid: int, state: Any) -> None:
        if "floor" in state:
            self._floor[pid] = state["floor"]
            return
        rows = state["rows"].combine_chunks().to_batches()[0]
        side, partition = state["side"], np.full(len(rows), pid, np.uint16)
        run, _ = _run_of(self._joined, rows, np.asarray(state["sn"]), partition, side)
        self._add(side, run)

    def drop_partition(self, pid: int) -> None:
        for runs in self._runs:
            left = [run.where(run.partition != pid) for run in runs]
            runs[:] = [run for run in left if len(run)]
        self._floor[pid] = self._least

    def partition_info(self) -> dict[int, int]:
        counts = np.zeros(len(self._floor), np.int64)
        for runs in self._runs:
            for run in runs:
                counts += np.bincount(run.partition, minlength=len(counts))
        return {int(pid): int(counts[pid]) for pid in np.flatnonzero(counts)}


@dataclass(frozen=True, slots=True)
class _News:
    """The rows of one side in a batch that may have a pair, and their places in the batch."""

    side: int
    place: Ints
    run: _Run

    @classmethod
    def of(cls, joined: Joined, batch: Batch, place: Ints, side: int) -> Self:
        names = joined.sides[side].names
        indices = pa.array(place)
        columns = [batch.column(f"{side}.{name}").take(indices) for name in names]
        rows = pa.RecordBatch.from_arrays(columns, names=names)
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
        run, order = _run_of(joined, rows, batch.sn[place], batch.partition[place], side)
        return cls(side, place[order], run)


@dataclass(frozen=True, slots=True)
class _Pairs:
    """Pairs: the place of the row at which each comes out, and both rows."""

    place: Ints
    left: pa.RecordBatch
    right: pa.RecordBatch


def _run_of(
    joined: Joined, rows: pa.RecordBatch, sn: Ints, partition: npt.NDArray[np.uint16], side: int
) -> tuple[_Run, Ints]:
    """A run of rows, and which of them each was. Sorted, they are also looked up faster: neighbours were just read."""
    hashed = hash_rows([rows.column(name) for name in joined.keys(side)])
    when = sn if joined.column is None else times_of(rows.column(joined.column)).to_numpy(zero_copy_only=False)
    order = np.argsort(hashed, kind="stable")
    return _Run(hashed, sn, when, partition, rows).take(order), order
