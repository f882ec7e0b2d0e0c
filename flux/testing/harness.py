"""Playing: one operator, run in this process over the same input in different ways.

What comes in is fixed: numbered rows and punctuations. A *way* is what a run of Flux would decide: where batches are
cut, which partitions share a site, and when a partition goes to another one, as the bytes that would go over the wire.
The output must not depend on it.

While it runs, the input is watched, which nobody may write to, and so is what was emitted: that is on its way, and who
emitted it must not write to it either.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from types import GeneratorType
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ..hosting import Hosted, host
from ..model.batch import Batch
from ..model.operator import OperatorStep, output_of
from ..model.punctuation import Punctuation
from ..types.arrays import to_numpy
from ..types.errors import FluxError, PlanError, StateError
from ..types.hashing import partition_of
from ..types.normalize import normalize_batch
from ..wire.frames import BadFrame
from ..wire.state_types import TypedState
from ..wire.transfer import Arrival, items

__all__ = ["Begun", "GivenInput", "InputMutated", "Output", "Subject", "Way", "play", "play_and_take", "ship"]

_CHUNK_BYTES = 1_000  # Small, so that what moves is cut everywhere.
_PLACE = (1, 0)  # The stage and step that the operator would be in a flow.


class InputMutated(FluxError):
    """An operator wrote to what is not its own."""


@dataclass(frozen=True)
class Subject:
    """The operator, and where it stands."""

    factory: Callable[[], Any]
    key: tuple[str, ...]
    parameters: dict[str, Any]
    partitions: int
    name: str
    form: str = "Operator"

    def step(self, schema: Any) -> OperatorStep:
        # No rows came, and nobody has said what they are like: then an operator is not asked what it makes of them.
        output = output_of(self.factory, self.parameters, self.key, schema if schema.names else None)
        return OperatorStep(self.factory, self.parameters, self.name, self.key, self.partitions, 0, output)


@dataclass(frozen=True)
class GivenInput:
    """The input: rows and punctuations, each with the number of its place."""

    rows: pa.RecordBatch
    sn: npt.NDArray[np.int64]
    punctuations: tuple[Punctuation, ...]

    @classmethod
    def of(cls, events: Sequence[Any], schema: Any = None) -> GivenInput:
        """Dicts, which are rows, and punctuations, in order; they are numbered from 1."""
        rows = [event for event in events if not isinstance(event, Punctuation)]
        numbers = [i for i, event in enumerate(events, 1) if not isinstance(event, Punctuation)]
        punctuations = [replace(e, sn=i) for i, e in enumerate(events, 1) if isinstance(e, Punctuation)]
        return cls(normalize_batch(_batch_of(rows, schema)), np.array(numbers, np.int64), tuple(punctuations))

    def partition(self, key: tuple[str, ...], partitions: int) -> npt.NDArray[np.uint16]:
        if not len(self.sn):
            return np.zeros(0, np.uint16)
        return partition_of([self.rows.column(name) for name in key], partitions)


def _batch_of(rows: list[dict[str, Any]], schema: Any) -> pa.RecordBatch:
    if not rows and schema is None:
        return pa.record_batch({})
    try:
        return pa.RecordBatch.from_pylist(rows, schema)
    except (pa.ArrowException, OverflowError, TypeError, ValueError):
        names = list(rows[0]) if schema is None else schema.names
        for name in names:
            _check_column(name, [row.get(name) for row in rows], None if schema is None else schema.field(name).type)
        raise


def _check_column(name: str, values: list[Any], kind: Any) -> None:
    try:
        pa.array(values, kind)
    except (pa.ArrowException, OverflowError, TypeError, ValueError) as error:
        kinds = ", ".join(sorted({type(value).__name__ for value in values}))
        raise PlanError(
            f"check_operator: the rows that were drawn make no column {name!r}: values of {kinds} came, and Arrow says "
            f"{error}. Draw values of one type that fit, or say schema=pyarrow.schema({{{name!r}: ...}})"
        ) from error


@dataclass(frozen=True)
class Way:
    """How it is run. Batches are cut behind the numbers in `cuts`, and where a punctuation stands in any case, unless
    the operator takes rows and punctuations together.

    `moves` are (number, partition): behind that number the partition goes to the other of two sites. With `sites` of 2,
    half of the partitions are on the second from the start. With `reads` the state is taken and thrown away.
    """

    cuts: frozenset[int] = frozenset()
    moves: tuple[tuple[int, int], ...] = ()
    sites: int = 1
    reads: bool = False


@dataclass(frozen=True)
class Output:
    """A row that came out: in which place it stands, and its values."""

    sn: int
    sub: int
    partition: int
    values: dict[str, Any]

    def text(self) -> str:
        """All of it, so that values that differ in anything differ here; a float has all its digits."""
        return repr(self)


@dataclass(frozen=True)
class Begun:
    """How far the input has been played, and the states of all partitions there, as bytes."""

    number: int
    states: dict[int, bytes]


def play(subject: Subject, given: GivenInput, way: Way, begun: Begun | None = None) -> list[Output]:
    """Run the operator over the input in one way; everything that it emits, in order. Or go on with what was begun."""
    return _Player(subject, given, way, begun).play()


def play_and_take(subject: Subject, given: GivenInput, number: int) -> tuple[list[Output], Begun]:
    """The same, in as large batches as can be, and the states as they are behind a number."""
    player = _Player(subject, given, Way(cuts=frozenset({number})))
    return player.play(number), player.taken


class _Player:
    taken = Begun(0, {})

    def __init__(self, subject: Subject, given: GivenInput, way: Way, begun: Begun | None = None) -> None:
        self._given, self._way = given, way
        step = subject.step(given.rows.schema)
        self._taken_in: list[_WatchedBatch] = []
        self._sites = [_watched(host(step), self._taken_in) for _ in range(2)]
        self._at = {pid: pid % way.sites for pid in range(subject.partitions)}
        self._partition = given.partition(subject.key, subject.partitions)
        self._emitted: list[tuple[Batch, bytes]] = []
        self._begun = begun

    def play(self, taken_behind: int | None = None) -> list[Output]:
        """Everything that comes out; the states of all partitions behind a number are kept in `taken`."""
        self._open()
        last = int(max([*self._given.sn[-1:], *(mark.sn for mark in self._given.punctuations)], default=0))
        ends = {*self._way.cuts, *(number for number, _ in self._way.moves), last}
        if not self._sites[0].takes_punctuations:
            ends |= {end for mark in self._given.punctuations for end in (mark.sn - 1, mark.sn)}
        after = 0 if self._begun is None else self._begun.number
        for upto in sorted(ends):
            if upto <= after:
                continue
            self._work(after, upto)
            for number, pid in self._way.moves:
                if number == upto:
                    self._move(pid)
            if upto == taken_behind:
                self.taken = Begun(upto, {pid: _state(self._sites[at], pid) for pid, at in self._at.items()})
            after = upto
        outputs = list(self._outputs())
        for site in self._sites:
            site.close()
        return outputs

    def _open(self) -> None:
        for number, site in enumerate(self._sites):
            site.open([pid for pid, at in self._at.items() if at == number and self._begun is None])
        for pid, state in ({} if self._begun is None else self._begun.states).items():
            _install(self._sites[self._at[pid]], pid, state)

    def _work(self, after: int, upto: int) -> None:
        punctuations = [mark for mark in self._given.punctuations if after < mark.sn <= upto]
        start, stop = np.searchsorted(self._given.sn, (after, upto), side="right")
        held = np.array([self._at[int(pid)] for pid in self._partition[start:stop]], np.int64)
        for number, site in enumerate(self._sites):
            chosen = start + np.flatnonzero(held == number)
            rows = None
            if len(chosen):
                arrow = _taken(self._given.rows, chosen)
                rows = Batch(arrow, self._given.sn[chosen], None, self._partition[chosen])
            here = frozenset(pid for pid, at in self._at.items() if at == number)
            if here:
                self._keep(site.work(rows, [replace(mark, partitions=here) for mark in punctuations]))

    def _move(self, pid: int) -> None:
        old = self._at[pid]
        if self._way.reads:
            _state(self._sites[old], pid)
            return
        ship(self._sites[old], pid, self._sites[1 - old])
        self._sites[old].drop_partition(pid)
        self._at[pid] = 1 - old

    def _keep(self, emitted: Batch | None) -> None:
        if emitted is not None:
            self._emitted.append((emitted, _bytes_of(emitted.arrow)))

    def _outputs(self) -> Iterator[Output]:
        for given in self._taken_in:
            given.check(f"the input of row {given.rows.sn[0]} was kept, and written to when it had been processed")
        for emitted, as_it_was in self._emitted:
            if _bytes_of(emitted.arrow) != as_it_was:
                raise InputMutated(
                    f"what was emitted for row {emitted.sn[0]} was written to afterwards, when it was on its way: it "
                    f"now says {emitted.arrow.to_pylist()[:3]}. Emit a copy of an array that you go on writing to"
                )
        found = [output for emitted, _ in self._emitted for output in _rows_of(emitted)]
        yield from sorted(found, key=lambda output: (output.sn, output.sub, output.partition))


def _taken(rows: pa.RecordBatch, chosen: npt.NDArray[np.int64]) -> pa.RecordBatch:
    """Rows in memory of their own, which can be written to, as that of rows that were merged.

    Where there is a row before the first of them, it is in that memory too: batches of a run are slices of others.
    """
    before = chosen[:1] - 1
    if before[0] < 0:
        return pc.take(rows, pa.array(chosen))
    return pc.take(rows, pa.array(np.concatenate([before, chosen]))).slice(1)


def _rows_of(emitted: Batch) -> Iterator[Output]:
    sub = np.zeros(len(emitted), np.uint64) if emitted.sub is None else emitted.sub
    hidden = zip(emitted.sn.tolist(), sub.tolist(), emitted.partition.tolist(), strict=True)
    for (sn, place, pid), values in zip(hidden, emitted.arrow.to_pylist(), strict=True):
        yield Output(sn, place, pid, values)


def _bytes_of(arrow: Any) -> bytes:
    """What is in a batch now."""
    copied: bytes = arrow.serialize().to_pybytes()
    return copied


# --- a partition goes from one site to another ------------------------------------------------------------


def ship(donor: Hosted, pid: int, receiver: Hosted) -> None:
    """Give a copy of a partition to another site, as the bytes that would go over the wire."""
    _install(receiver, pid, _state(donor, pid))


def _state(donor: Hosted, pid: int) -> bytes:
    """The state of a partition as bytes."""
    donor.init_trans(pid)
    state = donor.get_partition_state(pid)
    pieces: Iterable[Any] = state if isinstance(state, GeneratorType) else [state]
    spoken = (TypedState(*_PLACE, piece, donor.words) for piece in pieces)
    whole = b"".join(bytes(part) for parts in items(spoken, f"step {donor.step.name!r}") for part in parts)
    donor.end_trans(pid)
    return whole


def _install(receiver: Hosted, pid: int, state: bytes) -> None:
    receiver.init_trans(pid)
    arrival = Arrival()
    for start in range(0, len(state), _CHUNK_BYTES):
        arrival.take(state[start : start + _CHUNK_BYTES])
    try:
        for piece in arrival.values({_PLACE: receiver.words}):
            receiver.install_partition_state(pid, piece)
    except BadFrame as error:
        raise StateError(
            f"step {receiver.step.name!r}: the state of partition {pid} can be made to bytes, and not be made of them "
            f"again: {error}. decode_state must take what encode_state returns, and so must the classes in state_types"
        ) from error
    receiver.end_trans(pid)


# --- who writes to his input --------------------------------------------------------------------------------


class _WatchedBatch:
    """Rows that an operator was given, and what they were then."""

    def __init__(self, rows: Batch) -> None:
        self.rows = rows
        self._as_they_were = self._now()

    def _now(self) -> tuple[bytes, bytes, bytes]:
        return _bytes_of(self.rows.arrow), self.rows.sn.tobytes(), self.rows.partition.tobytes()

    def check(self, who: str) -> None:
        """It is an error if they are something else now."""
        rows = self.rows
        columns = [name for name, values in rows._columns.items() if _differ(values, to_numpy(rows.column(name)))]
        if columns or self._now() != self._as_they_were:
            raise InputMutated(
                f"{who}{f', column {columns[0]!r}' if columns else ''}: other copies may still need it. Copy a column "
                "before you change it, or keep it to change it later: values = batch['column'].copy()"
            )


def _watched(site: Hosted, given: list[_WatchedBatch]) -> Hosted:
    """The same, and it is an error if the operator writes to rows it is given; they are added to `given`.

    The operator's class is left as it is, for it may ask for that; and errors name the methods that raised them. A
    `KeyedOperator` gets rows of its own anyway.
    """
    call = site._call

    def watching(partition: int | None, rows: Batch | None, function: Callable[..., Any], *args: Any) -> Any:
        if rows is None:
            return call(partition, rows, function, *args)
        watched = _WatchedBatch(rows)
        emitted = call(partition, rows, function, *args)
        watched.check("process wrote to its input")
        given.append(watched)
        return emitted

    site._call = watching  # type: ignore[method-assign]
    return site


def _differ(one: Any, other: Any) -> bool:
    if one.dtype == object:
        return bool(repr(one.tolist()) != repr(other.tolist()))
    return bool(np.ma.getdata(one).tobytes() != np.ma.getdata(other).tobytes())
