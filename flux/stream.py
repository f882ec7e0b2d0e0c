"""Stream: how a user builds a dataflow. Each method adds a step, an exchange or a sink, and returns the new stream."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NoReturn

import pyarrow as pa

from .exchange.routes import boundaries_of, check_in_order, checked_boundaries
from .hosting import checked_operator
from .model.operator import OperatorStep, Retained, name_of, output_of
from .model.stateless import Filter, FlatMap, Map, Select, select_columns
from .operators.join import Join, JoinSpec
from .plan import Availability, By, Route
from .plan.arguments import (
    check_choice,
    check_event_time,
    check_factory,
    check_names,
    check_partitions,
    declared_schema,
)
from .plan.graph import ExchangeNode, FlowNode, Input, Order, SourceNode, StepNode, root_of
from .plan.lineage import sources_of, trace_columns, why_not_event_time
from .plan.logical_flow import LogicalFlow
from .plan.planner import Ending
from .sinks import Sink
from .types.cast import cast_values
from .types.errors import PlanError
from .types.hashing import tokens
from .types.normalize import ColumnError, describe_columns

_SAMPLE_ROWS = 10_000


@dataclass(frozen=True, kw_only=True)
class Stream:
    """Tuples from a source, through an exchange, or out of an operator.

    A stream may be used several times: each use gets all of its rows.
    """

    _flow: LogicalFlow
    _tails: tuple[FlowNode, ...]
    _schema: pa.Schema | None
    # The number of steps before this point that may emit several rows for one.
    _level: int = 0

    # Steps that need no repartitioning.

    def map(
        self, fn: Callable[[Any], Any], output: Any = None, batch: bool = False, event_time: str | None = None
    ) -> Stream:
        """Emit one row for each: `fn(row)` takes a named tuple and returns a dict.

        With `batch=True`, `fn(batch)` takes a `flux.Batch` and returns a dict of columns, a value for each row.
        `output` declares the columns, as with operators; it is needed before an exchange, join or union. `event_time`
        names the column that holds event time, as operators do: a join then drops old rows by it.

        >>> import flux
        >>> flow = flux.Dataflow("lengths")
        >>> words = flow.source(flux.sources.Table([{"word": "to"}, {"word": "flux"}]))
        >>> words.map(lambda row: {"length": len(row.word)}).sink(flux.sinks.Collect())
        >>> flow.run().table.to_pylist()
        [{'length': 2}, {'length': 4}]
        """
        return self._add_step("map", Map, fn, batch, declared_schema("map", fn, output), event_time)

    def filter(self, fn: Callable[[Any], Any], batch: bool = False) -> Stream:
        """Keep the rows for which `fn(row)` is true; with `batch=True`, `fn(batch)` returns a boolean for each row."""
        return self._add_step("filter", Filter, fn, batch, self._schema)

    def flat_map(
        self, fn: Callable[[Any], Any], output: Any = None, batch: bool = False, event_time: str | None = None
    ) -> Stream:
        """Emit no, one or several rows for each: `fn(row)` returns an iterable of dicts.

        With `batch=True`, `fn(batch)` returns (columns, origin): `origin` holds, for each output row, the index of its
        input row in the batch, in order. `output` and `event_time` are as for `map`.
        """
        return self._add_step("flat_map", FlatMap, fn, batch, declared_schema("flat_map", fn, output), event_time)

    def select(self, *columns: str, **computed: Any) -> Stream:
        """Keep these columns and add `computed` ones: `new="old"` renames, `new=function` computes one of the `Batch`.

        A function may declare its type, which is needed before an exchange, join or union:
        ``select("src", mb=(lambda batch: batch["bytes"] / 1e6, "float64"))``.
        """
        if not columns and not computed:
            raise PlanError("select needs the columns to keep, such as select('src', total='bytes')")
        check_names("select", columns)
        for name, source in computed.items():
            made = source[0] if isinstance(source, tuple) and len(source) == 2 else source
            if not isinstance(made, str) and not callable(made):
                raise PlanError(
                    f"select({name}=...) takes the name of a column, a function of the batch, or (function, type); got "
                    f"{source!r:.200}"
                )
        self._check_columns("select", [*columns, *(name for name in computed.values() if isinstance(name, str))])
        twice = sorted({name for name in columns if columns.count(name) > 1 or name in computed})
        if twice:
            raise PlanError(f"select names {', '.join(map(repr, twice))} twice; columns have different names")
        try:
            made, schema = select_columns(self._schema, columns, computed)
        except ColumnError as error:
            raise PlanError(f"select: {error}") from error
        return self._with_steps(f"select({', '.join(made)})", partial(Select, made), schema)

    def _add_step(
        self,
        kind: str,
        made: Any,
        fn: Callable[[Any], Any],
        batch: bool,
        schema: pa.Schema | None,
        event_time: str | None = None,
    ) -> Stream:
        if not callable(fn):
            raise PlanError(f"{kind} takes a function of a row, or with batch=True of a flux.Batch; got {fn!r:.200}")
        name = f"{kind}({name_of(fn)})"
        check_event_time(name, event_time, schema)
        return self._with_steps(name, partial(made, fn, batch, event_time), schema, made.is_one_to_many)

    def _with_steps(
        self, name: str, factory: Callable[[], Any], schema: pa.Schema | None, is_one_to_many: bool = False
    ) -> Stream:
        """Return the stream with a step after each of its tails: a union needs no step of its own."""
        step = OperatorStep(
            factory=factory,
            parameters={},
            name=name,
            key_columns=(),
            partitions=1,
            level=self._level,
            output=schema,
        )
        tails = tuple(self._flow.add(partial(StepNode, parent=tail, step=step)) for tail in self._tails)
        return replace(self, _tails=tails, _schema=schema, _level=self._level + is_one_to_many)

    # Operators, and the exchanges before them.

    def exchange(
        self,
        *columns: str,
        partitions: int = 32,
        availability: Availability | None = None,
        order: Order = "sn",
        by: By = "hash",
        boundaries: Iterable[Any] | None = None,
        sample: Any = None,
    ) -> Stream:
        """Repartition by `columns`; each partition lives as a pair unless availability is "none".

        `by="range"` keeps neighbouring values of one column together: partition i takes the values below the i-th of
        `boundaries`, of which there is one less than partitions. They can be chosen from a `sample` of values instead.
        Directly after a `Table`, the sample may be left out: rows from all over the table are used.

        `by="any"` distributes rows by their position, whatever they contain: for operators that do not depend on which
        rows meet, such as enrichment. It needs no columns.

        With `order="any"`, rows are consumed as they arrive, not by sequence number, so a slow producer delays no
        others. The output for a row must not depend on which rows the operator has seen before it. Otherwise the two
        copies differ, and the run ends with an error. The operators of `flux.operators` depend on it: a plan error.
        """
        check_choice("order", order, ("sn", "any"))
        check_choice("by", by, ("hash", "range", "any"))
        check_partitions(partitions, availability)
        if not columns and by != "any":
            raise PlanError("exchange needs the columns that partition the stream, such as exchange('src', 'dst')")
        check_names("exchange", columns)
        twice = sorted({column for column in columns if columns.count(column) > 1})
        if twice:
            raise PlanError(f"exchange names {', '.join(map(repr, twice))} twice: name each column once")
        self._check_no_open_exchange("another exchange")
        self._check_columns("exchange", columns, needed=True)
        route = Route(partitions=partitions, by=by, columns=columns)
        if by == "range":
            route = replace(route, boundaries=self._range_boundaries(columns, partitions, boundaries, sample))
        elif boundaries is not None or sample is not None:
            raise PlanError(f'boundaries and sample are for by="range"; this exchange is by={by!r}')
        inputs = tuple(Input(tail=tail, route=route) for tail in self._tails)
        key = () if by == "any" else columns
        return self._add_exchange(inputs, key, partitions, availability, order)

    def _add_exchange(
        self,
        inputs: tuple[Input, ...],
        columns: tuple[str, ...],
        partitions: int,
        availability: Availability | None,
        order: Order,
        sides: tuple[pa.Schema, ...] = (),
    ) -> Stream:
        node = partial(
            ExchangeNode,
            inputs=inputs,
            columns=columns,
            partitions=partitions,
            availability=availability,
            order=order,
            sides=sides,
        )
        return replace(self, _tails=(self._flow.add(node),))

    def _range_boundaries(self, columns: tuple[str, ...], partitions: int, given: Any, sample: Any) -> tuple[Any, ...]:
        if len(columns) != 1:
            raise PlanError(
                f'by="range" takes one column, got {", ".join(map(repr, columns))}: exchange by one of them'
            )
        if given is not None and sample is not None:
            raise PlanError('by="range" takes boundaries=[...] or sample=values, not both')
        assert self._schema is not None
        kind = self._schema.field(columns[0]).type
        check_in_order(kind, columns[0])
        if given is not None:
            return checked_boundaries(given, kind, columns[0], partitions)
        if sample is None:
            sample = self._sample_column(columns[0])
        try:
            values = sample if isinstance(sample, pa.Array | pa.ChunkedArray) else list(sample)
            return boundaries_of(cast_values(values, kind), partitions)
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            raise PlanError(f'by="range": the sample must be values of {kind}: {error}') from error

    def _sample_column(self, column: str) -> Any:
        [tail] = self._tails if len(self._tails) == 1 else [None]
        source = self._flow.sources[tail.number] if isinstance(tail, SourceNode) else None
        rows = None if source is None else source.sample(_SAMPLE_ROWS)
        if rows is None:
            raise PlanError(
                f'exchange({column!r}, by="range") does not know the values in advance: say boundaries=[...], '
                "or sample=values to choose them from. Only directly after a flux.sources.Table are they known"
            )
        return rows.column(column)

    def apply(self, operator: Callable[[], Any], **parameters: Any) -> Stream:
        """Add an operator after the exchange; it gets `parameters` as `context.parameters`."""
        name = name_of(operator)
        check_factory(operator, name)
        root = root_of(self._tails[0])
        if len(self._tails) > 1 or not isinstance(root, ExchangeNode):
            raise PlanError(f"{name} needs an exchange in front: write .exchange(columns).apply({name})")
        made = checked_operator(operator, name)
        self._check_key_unchanged(name, root)
        if root.order == "any" and getattr(made, "needs_order", False):
            raise PlanError(
                f'{name} depends on the order of rows, and {root.title} has order="any": each copy takes rows as '
                'they arrive, and the copies would differ. Leave order="any" out of this exchange'
            )
        if getattr(made, "is_by_key", False):
            self._check_key(name, root)
        step = OperatorStep(
            factory=operator,
            parameters=parameters,
            name=name,
            key_columns=root.columns,
            partitions=root.partitions,
            level=self._level,
            output=output_of(operator, parameters, root.columns, self._schema),
            route=self._route_to_check(root) if getattr(made, "is_by_key", False) else None,
        )
        check_event_time(name, getattr(made, "event_time", None), step.output)
        return self._add_operator(step)

    def _add_operator(self, step: OperatorStep) -> Stream:
        node = self._flow.add(partial(StepNode, parent=self._tails[0], step=step))
        return replace(self, _tails=(node,), _schema=step.output, _level=self._level + 1)

    def _check_key_unchanged(self, name: str, root: ExchangeNode) -> None:
        replaced = [column for column in root.columns if trace_columns(self._tails[0], column)[1] != column]
        if replaced:
            raise PlanError(
                f"{root.title} partitions the rows for {name}, and a select between them makes another column of "
                f"{', '.join(map(repr, replaced))}: rows that are equal in it are in different partitions. Put the "
                f"select before the exchange, or after {name}, or give the new column another name"
            )

    def _route_to_check(self, root: ExchangeNode) -> Route | None:
        """Return the route to `root` if the plan cannot prove that the steps after it keep the key; the rows must."""
        is_known = all(trace_columns(self._tails[0], column)[0] is root for column in root.columns)
        return None if is_known or root.partitions == 1 else root.inputs[0].route

    def _check_key(self, name: str, root: ExchangeNode) -> None:
        if not root.columns:
            raise PlanError(
                f'{name} keeps its state by key: name its columns in an exchange by="hash" or by="range" before '
                'it, instead of by="any"'
            )
        gone = [column for column in root.columns if self._schema is not None and column not in self._schema.names]
        if gone:
            raise PlanError(
                f"{name} keeps its state by {', '.join(map(repr, root.columns))}, and a step between the exchange and "
                f"it has left out {', '.join(map(repr, gone))}: keep the column, or put the step after {name}"
            )

    # Several streams.

    def union(self, *others: Stream) -> Stream:
        """Merge the rows of all these streams, which have the same columns, by sequence number.

        Rows that stem from the same input are emitted in the order in which the streams are named.
        """
        streams = (self, *others)
        for other in others:
            self._check_partner("union", other)
            assert self._schema is not None and other._schema is not None
            if self._schema.names != other._schema.names or self._schema.types != other._schema.types:
                raise PlanError(
                    "union takes streams with the same columns in the same order; one has "
                    f"({describe_columns(self._schema)}), the other ({describe_columns(other._schema)}). "
                    "Make them alike with select(...)"
                )
        schemas = {stream._schema.remove_metadata() for stream in streams if stream._schema is not None}
        if len(schemas) > 1:  # They differ in which columns may be null: the union allows nulls in all.
            assert self._schema is not None
            common = pa.schema([field.with_nullable(True).remove_metadata() for field in self._schema])
            streams = tuple(stream._with_schema(common) for stream in streams)
        return replace(
            streams[0],
            _tails=tuple(tail for stream in streams for tail in stream._tails),
            _level=max(stream._level for stream in streams),
        )

    def _with_schema(self, schema: pa.Schema) -> Stream:
        """Return the same rows with a schema that allows nulls."""
        names = {name: name for name in schema.names}
        return self._with_steps(f"select({', '.join(names)})", partial(Select, names), schema)

    def join(
        self,
        other: Stream,
        on: str | Sequence[str] | Mapping[str, str],
        within: int | Mapping[str, Any],
        partitions: int = 32,
        availability: Availability | None = None,
        suffix: str = "_right",
    ) -> Stream:
        """Emit pairs of rows of two streams that agree in `on` and are close to each other; see `flux.operators.Join`.

        `on` names columns that both have; a dict names them as {left: right}. `within` is a number of input rows, or
        {column: bound} for a column of times or numbers that both have. If it is the event time of both, rows are
        dropped as watermarks pass. If not, they are kept until the end of the stream, and `flow.explain()` says what to
        do about it. A pair has the left columns, then the right ones without those of `on`; right columns whose names
        are taken get the `suffix`.
        """
        self._check_partner("join", other)
        check_partitions(partitions, availability)
        assert self._schema is not None and other._schema is not None
        joined = JoinSpec.of(self._schema, other._schema, on, within, suffix)
        kept = None if joined.column is None else self._find_retention(joined.column, self._tails + other._tails)
        joined = replace(joined, is_event_time=joined.column is not None and kept is None)
        inputs = tuple(
            Input(tail=tail, route=Route(partitions=partitions, columns=columns), side=side)
            for side, (stream, columns) in enumerate(((self, joined.ours), (other, joined.theirs)))
            for tail in stream._tails
        )
        sides = (self._schema, other._schema)
        stream = self._add_exchange(inputs, joined.ours, partitions, availability, "sn", sides)
        level = max(self._level, other._level)
        step = OperatorStep(
            factory=Join,
            parameters={"joined": joined},
            name="Join",
            key_columns=joined.ours,
            partitions=partitions,
            level=level,
            output=joined.output,
            kept=kept,
        )
        return replace(stream, _level=level)._add_operator(step)

    def _find_retention(self, column: str, tails: tuple[FlowNode, ...]) -> Retained | None:
        """Return why a join within a bound of `column` keeps rows until the end of the stream; None if it does not."""
        sources = self._flow.sources
        times = {n: None if each.event_time is None else each.event_time.column for n, each in enumerate(sources)}
        whys = [why_not_event_time(tail, column, times) for tail in tails]
        if not any(whys) and not any(each.event_time or each.emits_time is not False for each in sources):
            whys = ["no source has event time: use flow.source(..., event_time=...)"]
        if not any(whys):
            return None
        why = next(filter(None, whys))
        endless = [f"{type(sources[n]).__name__}" for n in sorted(sources_of(tails)) if sources[n].is_endless]
        return Retained(f"the plan does not know that {column!r} is event time: {why}", tuple(dict.fromkeys(endless)))

    def _check_partner(self, what: str, other: Stream) -> None:
        if not isinstance(other, Stream):
            raise PlanError(f"{what} takes another stream, got {type(other).__name__}")
        if other._flow is not self._flow:
            raise PlanError(
                f"{what} takes streams of one dataflow; these are of {self._flow.name!r} and {other._flow.name!r}. "
                "Give one dataflow both sources"
            )
        for stream in (self, other):
            stream._check_no_open_exchange(f"a {what}")
            stream._check_columns(what, (), needed=True)

    # The end.

    def sink(self, sink: Sink, order: Order = "sn") -> None:
        """Send the stream's tuples to `sink`, by sequence number or, with `order="any"`, as they arrive."""
        if not isinstance(sink, Sink):
            raise PlanError(f"sink takes a sink such as flux.sinks.Collect(), got {type(sink).__name__}")
        check_choice("order", order, ("sn", "any"))
        self._check_no_open_exchange("a sink")
        if any(sink is known for known in self._flow.sinks):
            raise PlanError(
                f"this {type(sink).__name__} takes another stream of {self._flow.name!r} already: give each stream a "
                "sink of its own, or unite them with a.union(b) before one"
            )
        sink.order = order
        sink.expect(self._schema)
        self._flow.add_sink(Ending(tails=self._tails, order=order, name=type(sink).__name__), sink, self._schema)

    # Checks.

    def _check_no_open_exchange(self, what: str) -> None:
        for tail in self._tails:
            if isinstance(tail, ExchangeNode):
                raise PlanError(f"{tail.title} is followed by {what}: put .apply(an operator) in between")

    def _check_columns(self, what: str, columns: Sequence[str], needed: bool = False) -> None:
        if self._schema is None:
            if needed:
                self._refuse_unknown(what, columns)
            return
        unknown = [column for column in columns if column not in self._schema.names]
        if unknown:
            raise PlanError(
                f"{what}({', '.join(map(repr, columns))}): the stream has no column "
                f"{', '.join(map(repr, unknown))}; it has {', '.join(self._schema.names)}"
            )
        if what == "exchange":
            for column in columns:
                tokens(pa.array([], self._schema.field(column).type))  # Raises if values of this type cannot be hashed.

    def _refuse_unknown(self, what: str, columns: Sequence[str]) -> NoReturn:
        tail = self._tails[0]
        name = tail.step.name if isinstance(tail, StepNode) else "the stream"
        hint = 'declare the type of each function, as in select(new=(function, "float64"))'
        if not name.startswith("select("):
            hint = f'give {name} an `output = {{"column": "type", ...}}`'
        raise PlanError(f"{name} does not say what it emits, so {what}({', '.join(columns)}) cannot be planned: {hint}")
