"""Stream merges: where two streams become one: union, join, and the lookup in a stream or in a table of the plan.

`flux.Stream` has the methods that a user calls, and what they promise; here is how they are planned. Of a stream this
module knows what `MergedStream` says.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar, Protocol, Self, TypeVar

import pyarrow as pa

from ..model.operator import OperatorStep, Retained
from ..model.stateless import Select
from ..operators.join import Join
from ..operators.join_spec import JoinSpec, lookup_spec
from ..operators.lookup import Lookup, TableLookup
from ..operators.outer_join import OuterJoin
from ..sources import Table
from ..types.errors import PlanError
from ..types.normalize import describe_columns
from . import Availability, Route
from .arguments import check_partitions
from .graph import FlowNode, Input, Order
from .logical_flow import LogicalFlow
from .retained_rows import why_kept

_ALL_ROWS = 2**62


class MergedStream(Protocol):
    """What a stream has and can do here: it is a frozen dataclass."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    @property
    def _flow(self) -> LogicalFlow: ...
    @property
    def _tails(self) -> tuple[FlowNode, ...]: ...
    @property
    def _schema(self) -> pa.Schema | None: ...
    @property
    def _level(self) -> int: ...
    def _with_steps(self, name: str, factory: Callable[[], Any], schema: pa.Schema | None) -> Self: ...
    def _add_exchange(
        self,
        inputs: tuple[Input, ...],
        columns: tuple[str, ...],
        partitions: int,
        availability: Availability | None,
        order: Order,
        sides: tuple[pa.Schema, ...] = (),
    ) -> Self: ...
    def _add_operator(self, step: OperatorStep) -> Self: ...
    def _check_no_open_exchange(self, what: str) -> None: ...
    def _check_columns(self, what: str, columns: Sequence[str], needed: bool = False) -> None: ...


S = TypeVar("S", bound=MergedStream)


def union(first: S, others: Sequence[S]) -> S:
    """Return the stream that has the tails of all: rows are merged where they are consumed."""
    streams = (first, *others)
    for other in others:
        _check_partner("union", first, other)
        assert first._schema is not None and other._schema is not None
        if first._schema.names != other._schema.names or first._schema.types != other._schema.types:
            raise PlanError(
                "union takes streams with the same columns in the same order; one has "
                f"({describe_columns(first._schema)}), the other ({describe_columns(other._schema)}). "
                "Make them alike with select(...)"
            )
    schemas = {stream._schema.remove_metadata() for stream in streams if stream._schema is not None}
    if len(schemas) > 1:  # They differ in which columns may be null: the union allows nulls in all.
        assert first._schema is not None
        common = pa.schema([field.with_nullable(True).remove_metadata() for field in first._schema])
        streams = tuple(_with_schema(stream, common) for stream in streams)
    return replace(
        streams[0],
        _tails=tuple(tail for stream in streams for tail in stream._tails),
        _level=max(stream._level for stream in streams),
    )


def join(
    left: S,
    right: S,
    on: str | Sequence[str] | Mapping[str, str],
    within: int | Mapping[str, Any] | None,
    partitions: int,
    availability: Availability | None,
    suffix: str,
    how: str,
) -> S:
    """Return the pairs of rows of two streams, and with an outer join the rows that are in none."""
    _check_partner("join", left, right)
    check_partitions(partitions, availability)
    assert left._schema is not None and right._schema is not None
    joined = JoinSpec.of(left._schema, right._schema, on, within, suffix, how)
    sources = left._flow.sources
    has_watermarks = any(map(left._flow.emits_watermarks, range(len(sources))))
    kept = why_kept(joined, left._tails + right._tails, sources, has_watermarks)
    joined = replace(joined, is_event_time=joined.column is not None and kept is None)
    return _add_joint(left, right, OuterJoin if joined.preserved else Join, joined, partitions, availability, kept)


def lookup_in_table(stream: S, table: Any, on: Any, how: str, suffix: str, deletes: str | None) -> S:
    """Return the rows of a stream with those of a table that does not change, without an exchange."""
    if deletes is not None:
        raise PlanError("lookup(deletes=...) is for another stream: a table of the plan does not change")
    stream._check_columns("lookup", (), needed=True)
    whole = Table(table).sample(_ALL_ROWS)
    if whole is None:
        raise PlanError("lookup takes a pyarrow.Table, a list of dicts or another stream; got an iterator")
    assert stream._schema is not None
    spec = lookup_spec(stream._schema, whole.schema, on, suffix, how)
    TableLookup.check(spec, whole)
    return stream._with_steps(f"lookup({', '.join(spec.ours)})", partial(TableLookup, spec, whole), spec.output)


def lookup_in_stream(
    stream: S,
    table: S,
    on: Any,
    how: str,
    partitions: int,
    availability: Availability | None,
    suffix: str,
    deletes: str | None,
    is_broadcast: bool,
) -> S:
    """Return the rows of a stream with the last row of their key in another, which all partitions get if broadcast."""
    _check_partner("lookup", stream, table)
    check_partitions(partitions, availability)
    assert stream._schema is not None and table._schema is not None
    spec = lookup_spec(stream._schema, table._schema, on, suffix, how, deletes)
    routes = (Route(partitions=partitions, by="any"), Route(partitions=partitions, by="all")) if is_broadcast else None
    return _add_joint(stream, table, Lookup, spec, partitions, availability, routes=routes)


def _add_joint(
    left: S,
    right: S,
    factory: type[Any],
    joined: JoinSpec,
    partitions: int,
    availability: Availability | None,
    kept: Retained | None = None,
    routes: tuple[Route, Route] | None = None,
) -> S:
    """Repartition both streams, and add an operator of both; without `routes`, by the columns in which they agree."""
    key = joined.ours if routes is None else ()
    if routes is None:
        ours, theirs = (Route(partitions=partitions, columns=joined.keys(side)) for side in (0, 1))
        routes = ours, theirs
    inputs = tuple(
        Input(tail=tail, route=route, side=side)
        for side, (stream, route) in enumerate(zip((left, right), routes, strict=True))
        for tail in stream._tails
    )
    stream = left._add_exchange(inputs, key, partitions, availability, "sn", joined.sides)
    level = max(left._level, right._level)
    step = OperatorStep(
        factory=factory,
        parameters={"joined": joined},
        name=factory.__name__,
        key_columns=key,
        partitions=partitions,
        level=level,
        output=joined.output,
        kept=kept,
    )
    return replace(stream, _level=level)._add_operator(step)


def _with_schema(stream: S, schema: pa.Schema) -> S:
    """Return the same rows with a schema that allows nulls."""
    names = {name: name for name in schema.names}
    return stream._with_steps(f"select({', '.join(names)})", partial(Select, names), schema)


def _check_partner(what: str, stream: S, other: S) -> None:
    if not isinstance(other, type(stream)):
        raise PlanError(f"{what} takes another stream, got {type(other).__name__}")
    if other._flow is not stream._flow:
        raise PlanError(
            f"{what} takes streams of one dataflow; these are of {stream._flow.name!r} and {other._flow.name!r}. "
            "Give one dataflow both sources"
        )
    for each in (stream, other):
        each._check_no_open_exchange(f"a {what}")
        each._check_columns(what, (), needed=True)
