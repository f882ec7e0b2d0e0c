"""Partition copy: the values of a copy in transfer, and their installation at the receiver.

The donor sends the state of each step, the rows of the partition in its output buffer, the digest of what it has
emitted and the number of rows that it has consumed, as a stream (`flux.wire.transfer`): first the message of the
protocol, then a value for each piece of state.
The receiver installs piece by piece, one each turn of its loop, before the operator is given the first rows.
"""

from __future__ import annotations

import gc
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from types import GeneratorType
from typing import Any

import pyarrow as pa

from ...exchange.channel_mask import ChannelMask
from ...exchange.edge_bodies import make_body, row_counts
from ...exchange.merge import merge
from ...exchange.rows import Rows, punctuations_to_plain
from ...hosting import Hosted
from ...protocols.messages import Consume, Install, OutputRun, State
from ...wire.codec import from_plain, to_plain
from ...wire.frames import BadFrame, format_value
from ...wire.state_codec import Parcel
from ...wire.state_types import StateTypes, TypedState, TypesByStep
from ...wire.transfer import Arrival

_COLLECTED_BYTES = 16 << 20
_JOINED_ROWS_MAX = 256


def copy_values(
    message: State,
    partition: int,
    own: Mapping[int, ChannelMask],
    steps: Iterable[Hosted],
    digest: list[Any],
    consumed_rows: int,
) -> Iterator[Any]:
    """Yield the values of the copy of `partition`, as it is at the instant of the call.

    `own` are the channels of the partition on each edge out of its stage: its output is what is sent there.
    """
    joined = list(_join(_runs_of(message, partition, own)))
    plain = to_plain(replace(message, runs=tuple([run for run, _ in joined])), lambda body: None)
    yield [
        plain,
        [[[rows.wide, punctuations_to_plain(rows.punctuations)] for rows in parts] for _, parts in joined],
        digest,
        consumed_rows,
    ]
    for number, step in enumerate(steps):
        yield from state_values(message.stage, number, step, partition)


_RunParts = tuple[OutputRun, list[Rows]]  # A run with the rows of each edge.


def _runs_of(message: State, partition: int, own: Mapping[int, ChannelMask]) -> Iterator[_RunParts]:
    """Yield the donor's runs with what is of `partition` in them; those without anything are left out."""
    for run in message.runs:
        if partition not in run.without:
            parts = [run.body.on(edge).select(channels) for edge, channels in own.items()]
            rows = sum(map(len, parts))
            if rows or any(part.punctuations for part in parts):
                yield replace(run, rows=rows, without=frozenset()), parts


def _join(runs: Iterable[_RunParts]) -> Iterator[_RunParts]:
    """Join neighbouring runs until each has enough rows.

    A donor has a run for each step, with few rows of one partition or none. A site that takes many copies would have
    the runs of all its donors, and give each copy on with all of them. Runs with other columns, from after a change of
    the code, are not joined with those before.
    """
    group: list[_RunParts] = []
    columns: list[pa.Schema | None] = []
    for each in runs:
        own = [None if rows.wide is None else rows.user.schema for rows in each[1]]
        is_alike = all(None in both or both[0] == both[1] for both in zip(columns, own, strict=False))
        if group and (not is_alike or sum([run.rows for run, _ in group]) + each[0].rows > _JOINED_ROWS_MAX):
            yield _joined(group)
            group, columns = [], []
        columns = [now or was for now, was in zip_longest(own, columns)]
        group.append(each)
    if group:
        yield _joined(group)


def _joined(group: Sequence[_RunParts]) -> _RunParts:
    """Return runs as one, which ends where the last of them does."""
    if len(group) == 1:
        return group[0]
    runs = [run for run, _ in group]
    whole = replace(
        runs[0],
        after=min([run.after for run in runs]),
        upto=max([run.upto for run in runs]),
        rows=sum([run.rows for run in runs]),
    )
    return whole, [merge(parts) for parts in zip(*[parts for _, parts in group], strict=True)]


def state_values(stage: int, number: int, step: Hosted, partition: int) -> Iterator[Any]:
    """Yield the values of the state of step `number`: one, or a generator's pieces, each installed by its own call."""
    state = step.get_partition_state(partition)
    words = step.words_of(partition)
    for piece in state if isinstance(state, GeneratorType) else [state]:
        yield [number, TypedState(stage, number, piece, words) if words else piece]


def read_copy(
    arrival: Arrival, edges: Sequence[Sequence[int]], types_of: Callable[[State], TypesByStep] = lambda message: {}
) -> State:
    """Return the message of the protocol, with everything that `copy_values` gave in it.

    `edges` are those out of each stage; `types_of` returns the state types of each step's operator as it was at the
    position of the copy.
    """
    if arrival.size_bytes < _COLLECTED_BYTES:
        return _read(arrival, edges, types_of)
    # To collect garbage among millions of new objects takes seconds, in which no other thread runs. State has none.
    gc.disable()
    try:
        return _read(arrival, edges, types_of)
    finally:
        gc.freeze()
        gc.enable()


def _read(arrival: Arrival, edges: Sequence[Sequence[int]], types_of: Callable[[State], TypesByStep]) -> State:
    types: dict[tuple[int, int], StateTypes] = {}
    values = arrival.values(types)
    try:
        plain, packed, (digest, beyond), consumed_rows = next(values)
        parts = [[Rows.received(wide, punctuations) for wide, punctuations in run] for run in packed]
    except (StopIteration, TypeError, ValueError, AttributeError) as error:
        raise BadFrame(f"a partition's state does not begin with its message and output: {error!r:.200}") from error
    message = from_plain(plain, lambda body: body)
    if not isinstance(message, State) or len(message.runs) != len(parts) or not _is_digest(digest, beyond):
        raise BadFrame(
            f"expected the state of a partition and its digest, got {format_value(plain)} and {format_value(digest)}"
        )
    if type(consumed_rows) is not int or not 0 <= consumed_rows < 1 << 63:
        raise BadFrame(f"expected how many rows a partition has consumed, got {format_value(consumed_rows)}")
    outputs = edges[message.stage] if 0 <= message.stage < len(edges) else ()
    if not outputs or any(len(run) != len(outputs) for run in parts):
        raise BadFrame(f"expected output for the {len(outputs)} edges out of stage {message.stage}")
    types |= types_of(message)  # The first value is without state, and the next is decoded when it is taken.
    pieces = [_piece(value) for value in values]
    made = [make_body(outputs, dict(zip(outputs, rows, strict=True))) for rows in parts]
    runs = tuple(
        replace(run, counts=row_counts(outputs, body), body=body) for run, body in zip(message.runs, made, strict=True)
    )
    return replace(message, runs=runs, body=Parcel(pieces, digest, beyond, consumed_rows))


def _is_digest(digest: Any, beyond: Any) -> bool:
    if type(digest) is not int or not isinstance(beyond, list):
        return False
    pairs = [pair for pair in beyond if isinstance(pair, list) and list(map(type, pair)) == [int, int]]
    return len(pairs) == len(beyond) and all(0 <= word < 1 << 64 for _, word in pairs) and 0 <= digest < 1 << 64


def _piece(value: Any) -> tuple[int, Any]:
    if not isinstance(value, list) or len(value) != 2 or type(value[0]) is not int:
        raise BadFrame(f"expected the number of a step and a piece of its state, got {format_value(value)}")
    return value[0], value[1]


class CopyReceiver:
    """The copies in transfer to this site, of which not all chunks have arrived."""

    def __init__(self) -> None:
        self._arrivals: dict[tuple[str, int], Arrival] = {}  # By donor and version.

    def take(self, donor: str, version: int, chunk: Any) -> Arrival:
        """Add the next chunk, if it is not empty; return what has arrived of the copy."""
        arrival = self._arrivals.setdefault((donor, version), Arrival())
        if chunk is not None:
            arrival.take(chunk)
        return arrival

    def forget(self, donor: str, version: int) -> None:
        """Drop what has arrived of this copy: it is complete, or not wanted any more."""
        self._arrivals.pop((donor, version), None)

    def forget_all(self, donor: str) -> None:
        """Drop what has arrived from `donor`: the rest does not arrive."""
        for key in [key for key in self._arrivals if key[0] == donor]:
            del self._arrivals[key]


class CopyInstaller:
    """Copies that have arrived and whose pieces are not all installed yet."""

    def __init__(self) -> None:
        self._left: dict[tuple[int, int], _Left] = {}  # By stage and partition.

    @property
    def has_pieces(self) -> bool:
        """Whether any copy has pieces left to install."""
        return bool(self._left)

    def begin(self, effect: Install, steps: Sequence[Hosted], done: Callable[[float], None]) -> None:
        """Queue the pieces of a copy: they are installed before the partition is used; then `done` is called."""
        place = (effect.stage, effect.partition)
        assert place not in self._left, f"partition {effect.partition} of stage {effect.stage} is installed twice"
        for number, _ in effect.body.states:
            if not 0 <= number < len(steps):
                raise BadFrame(f"got state for step {number} of stage {effect.stage}, which has {len(steps)}")
        for step in steps:
            step.init_trans(effect.partition)
        pieces = deque((steps[number], piece) for number, piece in effect.body.states)
        self._left[place] = _Left(steps, pieces, done)

    def install_one(self, job: Consume) -> bool:
        """Install one piece that `job` has to wait for; return False if there is none."""
        place = next((place for place in self._left if place[0] == job.stage and place[1] in job.partitions), None)
        if place is not None:
            self._install(place)
        return place is not None

    def has_all(self, stage: int, partition: int) -> bool:
        """Whether nothing is left to install of a copy."""
        return (stage, partition) not in self._left

    def finish(self, stage: int, partition: int) -> None:
        """Install all that is left of a copy at once."""
        while (stage, partition) in self._left:
            self._install((stage, partition))

    def _install(self, place: tuple[int, int]) -> None:
        left = self._left[place]
        if left.pieces:
            began = time.monotonic()
            step, piece = left.pieces.popleft()
            step.install_partition_state(place[1], piece)
            left.took_s += time.monotonic() - began
        if not left.pieces:
            del self._left[place]
            for step in left.steps:
                step.end_trans(place[1])
            left.done(left.took_s)


@dataclass
class _Left:
    steps: Sequence[Hosted]
    pieces: deque[tuple[Hosted, Any]]
    done: Callable[[float], None]
    took_s: float = 0.0
