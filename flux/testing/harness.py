"""A test harness that runs one operator in this process over the same input in different ways.

The input is fixed: numbered rows and punctuations. A *way* is what a run of Flux would decide: where batches are cut,
which partitions share a site, and when a partition moves to another site, as the bytes that go over the wire. The
output must not depend on it.

During a run the harness watches the input, which is read-only for operators. It watches the emitted batches too: they
are in flight, and the operator must not write to them any more.
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

__all__ = ["GivenInput", "InputMutated", "Output", "StatesAt", "Subject", "Way", "play", "play_and_take", "ship"]

_CHUNK_BYTES = 1_000  # Small, so that a state is cut in many places.
_PLACE = (1, 0)  # The stage and step that the operator would be in a flow.


class InputMutated(FluxError):
    """An operator wrote to its input, or to a batch that it has emitted."""


@dataclass(frozen=True)
class Subject:
    """The operator under test, with its key, parameters and number of partitions."""

    factory: Callable[[], Any]
    key: tuple[str, ...]
    parameters: dict[str, Any]
    partitions: int
    name: str
    form: str = "Operator"

    def step(self, schema: Any) -> OperatorStep:
        # Without rows and without a schema, the operator is not asked for the schema of its output.
        output = output_of(self.factory, self.parameters, self.key, schema if schema.names else None)
        return OperatorStep(self.factory, self.parameters, self.name, self.key, self.partitions, 0, output)


@dataclass(frozen=True)
class GivenInput:
    """The input: rows and punctuations, each with its sequence number."""

    rows: pa.RecordBatch
    sn: npt.NDArray[np.int64]
    punctuations: tuple[Punctuation, ...]

    @classmethod
    def of(cls, events: Sequence[Any], schema: Any = None) -> GivenInput:
        """Return an input of events in order: rows, which are dicts, and punctuations. Numbers start from 1."""
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
            f"check_operator: the drawn rows cannot form a column {name!r}: got values of {kinds}, and Arrow reports "
            f"{error}. Draw values of one type that fit, or set schema=pyarrow.schema({{{name!r}: ...}})"
        ) from error


@dataclass(frozen=True)
class Way:
    """One way to run an operator. Batches are cut after the numbers in `cuts`, and at each punctuation, unless the
    operator takes rows and punctuations together.

    `moves` are (number, partition): after that number the partition moves to the other of two sites. With `sites` of 2,
    half of the partitions start on the second. With `reads` the state is only read, and dropped.
    """

    cuts: frozenset[int] = frozenset()
    moves: tuple[tuple[int, int], ...] = ()
    sites: int = 1
    reads: bool = False


@dataclass(frozen=True)
class Output:
    """An emitted row: its position and its values."""

    sn: int
    sub: int
    partition: int
    values: dict[str, Any]

    def text(self) -> str:
        """Return all of it as text, so that any difference in values shows; a float has all its digits."""
        return repr(self)


@dataclass(frozen=True)
class StatesAt:
    """The states of all partitions after a sequence number of the input, as bytes."""

    number: int
    states: dict[int, bytes]


def play(subject: Subject, given: GivenInput, way: Way, start: StatesAt | None = None) -> list[Output]:
    """Run the operator over the input in one way, or resume from states; return everything that it emits, in order."""
    return _Player(subject, given, way, start).play()


def play_and_take(subject: Subject, given: GivenInput, number: int) -> tuple[list[Output], StatesAt]:
    """Run the operator in the largest possible batches; return its output, and the states after a number."""
    player = _Player(subject, given, Way(cuts=frozenset({number})))
    return player.play(number), player.taken


class _Player:
    taken = StatesAt(0, {})

    def __init__(self, subject: Subject, given: GivenInput, way: Way, start: StatesAt | None = None) -> None:
        self._given, self._way = given, way
        step = subject.step(given.rows.schema)
        self._inputs: list[_WatchedBatch] = []
        self._sites = [_watch(host(step), self._inputs) for _ in range(2)]
        self._at = {pid: pid % way.sites for pid in range(subject.partitions)}
        self._partition = given.partition(subject.key, subject.partitions)
        self._emitted: list[tuple[Batch, bytes]] = []
        self._start = start

    def play(self, take_after: int | None = None) -> list[Output]:
        """Return all output; the states of all partitions after the number `take_after` are kept in `taken`."""
        self._open()
        last = int(max([*self._given.sn[-1:], *(mark.sn for mark in self._given.punctuations)], default=0))
        ends = {*self._way.cuts, *(number for number, _ in self._way.moves), last}
        if not self._sites[0].takes_punctuations:
            ends |= {end for mark in self._given.punctuations for end in (mark.sn - 1, mark.sn)}
        after = 0 if self._start is None else self._start.number
        for upto in sorted(ends):
            if upto <= after:
                continue
            self._work(after, upto)
            for number, pid in self._way.moves:
                if number == upto:
                    self._move(pid)
            if upto == take_after:
                self.taken = StatesAt(upto, {pid: _state(self._sites[at], pid) for pid, at in self._at.items()})
            after = upto
        outputs = list(self._outputs())
        for site in self._sites:
            site.close()
        return outputs

    def _open(self) -> None:
        for number, site in enumerate(self._sites):
            site.open([pid for pid, at in self._at.items() if at == number and self._start is None])
        for pid, state in ({} if self._start is None else self._start.states).items():
            _install(self._sites[self._at[pid]], pid, state)

    def _work(self, after: int, upto: int) -> None:
        punctuations = [mark for mark in self._given.punctuations if after < mark.sn <= upto]
        start, stop = np.searchsorted(self._given.sn, (after, upto), side="right")
        held = np.array([self._at[int(pid)] for pid in self._partition[start:stop]], np.int64)
        for number, site in enumerate(self._sites):
            chosen = start + np.flatnonzero(held == number)
            rows = None
            if len(chosen):
                arrow = _select_rows(self._given.rows, chosen)
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
        for given in self._inputs:
            given.check(f"the input of row {given.rows.sn[0]} was kept, and written to after it was processed")
        for emitted, as_it_was in self._emitted:
            if _bytes_of(emitted.arrow) != as_it_was:
                raise InputMutated(
                    f"the output for row {emitted.sn[0]} was written to after it was emitted, while in flight: it is "
                    f"now {emitted.arrow.to_pylist()[:3]}. Emit a copy of an array to which you write again"
                )
        found = [output for emitted, _ in self._emitted for output in _rows_of(emitted)]
        yield from sorted(found, key=lambda output: (output.sn, output.sub, output.partition))


def _select_rows(rows: pa.RecordBatch, chosen: npt.NDArray[np.int64]) -> pa.RecordBatch:
    """Copy rows into writable memory of their own, as a merge does.

    A row before the first of them, if there is one, is in that memory too: batches of a run are slices of others.
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
    """Return the current contents of a batch."""
    copied: bytes = arrow.serialize().to_pybytes()
    return copied


# --- a partition moves from one site to another -----------------------------------------------------------


def ship(donor: Hosted, pid: int, receiver: Hosted) -> None:
    """Copy a partition to another site, as the bytes that go over the wire."""
    _install(receiver, pid, _state(donor, pid))


def _state(donor: Hosted, pid: int) -> bytes:
    """Return the state of a partition as bytes."""
    donor.init_trans(pid)
    state = donor.get_partition_state(pid)
    pieces: Iterable[Any] = state if isinstance(state, GeneratorType) else [state]
    typed = (TypedState(*_PLACE, piece, donor.words) for piece in pieces)
    whole = b"".join(bytes(part) for parts in items(typed, f"step {donor.step.name!r}") for part in parts)
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
            f"step {receiver.step.name!r}: the state of partition {pid} can be encoded as bytes, but not decoded: "
            f"{error}. decode_state must take what encode_state returns, and so must the classes in state_types"
        ) from error
    receiver.end_trans(pid)


# --- writes to the input ------------------------------------------------------------------------------------


class _WatchedBatch:
    """The input rows of one call, and their contents at that time."""

    def __init__(self, rows: Batch) -> None:
        self.rows = rows
        self._as_they_were = self._now()

    def _now(self) -> tuple[bytes, bytes, bytes]:
        return _bytes_of(self.rows.arrow), self.rows.sn.tobytes(), self.rows.partition.tobytes()

    def check(self, event: str) -> None:
        """Raise `InputMutated` if the rows have changed since."""
        rows = self.rows
        columns = [name for name, values in rows._columns.items() if _differ(values, to_numpy(rows.column(name)))]
        if columns or self._now() != self._as_they_were:
            raise InputMutated(
                f"{event}{f', column {columns[0]!r}' if columns else ''}: other copies may still need it. Copy a "
                "column before you change it, or keep it to change it later: values = batch['column'].copy()"
            )


def _watch(site: Hosted, given: list[_WatchedBatch]) -> Hosted:
    """Make it an error if the site's operator writes to its input rows; they are added to `given`.

    The operator's class stays as it is, because the operator may check it, and errors name the methods that raised
    them. A `KeyedOperator` gets rows of its own anyway.
    """
    call = site._call

    def watched_call(partition: int | None, rows: Batch | None, function: Callable[..., Any], *args: Any) -> Any:
        if rows is None:
            return call(partition, rows, function, *args)
        watched = _WatchedBatch(rows)
        emitted = call(partition, rows, function, *args)
        watched.check("process wrote to its input")
        given.append(watched)
        return emitted

    site._call = watched_call  # type: ignore[method-assign]
    return site


def _differ(one: Any, other: Any) -> bool:
    if one.dtype == object:
        return bool(repr(one.tolist()) != repr(other.tolist()))
    return bool(np.ma.getdata(one).tobytes() != np.ma.getdata(other).tobytes())
