"""Stream: how a user builds a dataflow. Each method adds a step, an exchange or a sink, and returns the new stream."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NoReturn

import pyarrow as pa

from .hosting import checked_operator
from .model.event_time import DEFAULT_EVERY_MS, EventTime
from .model.operator import OperatorStep, name_of, output_of
from .model.plain_calls import check_sync_methods
from .model.stateless import ALL_KEYS, AssignEventTime, Filter, FlatMap, Map, Select, select_columns, zeros
from .operators.late_rows import late_step
from .plan import Availability, By, Route, stream_merges
from .plan.arguments import (
    check_choice,
    check_event_time,
    check_factory,
    check_names,
    check_partitions,
    declared_schema,
)
from .plan.graph import ExchangeNode, FlowNode, Input, Order, SourceNode, StepNode, root_of
from .plan.key_checks import check_key_kept, check_key_unchanged, route_to_check
from .plan.logical_flow import LogicalFlow
from .plan.planner import Ending
from .plan.range_boundaries import range_boundaries
from .sinks import Sink
from .types.errors import PlanError
from .types.hashing import tokens
from .types.normalize import ColumnError

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
    # The operator that made it, and the stream that this took.
    _applied: tuple[StepNode, Stream] | None = None

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
        return self._select("select", columns, computed)

    def with_columns(self, **computed: Any) -> Stream:
        """Keep all columns and add `computed` ones, as with `select`; one that exists is replaced, in its place.

        >>> import flux
        >>> flow = flux.Dataflow("sizes")
        >>> sent = flow.source(flux.sources.Table([{"src": "a", "bytes": 1_500}]))
        >>> sent.with_columns(kb=(lambda batch: batch["bytes"] / 1e3, "float64")).sink(flux.sinks.Collect())
        >>> flow.run().table.to_pylist()
        [{'src': 'a', 'bytes': 1500, 'kb': 1.5}]
        """
        if not computed:
            raise PlanError("with_columns needs the columns to add, such as with_columns(total='bytes')")
        self._check_columns("with_columns", (), needed=True)
        assert self._schema is not None
        return self._select("with_columns", (), {name: name for name in self._schema.names} | computed)

    def _select(self, what: str, columns: tuple[str, ...], computed: Mapping[str, Any]) -> Stream:
        for name, source in computed.items():
            made = source[0] if isinstance(source, tuple) and len(source) == 2 else source
            if not isinstance(made, str) and not callable(made):
                raise PlanError(
                    f"{what}({name}=...) takes the name of a column, a function of the batch, or (function, type); got "
                    f"{source!r:.200}"
                )
        self._check_columns(what, [*columns, *(name for name in computed.values() if isinstance(name, str))])
        twice = sorted({name for name in columns if columns.count(name) > 1 or name in computed})
        if twice:
            raise PlanError(f"{what} names {', '.join(map(repr, twice))} twice; columns have different names")
        try:
            made, schema = select_columns(self._schema, columns, computed)
        except ColumnError as error:
            raise PlanError(f"{what}: {error}") from error
        return self._with_steps(f"select({', '.join(made)})", partial(Select, made), schema)

    def event_time(self, column: str, lateness_ms: int = 0, watermark_every_ms: int = DEFAULT_EVERY_MS) -> Stream:
        """Name the column that says when a row happened, after a step that made it; rows pass unchanged.

        It is what `event_time` of `flow.source` is for a column of the source. The ingress sets the watermarks, so it
        comes before the first exchange or join. Each source of a united stream has this event time, and no other.

        >>> import flux
        >>> flow = flux.Dataflow("parsed")
        >>> lines = flow.source(flux.sources.Table([{"line": "a 100"}, {"line": "b 2300"}]))
        >>> columns = {"k": "string", "ts": "int64"}
        >>> parsed = lines.map(lambda row: dict(zip(columns, (row.line[0], int(row.line[2:])))), columns)
        >>> windows = parsed.event_time("ts").exchange("k").apply(
        ...     flux.operators.TimeWindow, time="ts", size_ms=1_000, aggregates={"rows": "count"})
        >>> windows.sink(flux.sinks.Collect())
        >>> flow.run().table.select(["k", "window_end", "rows"]).to_pylist()
        [{'k': 'a', 'window_end': 1000, 'rows': 1}, {'k': 'b', 'window_end': 3000, 'rows': 1}]
        """
        if not isinstance(column, str):
            raise PlanError(f"event_time takes the name of a column, such as event_time('ts'); got {column!r:.200}")
        name = f"event_time({column!r}, lateness_ms={lateness_ms!r})"
        time = EventTime(column=column, lateness_ms=lateness_ms, every_ms=watermark_every_ms)
        check_event_time(name, column, self._schema)
        for tail in self._tails:
            self._flow.check_event_time_place(name, tail)
        return self._with_steps(name, partial(AssignEventTime, time), self._schema)

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
            rows=self._schema,
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
        balance: bool = True,
    ) -> Stream:
        """Repartition by `columns`; each partition lives as a pair unless availability is "none".

        `by="range"` keeps neighbouring values of one column together: partition i takes the values below the i-th of
        `boundaries`, of which there is one less than partitions. They can be chosen from a `sample` of values instead.
        Directly after a `Table`, the sample may be left out: rows from all over the table are used.

        Without columns, and with `partitions=1`, all rows are in one partition and have one key: for windows over all
        rows. One site does all the work then, so aggregate by some key before, if there are many rows.

        `by="any"` distributes rows by their position, whatever they contain: for operators that do not depend on which
        rows meet, such as enrichment. It needs no columns.

        With `order="any"`, rows are consumed as they arrive, not by sequence number, so a slow producer delays no
        others. The output for a row must not depend on which rows the operator has seen before it. Otherwise the two
        copies differ, and the run ends with an error. The operators of `flux.operators` depend on it: a plan error.

        With `balance=False`, no policy moves these partitions to even out the load (`flow.run(balance=...)`). Copies
        that were lost are rebuilt, and those of a site that is drained leave it, nevertheless.
        """
        check_choice("order", order, ("sn", "any"))
        check_choice("by", by, ("hash", "range", "any"))
        check_partitions(partitions, availability)
        if not isinstance(balance, bool):
            raise PlanError(
                f"exchange(balance=...) is True, or False if its partitions stay where they are; got {balance!r:.100}. "
                "The policy is given to the run: flow.run(balance=...)"
            )
        if not columns and by == "hash" and partitions == 1 and boundaries is None and sample is None:
            self._check_columns("exchange", (), needed=True)
            return self.with_columns(**{ALL_KEYS: (zeros, "int8")}).exchange(
                ALL_KEYS, partitions=1, availability=availability, order=order, balance=balance
            )
        if not columns and by != "any":
            raise PlanError(
                "exchange needs the columns that partition the stream, such as exchange('src', 'dst'), or partitions=1 "
                "for all rows in one partition"
            )
        check_names("exchange", columns)
        twice = sorted({column for column in columns if columns.count(column) > 1})
        if twice:
            raise PlanError(f"exchange names {', '.join(map(repr, twice))} twice: name each column once")
        self._check_no_open_exchange("another exchange")
        self._check_columns("exchange", columns, needed=True)
        route = Route(partitions=partitions, by=by, columns=columns)
        if by == "range":
            assert self._schema is not None
            chosen = range_boundaries(columns, self._schema, partitions, boundaries, sample, self._sample_column)
            route = replace(route, boundaries=chosen)
        elif boundaries is not None or sample is not None:
            raise PlanError(f'boundaries and sample are for by="range"; this exchange is by={by!r}')
        inputs = tuple(Input(tail=tail, route=route) for tail in self._tails)
        key = () if by == "any" else columns
        return self._add_exchange(inputs, key, partitions, availability, order, balance=balance)

    def _add_exchange(
        self,
        inputs: tuple[Input, ...],
        columns: tuple[str, ...],
        partitions: int,
        availability: Availability | None,
        order: Order,
        sides: tuple[pa.Schema, ...] = (),
        balance: bool = True,
    ) -> Stream:
        node = partial(
            ExchangeNode,
            inputs=inputs,
            columns=columns,
            partitions=partitions,
            availability=availability,
            order=order,
            sides=sides,
            balance=balance,
        )
        return replace(self, _tails=(self._flow.add(node),))

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
        check_key_unchanged(name, self._tails[0], root)
        if root.order == "any" and getattr(made, "needs_order", False):
            raise PlanError(
                f'{name} depends on the order of rows, and {root.title} has order="any": each copy takes rows as '
                'they arrive, and the copies would differ. Leave order="any" out of this exchange'
            )
        if getattr(made, "is_by_key", False):
            check_key_kept(name, self._schema, root)
        step = OperatorStep(
            factory=operator,
            parameters=parameters,
            name=name,
            key_columns=root.columns,
            partitions=root.partitions,
            level=self._level,
            output=output_of(operator, parameters, root.columns, self._schema),
            route=route_to_check(self._tails[0], root) if getattr(made, "is_by_key", False) else None,
            rows=self._schema,
        )
        check_event_time(name, getattr(made, "event_time", None), step.output)
        added = self._add_operator(step)
        if root.columns == (ALL_KEYS,) and step.output is not None and ALL_KEYS in step.output.names:
            return added.select(*(column for column in step.output.names if column != ALL_KEYS))
        return added

    def _add_operator(self, step: OperatorStep) -> Stream:
        node = self._flow.add(partial(StepNode, parent=self._tails[0], step=step))
        applied = (node, self)
        return replace(self, _tails=(node,), _schema=step.output, _level=self._level + 1, _applied=applied)

    def named(self, name: str) -> Stream:
        """Name the step directly before it: errors, metrics and `run.reconfigure` call it so, and not by its class.

        >>> import flux
        >>> flow = flux.Dataflow("named")
        >>> words = flow.source(flux.sources.Table([{"word": "to"}, {"word": "flux"}]))
        >>> distinct = words.exchange("word").apply(flux.operators.Distinct).named("new words")
        >>> distinct.sink(flux.sinks.Collect())
        >>> flow.run().outputs
        2
        """
        if not isinstance(name, str) or not name:
            raise PlanError(f"named takes the name of a step, such as named('fraud'); got {name!r:.200}")
        steps = [tail for tail in self._tails if isinstance(tail, StepNode)]
        if len(self._tails) != 1 or not steps:
            raise PlanError(
                f"named({name!r}) names the step directly before it, such as stream.apply(Fraud).named({name!r}); what "
                "is before it here is not one step"
            )
        self._flow.name_step(steps[0], name)
        return self

    def late(self) -> Stream:
        """Return the rows that the operator before it drops because they are late, each once, with all their columns.

        The operator is `TimeWindow`, `SessionWindow`, or `TopK` or `Distinct` with `time`, directly before `late()`:

        >>> import flux
        >>> flow = flux.Dataflow("late")
        >>> rows = flux.sources.Table([{"k": "a", "ts": ts} for ts in (0, 1_500, 3_000, 20)])
        >>> keyed = flow.source(rows, event_time="ts").exchange("k")
        >>> windows = keyed.apply(flux.operators.Distinct, time="ts", size_ms=1_000)
        >>> windows.sink(flux.sinks.Null())
        >>> windows.late().sink(flux.sinks.Collect())
        >>> flow.run().table.to_pylist()
        [{'k': 'a', 'ts': 20}]
        """
        node, before = (None, None) if self._applied is None else self._applied
        if node is None or before is None or self._tails != (node,):
            raise PlanError(
                "late() gives the late rows of the operator directly before it, such as windows = stream.exchange(...)"
                ".apply(flux.operators.TimeWindow, ...) and then windows.late(); there is none here"
            )
        late = late_step(node.step, before._schema)
        return replace(before, _tails=(self._flow.add(partial(StepNode, parent=node.parent, step=late)),))

    # Several streams.

    def union(self, *others: Stream) -> Stream:
        """Merge the rows of all these streams, which have the same columns, by sequence number.

        Rows that stem from the same input are emitted in the order in which the streams are named.
        """
        return stream_merges.union(self, others)

    def join(
        self,
        other: Stream,
        on: str | Sequence[str] | Mapping[str, str],
        within: int | Mapping[str, Any] | None,
        partitions: int = 32,
        availability: Availability | None = None,
        suffix: str = "_right",
        how: str = "inner",
    ) -> Stream:
        """Emit pairs of rows of two streams that agree in `on` and are close to each other; see `flux.operators.Join`.

        `on` names columns that both have; a dict names them as {left: right}. `within` is a number of input rows, or
        {column: bound} for a column of times or numbers that both have. Input is counted as it arrives: if the streams
        stem from different sources, which of their rows are that close differs from run to run. If the column is the
        event time of both, rows are dropped as watermarks pass. If not, they are kept until the end of the stream, and
        `flow.explain()` says what to do about it. With `within=None` all rows that agree are pairs: all rows are kept,
        so state grows without bound. A run that takes rows of an endless source logs a warning then.

        A pair has the left columns, then the right ones without those of `on`; right columns whose names are taken get
        the `suffix`. `how` is "inner", or "left", "right" or "outer" to emit rows of that side, or of both, that are in
        no pair; see `flux.operators.OuterJoin`.

        >>> import flux
        >>> flow = flux.Dataflow("paid")
        >>> orders = flow.source(flux.sources.Table([{"id": 1, "item": "pen"}, {"id": 2, "item": "ink"}]))
        >>> payments = flow.source(flux.sources.Table([{"id": 2, "cents": 700}]))
        >>> orders.join(payments, on="id", within=None, how="left").sink(flux.sinks.Collect())
        >>> sorted(flow.run().table.to_pylist(), key=lambda row: row["id"])
        [{'id': 1, 'item': 'pen', 'cents': None}, {'id': 2, 'item': 'ink', 'cents': 700}]
        """
        return stream_merges.join(self, other, on, within, partitions, availability, suffix, how)

    def lookup(
        self,
        table: Any,
        on: str | Sequence[str] | Mapping[str, str],
        how: str = "left",
        partitions: int = 32,
        availability: Availability | None = None,
        suffix: str = "_right",
        deletes: str | None = None,
        broadcast: bool = False,
    ) -> Stream:
        """Add to each row the columns of the table's row with the same `on`; each key has one row.

        `table` is a pyarrow.Table or a list of dicts, which is given to every site and does not change. Or it is
        another stream, whose last row of each key counts, from its position on; see `flux.operators.Lookup`. Only then
        are both streams exchanged: by `on`, or with `broadcast=True` the rows by their position and the table, which
        must be small, to every partition, so that a frequent key makes no partition slow. Rows of that stream with true
        in the column `deletes` remove the row of their key. A row without one has nulls; with ``how="inner"`` it is
        dropped. `on` and `suffix` are those of `join`.

        >>> import flux
        >>> flow = flux.Dataflow("places")
        >>> events = flow.source(flux.sources.Table([{"site": 2, "load": 7}, {"site": 3, "load": 1}]))
        >>> events.lookup([{"site": 2, "place": "Oslo"}], on="site").sink(flux.sinks.Collect())
        >>> flow.run().table.to_pylist()
        [{'site': 2, 'load': 7, 'place': 'Oslo'}, {'site': 3, 'load': 1, 'place': None}]
        """
        check_choice("how", how, ("left", "inner"))
        if not isinstance(broadcast, bool):
            raise PlanError(f"lookup(broadcast=...) is True or False, got {broadcast!r:.200}")
        if not isinstance(table, Stream):  # It is given to every site, broadcast or not.
            return stream_merges.lookup_in_table(self, table, on, how, suffix, deletes)
        return stream_merges.lookup_in_stream(
            self, table, on, how, partitions, availability, suffix, deletes, broadcast
        )

    # The end.

    def sink(self, sink: Sink, order: Order = "sn") -> None:
        """Send the stream's tuples to `sink`, by sequence number or, with `order="any"`, as they arrive."""
        if not isinstance(sink, Sink):
            raise PlanError(f"sink takes a sink such as flux.sinks.Collect(), got {type(sink).__name__}")
        check_sync_methods(f"sink {type(sink).__name__}", type(sink), Sink)
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
