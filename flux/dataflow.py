"""Dataflow and Stream: what a user writes, and how it becomes a plan."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa

from .errors import PlanError
from .event_time import DEFAULT_EVERY_MS, EventTime
from .operator import OperatorStep, output_of
from .plain import ColumnError, plain_schema
from .plan import Availability, OnError, OnOverload, Plan, Policy, Segment
from .report import Report
from .run import Run
from .sinks import Sink
from .sources import Source

PARTITIONS_MAX = 65_535  # A partition's number is a 16-bit column.
POOL_ROWS = 256 * 1024  # What a producer keeps until its consumers have it, before it waits.


class Dataflow:
    """A source, exchanges and operators, and a sink.

    >>> import flux
    >>> class Counts(flux.KeyedOperator):
    ...     output = {"word": "string", "count": "int64"}
    ...     def on_tuple(self, key, row, state):
    ...         count = (state or 0) + 1
    ...         return count, [{"word": row.word, "count": count}]
    >>> flow = flux.Dataflow("words")
    >>> words = flow.source(flux.sources.Table([{"word": w} for w in "to be or not to be".split()]))
    >>> words.exchange("word", partitions=4).apply(Counts).sink(flux.sinks.Collect())
    >>> flow.run(sites=2).table.to_pylist()[-1]
    {'word': 'be', 'count': 2}
    """

    def __init__(self, name: str) -> None:
        if not isinstance(name, str) or not name:
            raise PlanError(f"a dataflow's name is a text that is not empty, got {name!r}")
        self.name = name
        self._source: Source | None = None
        self._ends: list[tuple[Stream, Sink]] = []

    def source(
        self,
        source: Source,
        event_time: str | None = None,
        lateness_ms: int = 0,
        watermark_every_ms: int = DEFAULT_EVERY_MS,
    ) -> Stream:
        """The stream that `source` supplies.

        With `event_time`, the name of a column of timestamps, dates or integers (milliseconds), the ingress sets
        watermarks among the rows: one behind each row that brings the greatest event time so far, less `lateness_ms`,
        into a further step of `watermark_every_ms`. Time windows and timers go by them; rows that come after the
        watermark has passed their window are late. See `flux.event_time`.
        """
        if not isinstance(source, Source):
            raise PlanError(
                f"{self.name}.source takes a source such as flux.sources.Table(data), got {type(source).__name__}"
            )
        if self._source is not None:
            raise PlanError(f"dataflow {self.name!r} has a source already; several are not built yet")
        try:
            schema = plain_schema(source.schema)
        except ColumnError as error:
            raise PlanError(f"{self.name}.source({type(source).__name__}): {error}") from error
        source.event_time = _event_time(source, schema, self.name, event_time, lateness_ms, watermark_every_ms)
        self._source = source
        return Stream(_flow=self, _schema=schema)

    def run(self, sites: int = 2, standby: int = 0, **settings: Any) -> Report:
        """Run on `sites` local processes; return the report when the source has ended."""
        with self.start(sites, standby, **settings) as run:
            return run.wait()

    def start(
        self,
        sites: int = 2,
        standby: int = 0,
        availability: Availability = "pairs",
        pool_rows: int = POOL_ROWS,
        record: str | Path | None = None,
        on_error: OnError = "stop",
        on_overload: OnOverload = "wait",
        max_latency_ms: float | None = None,
    ) -> Run:
        """Start on `sites` local processes and return the handle; use it in a `with` block.

        `availability` holds for exchanges that do not say. `pool_rows` bounds what each producer keeps.
        With `record`, a directory, every process records its machine's messages and effects there.

        With `on_error="skip"`, a row for which an operator raises is left out, counted and reported, and does not stop
        the run. With `on_overload="shed"`, rows that come while there is no room for them are dropped at the ingress,
        counted and reported; else the source waits. With `max_latency_ms`, only as many rows are let in as come out
        within that time.
        """
        policy = Policy(on_error=on_error, on_overload=on_overload, max_latency_ms=max_latency_ms)
        plan = self._plan(sites, standby, availability, pool_rows, policy)
        assert self._source is not None
        [(stream, sink)] = self._ends
        return Run(plan, self._source, sink, stream._schema, record)

    def _plan(self, sites: int, standby: int, availability: Availability, pool_rows: int, policy: Policy) -> Plan:
        if self._source is None or not self._ends:
            missing = "source" if self._source is None else "sink"
            raise PlanError(f"dataflow {self.name!r} has no {missing}: call .{missing}(...) before running it")
        if len(self._ends) > 1:
            raise PlanError(f"dataflow {self.name!r} has {len(self._ends)} sinks; several are not built yet")
        _check_choice("availability", availability, ("pairs", "none"))
        stream, _ = self._ends[0]
        segments = tuple(
            segment if segment.availability else replace(segment, availability=availability)
            for segment in stream._segments
        )
        return Plan(name=self.name, segments=segments, sites=sites, standby=standby, pool_rows=pool_rows, policy=policy)


@dataclass(frozen=True, kw_only=True)
class Stream:
    """Tuples on their way: from a source, through an exchange, or out of an operator."""

    _flow: Dataflow
    _schema: pa.Schema | None
    _segments: tuple[Segment, ...] = ()

    def exchange(
        self,
        *columns: str,
        partitions: int = 32,
        availability: Availability | None = None,
        order: Literal["sn", "any"] = "sn",
        by: Literal["hash", "range", "any"] = "hash",
    ) -> Stream:
        """Repartition by `columns`; each partition lives as a pair unless availability is "none"."""
        _check_built("order", order, "sn", ("any",))
        _check_built("by", by, "hash", ("range", "any"))
        if availability is not None:
            _check_choice("availability", availability, ("pairs", "none"))
        if not columns:
            raise PlanError("exchange needs the columns that partition the stream, such as exchange('src', 'dst')")
        if not isinstance(partitions, int) or not 1 <= partitions <= PARTITIONS_MAX:
            raise PlanError(f"partitions is a number from 1 to {PARTITIONS_MAX:,}, got {partitions!r}")
        self._check_no_open_exchange("another exchange")
        self._check_columns(columns)
        segment = Segment(columns=columns, partitions=partitions, availability=availability, steps=())
        return replace(self, _segments=(*self._segments, segment))

    def apply(self, operator: Callable[[], Any], **parameters: Any) -> Stream:
        """Put an operator behind the exchange; `parameters` reach it as `context.parameters`."""
        name = getattr(operator, "__name__", repr(operator))
        if not callable(operator):
            raise PlanError(f"apply takes an operator class, got {operator!r}: write apply(Sessions, history=2)")
        if not self._segments:
            raise PlanError(f"{name} needs an exchange in front: write .exchange(columns).apply({name})")
        segment = self._segments[-1]
        step = OperatorStep(
            factory=operator,
            parameters=parameters,
            name=name,
            key_columns=segment.columns,
            partitions=segment.partitions,
            level=sum(len(s.steps) for s in self._segments),
            output=output_of(operator, parameters, segment.columns, self._schema),
        )
        segments = (*self._segments[:-1], replace(segment, steps=(*segment.steps, step)))
        return replace(self, _segments=segments, _schema=step.output)

    def sink(self, sink: Sink, order: Literal["sn", "any"] = "sn") -> None:
        """Send the stream's tuples to `sink`."""
        if not isinstance(sink, Sink):
            raise PlanError(f"sink takes a sink such as flux.sinks.Collect(), got {type(sink).__name__}")
        _check_built("order", order, "sn", ("any",))
        self._check_no_open_exchange("a sink")
        if not self._segments:
            raise PlanError("between source and sink a dataflow needs an exchange and an operator")
        sink.order = order
        self._flow._ends.append((self, sink))

    def _check_no_open_exchange(self, what: str) -> None:
        if self._segments and not self._segments[-1].steps:
            columns = ", ".join(self._segments[-1].columns)
            raise PlanError(f"exchange({columns}) is followed by {what}: put .apply(an operator) in between")

    def _check_columns(self, columns: tuple[str, ...]) -> None:
        if self._schema is None:
            operator = self._segments[-1].steps[-1].name
            raise PlanError(
                f"{operator} does not say what it emits, so exchange({', '.join(columns)}) cannot be "
                f'planned: give {operator} an `output = {{"column": "type", ...}}`'
            )
        unknown = [column for column in columns if column not in self._schema.names]
        if unknown:
            raise PlanError(
                f"exchange({', '.join(map(repr, columns))}): the stream has no column "
                f"{', '.join(map(repr, unknown))}; it has {', '.join(self._schema.names)}"
            )


def _event_time(
    source: Source, schema: pa.Schema, flow: str, column: str | None, lateness_ms: int, every_ms: int
) -> EventTime | None:
    whose = f"{flow}.source({type(source).__name__})"
    if column is None:
        if (lateness_ms, every_ms) != (0, DEFAULT_EVERY_MS):
            raise PlanError(f"{whose}: lateness_ms and watermark_every_ms need event_time, the column that tells time")
        return None
    told = EventTime(column=column, lateness_ms=lateness_ms, every_ms=every_ms)
    told.check(schema, whose)
    return told


def _check_choice(name: str, value: object, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise PlanError(f"{name} is {' or '.join(map(repr, choices))}, got {value!r}")


def _check_built(name: str, value: object, built: str, planned: tuple[str, ...]) -> None:
    _check_choice(name, value, (built, *planned))
    if value != built:
        raise PlanError(f"{name}={value!r} is not built yet; use {name}={built!r}")
