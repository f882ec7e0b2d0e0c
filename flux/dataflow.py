"""Dataflow: what a user writes: sources, streams and sinks, and how they become a run."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa

from .errors import PlanError
from .event_time import DEFAULT_EVERY_MS, EventTime
from .operator import asked
from .plain import ColumnError, columns_of, plain_schema
from .plan import Availability, OnError, OnOverload, Plan, Policy
from .plan.explain import explained
from .plan.graph import ExchangeNode, SourceNode, StepNode
from .plan.picture import drawn
from .plan.planner import Ending, Logical
from .report import Report
from .run import Run
from .sinks import Sink
from .sources import Source
from .stream import Stream

__all__ = ["POOL_ROWS", "Dataflow", "Stream"]

POOL_ROWS = 256 * 1024  # What a producer keeps until its consumers have it, before it waits.

N = TypeVar("N", StepNode, ExchangeNode)


class Dataflow:
    """Sources, exchanges and operators, and sinks: any graph without cycles.

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
        self._sources: list[Source] = []
        self._sinks: list[Sink] = []
        self._outputs: list[pa.Schema | None] = []  # What each sink is given, if it is known.
        self._source_nodes: list[SourceNode] = []
        self._nodes: list[StepNode | ExchangeNode] = []
        self._endings: list[Ending] = []
        self._made = 0

    def source(
        self,
        source: Source,
        event_time: str | None = None,
        lateness_ms: int = 0,
        watermark_every_ms: int = DEFAULT_EVERY_MS,
    ) -> Stream:
        """The stream that `source` supplies. A flow may have several: one ingress numbers all rows as they come.

        With `event_time`, the name of a column of timestamps, dates or integers (milliseconds), the ingress sets
        watermarks among the rows: one behind each row that brings the greatest event time so far, less `lateness_ms`,
        into a further step of `watermark_every_ms`. Time windows and timers go by them; rows that come after the
        watermark has passed their window are late. See `flux.event_time`.
        """
        if not isinstance(source, Source):
            raise PlanError(
                f"{self.name}.source takes a source such as flux.sources.Table(data), got {type(source).__name__}"
            )
        if any(source is known for known in self._sources):
            raise PlanError(
                f"{self.name}.source: this {type(source).__name__} is a source of the flow already. Keep the stream "
                "that the first call returned: it can be used several times"
            )
        try:
            schema = plain_schema(source.schema)
        except ColumnError as error:
            raise PlanError(f"{self.name}.source({type(source).__name__}): {error}") from error
        source.event_time = _event_time(source, schema, self.name, event_time, lateness_ms, watermark_every_ms)
        node = SourceNode(number=len(self._sources), name=type(source).__name__)
        self._sources.append(source)
        self._source_nodes.append(node)
        return Stream(_flow=self, _tails=(node,), _schema=schema)

    def _add(self, node: Callable[..., N]) -> N:
        """A node of the graph, with its number: what it takes rows from has a lower one."""
        self._made += 1
        made = node(number=self._made)
        self._nodes.append(made)
        return made

    def _end(self, ending: Ending, sink: Sink, output: pa.Schema | None) -> None:
        self._endings.append(ending)
        self._sinks.append(sink)
        self._outputs.append(output)

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
        return Run(plan, self._sources, self._sinks, self._outputs, record)

    def explain(
        self,
        sites: int = 2,
        standby: int = 0,
        availability: Availability = "pairs",
        path: str | Path | None = None,
    ) -> str:
        """Say how the flow would run on so many sites: its steps, segments, partitions and where each copy lives.

        With `path`, a .png, .svg or .pdf file, the plan is drawn there too.
        """
        if path is not None and not isinstance(path, str | os.PathLike):
            raise PlanError(f"explain(path=...) is the name of a .png, .svg or .pdf file, got {path!r:.200}")
        plan = self._plan(sites, standby, availability, POOL_ROWS, Policy())
        sources = [type(source).__name__ for source in self._sources]
        sinks = [type(sink).__name__ for sink in self._sinks]
        if path is not None:
            drawn(plan, sources, sinks, Path(path))
        return explained(plan, [_said_of(source) for source in self._sources], sinks)

    def _plan(self, sites: int, standby: int, availability: Availability, pool_rows: int, policy: Policy) -> Plan:
        if availability not in ("pairs", "none"):
            raise PlanError(f"availability is 'pairs' or 'none', got {availability!r}")
        logical = Logical(
            name=self.name,
            sources=tuple(self._source_nodes),
            nodes=tuple(self._nodes),
            endings=tuple(self._endings),
        )
        plan = logical.plan(availability, sites=sites, standby=standby, pool_rows=pool_rows, policy=policy)
        _check_time_is_told(plan, self._sources)
        return plan


def _said_of(source: Source) -> str:
    """What a source is and gives, for an explanation."""
    said, told = f"{type(source).__name__}: {columns_of(source.schema)}", source.event_time
    return said if told is None else f"{said}; event time is {told.column}, rows may be {told.lateness_ms:,} ms late"


def _check_time_is_told(plan: Plan, sources: list[Source]) -> None:
    """Raise if a step goes by a time that no source tells: it would wait for ever, and say nothing."""
    told = {
        "clock": any(source.tells_time is not False for source in sources),
        "watermark": any(source.tells_time is not False or source.event_time is not None for source in sources),
    }
    for step in (step for segment in (plan.first, *plan.segments) for step in segment.steps):
        time = getattr(asked(step.factory, step.name), "told_time_by", None)
        if time is not None and not told[time]:
            raise PlanError(
                f"step {step.name!r}: its notify_at asks to be notified by the {time}, and no source of the flow tells "
                f"it: {', '.join(type(source).__name__ for source in sources)}. Say flux.wrap_bytewax(..., "
                'time="watermark") and flow.source(..., event_time="column"); or time=None, if nobody is to be notified'
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
