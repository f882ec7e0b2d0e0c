"""The specification of a join: the columns of its two sides, how close rows must be, and the columns of a pair."""

from __future__ import annotations

import datetime
import math
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ..types.arrays import ColumnError
from ..types.errors import PlanError
from ..types.hashing import tokens
from ..types.normalize import describe_columns, repeated
from .keys import check_keys

_FARTHEST_ROWS = 2**62  # No two rows are further apart.
_FARTHEST = 2**64 - 1  # Nor are two numbers of 64 bits.
_LEAST = np.int64(-(2**63))
_PRESERVED: dict[str, tuple[int, ...]] = {"inner": (), "left": (0,), "right": (1,), "outer": (0, 1)}
_UNIT_NS = {"s": 1_000_000_000, "ms": 1_000_000, "us": 1_000, "ns": 1}


@dataclass(frozen=True, kw_only=True)
class JoinSpec:
    """A join of two streams: `sides` are their schemas, `ours` and `theirs` the columns in which a pair agrees.

    In a pair the values of `column` are at most `bound` apart; without a column, the sequence numbers are. A pair has
    the columns `output`: all of ours, and `taken` of theirs.
    """

    sides: tuple[pa.Schema, pa.Schema]
    ours: tuple[str, ...]
    theirs: tuple[str, ...]
    column: str | None
    bound: Any
    taken: tuple[str, ...]
    output: pa.Schema
    # Whether `column` is the event time of both sides: only then do watermarks apply to it.
    is_event_time: bool = False
    # The sides whose rows are emitted also if they are in no pair.
    preserved: tuple[int, ...] = ()
    # Of a lookup: the column of theirs that says that a row removes the row of its key.
    deletes: str | None = None

    @staticmethod
    def of(
        left: pa.Schema,
        right: pa.Schema,
        on: Any,
        within: Any,
        suffix: str,
        how: Any = "inner",
        what: str = "join",
    ) -> JoinSpec:
        """Return the join, or `what` it is called, that a user specified; raise `PlanError` if it is invalid."""
        ours, theirs = _keys(left, right, on, what)
        column, bound = _within(left, right, within)
        preserved = _preserved(how, left, right, dict(zip(ours, theirs, strict=True)))
        taken = tuple(name for name in right.names if name not in theirs)
        fields = [field.remove_metadata() for field in left]
        for name in taken:
            called = f"{name}{suffix}" if name in left.names else name
            fields.append(right.field(name).with_name(called).remove_metadata())
        if preserved:
            fields = [field.with_nullable(True) for field in fields]
        twice = repeated([field.name for field in fields])
        if twice:
            raise PlanError(
                f"{what}: a pair would have the columns {', '.join(map(repr, twice))} twice, because both sides have "
                "them. Give another suffix=, or rename them with select(new='old') before"
            )
        return JoinSpec(
            sides=(left, right),
            ours=ours,
            theirs=theirs,
            column=column,
            bound=bound,
            taken=taken,
            output=pa.schema(fields),
            preserved=preserved,
        )

    @property
    def is_unbounded(self) -> bool:
        """Whether all rows that agree are pairs."""
        return self.column is None and self.bound == _FARTHEST_ROWS

    def keys(self, side: int) -> tuple[str, ...]:
        """Return the columns of a side in which a pair agrees."""
        return self.theirs if side else self.ours

    def distance(self, a: Any, b: Any) -> Any:
        """Return how far values of `column` are apart, in the unit of `bound`."""
        if a.dtype.kind == "f":
            with np.errstate(invalid="ignore", over="ignore"):  # An infinity is not near to anything.
                return np.abs(a - b)
        # The distance of two signed numbers of 64 bits may need an unsigned one.
        later, earlier = np.maximum(a, b), np.minimum(a, b)
        return later.view(np.uint64) - earlier.view(np.uint64)


def lookup_spec(
    left: pa.Schema, right: pa.Schema, on: Any, suffix: str, how: str, deletes: str | None = None
) -> JoinSpec:
    """Return the specification of a lookup; raise `PlanError` if it is invalid."""
    if deletes is not None and (deletes not in right.names or not pa.types.is_boolean(right.field(deletes).type)):
        raise PlanError(
            f"lookup(deletes={deletes!r}) names a column of booleans of the other stream, which has "
            f"{describe_columns(right)}"
        )
    kept = right if deletes is None else pa.schema([field for field in right if field.name != deletes])
    spec = JoinSpec.of(left, kept, on, None, suffix, how, what="lookup")
    spec = replace(spec, sides=(left, right), deletes=deletes)
    try:
        check_keys(spec.ours, left)
    except ColumnError as error:
        raise PlanError(f"lookup: {error}") from error
    for ours, theirs in zip(spec.ours, spec.theirs, strict=True):
        kinds = left.field(ours).type, right.field(theirs).type
        if kinds[0] != kinds[1]:
            raise PlanError(
                f"lookup(on=...): {ours!r} is {kinds[0]} here and {theirs!r} is {kinds[1]} there; make them alike"
            )
    return spec


def times_of(column: Any) -> npt.NDArray[Any]:
    """Return a column of times or numbers without nulls, as 64-bit numbers with the same distances."""
    kind = column.type
    if pa.types.is_floating(kind):
        column = column.cast(pa.float64())
    elif pa.types.is_uint64(kind):
        return np.asarray(column.to_numpy().view(np.int64) ^ _LEAST)
    else:
        column = column.cast(pa.int32()) if pa.types.is_temporal(kind) and kind.bit_width == 32 else column
        column = column.cast(pa.int64())
    return np.asarray(column.to_numpy())


def _as_list(on: Any) -> list[Any]:
    # The order of a set differs between sites.
    return list(on) if isinstance(on, Iterable) and not isinstance(on, Set) else [on]


def _keys(left: pa.Schema, right: pa.Schema, on: Any, what: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    if isinstance(on, str):
        on = [on]
    named = list(on.items()) if isinstance(on, Mapping) else [(name, name) for name in _as_list(on)]
    if not named or not all(isinstance(name, str) for pair in named for name in pair):
        raise PlanError(
            f'{what} needs the columns in which rows agree, such as on="user", on=["user", "day"] or '
            f'on={{"user": "id"}}; got on={on!r:.200}'
        )
    pairs = dict(named)
    for ours, theirs in pairs.items():
        for which, schema, name in (("this", left, ours), ("the other", right, theirs)):
            if name not in schema.names:
                raise PlanError(
                    f"{what}(on=...): {which} stream has no column {name!r}; it has {describe_columns(schema)}"
                )
        kinds = left.field(ours).type, right.field(theirs).type
        if kinds[0] != kinds[1] and not all(pa.types.is_integer(kind) for kind in kinds):
            raise PlanError(
                f"{what}(on=...): {ours!r} is {kinds[0]} here and {theirs!r} is {kinds[1]} there; rows agree in "
                "columns of the same type. Make them alike with select(...)"
            )
        tokens(pa.array([], kinds[0]))  # Raises if the type has no hash.
    return tuple(pairs), tuple(pairs.values())


def _preserved(how: Any, left: pa.Schema, right: pa.Schema, on: Mapping[str, str]) -> tuple[int, ...]:
    """Return the sides whose rows are emitted also without a pair."""
    if not isinstance(how, str) or how not in _PRESERVED:
        raise PlanError(f"join(how=...) is {', '.join(map(repr, _PRESERVED))}; got {how!r:.200}")
    for ours, theirs in on.items():
        kinds = left.field(ours).type, right.field(theirs).type
        if 1 in _PRESERVED[how] and kinds[0] != kinds[1]:
            raise PlanError(
                f"join(how={how!r}): {ours!r} is {kinds[0]} here and {theirs!r} is {kinds[1]} there; a row of "
                "the other stream without a pair has its own key. Make them alike with select(...)"
            )
    return _PRESERVED[how]


def _within(left: pa.Schema, right: pa.Schema, within: Any) -> tuple[str | None, Any]:
    if within is None:
        return None, _FARTHEST_ROWS
    if isinstance(within, int) and not isinstance(within, bool) and within >= 0:
        return None, min(within, _FARTHEST_ROWS)
    if not isinstance(within, Mapping) or len(within) != 1:
        raise PlanError(
            "join(within=...) is a number of input rows, None for all rows, or {column: bound} for a column of both "
            f'streams, such as within={{"ts": timedelta(minutes=1)}}; got {within!r:.200}'
        )
    [(column, bound)] = within.items()
    for which, schema in (("this", left), ("the other", right)):
        if column not in schema.names:
            raise PlanError(
                f"join(within=...): {which} stream has no column {column!r}; it has {describe_columns(schema)}"
            )
    kinds = left.field(column).type, right.field(column).type
    if kinds[0] != kinds[1]:
        raise PlanError(f"join(within=...): {column!r} is {kinds[0]} here and {kinds[1]} there; make them alike")
    return column, _bound(kinds[0], column, bound)


def _bound(kind: Any, column: str, bound: Any) -> Any:
    """Return the bound in the unit in which the column is kept."""
    if pa.types.is_integer(kind) or pa.types.is_floating(kind):
        if isinstance(bound, int | float) and not isinstance(bound, bool) and 0 <= bound < math.inf:
            return _as_float(bound) if pa.types.is_floating(kind) else min(int(bound), _FARTHEST)
        raise PlanError(
            f"join(within=...): {column!r} is {kind}, so its bound is a finite number from 0 on; got {bound!r:.200}"
        )
    unit = _unit_ns(kind)
    if unit is None:
        raise PlanError(f"join(within=...): {column!r} is {kind}; expected numbers, dates or times")
    if not isinstance(bound, datetime.timedelta) or bound < datetime.timedelta(0):
        raise PlanError(f"join(within=...): {column!r} is {kind}, so its bound is a timedelta from 0 on; got {bound!r}")
    return min((bound // datetime.timedelta(microseconds=1)) * 1_000 // unit, _FARTHEST)


def _as_float(bound: float) -> float:
    try:
        return float(bound)
    except OverflowError:  # A whole number beyond all floats: no two floats are further apart.
        return float(np.finfo(np.float64).max)


def _unit_ns(kind: Any) -> int | None:
    """Return the unit of a type of times, in nanoseconds; None for numbers."""
    if pa.types.is_timestamp(kind) or pa.types.is_duration(kind) or pa.types.is_time(kind):
        return _UNIT_NS[kind.unit]
    if pa.types.is_date(kind):
        return 86_400 * _UNIT_NS["s"] if kind.bit_width == 32 else _UNIT_NS["ms"]
    return None
