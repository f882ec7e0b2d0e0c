"""Dataflow: sources, streams and sinks as a user writes them, and how to run them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pyarrow as pa

from .driver.report import Report
from .model.event_time import DEFAULT_EVERY_MS, EventTime
from .plan import Availability, OnError, OnOverload, Policy
from .plan.explain import explain_plan
from .plan.logical_flow import POOL_ROWS, LogicalFlow
from .plan.picture import draw_plan
from .run import Run
from .sources import Source
from .stream import Stream
from .types.errors import PlanError
from .types.normalize import ColumnError, describe_columns, normalize_schema

__all__ = ["Dataflow", "Stream"]


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
            raise PlanError(f"a dataflow's name is a non-empty string, got {name!r}")
        self.name = name
        self._logical = LogicalFlow(name)

    def source(
        self,
        source: Source,
        event_time: str | None = None,
        lateness_ms: int = 0,
        watermark_every_ms: int = DEFAULT_EVERY_MS,
    ) -> Stream:
        """Add a source and return its stream. A flow may have several: one ingress numbers all rows as they arrive.

        `event_time` names a column of timestamps, dates or integers (milliseconds). The ingress then emits watermarks:
        the greatest event time until now, less `lateness_ms`, whenever a row moves it into a further step of
        `watermark_every_ms`. Time windows and timers follow the watermarks; rows that arrive after the watermark has
        passed their window are late. See `flux.model.event_time`.
        """
        if not isinstance(source, Source):
            raise PlanError(
                f"{self.name}.source takes a source such as flux.sources.Table(data), got {type(source).__name__}"
            )
        if any(source is known for known in self._logical.sources):
            raise PlanError(
                f"{self.name}.source: this {type(source).__name__} is already a source of the flow. Keep the stream "
                "that the first call returned: it can be used several times"
            )
        try:
            schema = normalize_schema(source.schema)
        except ColumnError as error:
            raise PlanError(f"{self.name}.source({type(source).__name__}): {error}") from error
        source.event_time = _event_time(source, schema, self.name, event_time, lateness_ms, watermark_every_ms)
        node = self._logical.add_source(source)
        return Stream(_flow=self._logical, _tails=(node,), _schema=schema)

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

        `availability` is the default for exchanges. `pool_rows` bounds the rows that each producer buffers.
        With `record`, a directory, every process records its machine's messages and effects there.

        With `on_error="skip"`, a row for which an operator raises is skipped, counted and reported, and does not stop
        the run. With `on_overload="shed"`, rows that arrive while the buffers are full are dropped at the ingress,
        counted and reported; else the source waits. With `max_latency_ms`, only as many rows are in flight as are
        emitted within that time.
        """
        policy = Policy(on_error=on_error, on_overload=on_overload, max_latency_ms=max_latency_ms)
        logical = self._logical
        plan = logical.plan(sites, standby, availability, pool_rows, policy)
        return Run(plan, logical.sources, logical.sinks, logical.outputs, record)

    def explain(
        self,
        sites: int = 2,
        standby: int = 0,
        availability: Availability = "pairs",
        path: str | Path | None = None,
    ) -> str:
        """Return how the flow would run on so many sites: its steps, segments, partitions and where each copy lives.

        With `path`, a .png, .svg or .pdf file, the plan is drawn there too.
        """
        if path is not None and not isinstance(path, str | os.PathLike):
            raise PlanError(f"explain(path=...) is the name of a .png, .svg or .pdf file, got {path!r:.200}")
        plan = self._logical.plan(sites, standby, availability, POOL_ROWS, Policy())
        sources = [type(source).__name__ for source in self._logical.sources]
        sinks = [type(sink).__name__ for sink in self._logical.sinks]
        if path is not None:
            draw_plan(plan, sources, sinks, Path(path))
        return explain_plan(plan, [_describe_source(source) for source in self._logical.sources], sinks)


def _describe_source(source: Source) -> str:
    text, time = f"{type(source).__name__}: {describe_columns(source.schema)}", source.event_time
    return text if time is None else f"{text}; event time is {time.column}, rows may be {time.lateness_ms:,} ms late"


def _event_time(
    source: Source, schema: pa.Schema, flow: str, column: str | None, lateness_ms: int, every_ms: int
) -> EventTime | None:
    step = f"{flow}.source({type(source).__name__})"
    if column is None:
        if (lateness_ms, every_ms) != (0, DEFAULT_EVERY_MS):
            raise PlanError(f"{step}: lateness_ms and watermark_every_ms need event_time, the column of event times")
        return None
    time = EventTime(column=column, lateness_ms=lateness_ms, every_ms=every_ms)
    time.check(schema, step)
    return time
