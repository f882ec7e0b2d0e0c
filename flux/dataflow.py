"""Dataflow: sources, streams and sinks as a user writes them, and how to run them."""

from __future__ import annotations

import math
import os
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from .driver.processes import CRASH_LIMIT
from .driver.report import Report
from .model.event_time import DEFAULT_EVERY_MS, EventTime
from .model.plain_calls import check_sync_methods
from .model.skipped_rows import SKIPPED_SCHEMA
from .plan import Availability, OnError, OnOverload, Policy
from .plan.explain import explain_plan
from .plan.graph import ExchangeNode
from .plan.logical_flow import POOL_ROWS, LogicalFlow
from .plan.picture import draw_plan
from .plan.policy import BALANCE_DEFAULT, STUCK_AFTER_S, OnSlow
from .run import Run
from .sources import Source
from .stream import Stream
from .types.errors import PlanError
from .types.normalize import ColumnError, describe_columns, normalize_schema

__all__ = ["Dataflow", "Stream"]

_DAY_MS = 86_400_000


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
        idle_after_s: float | None = None,
        clock_ms: int | None = None,
    ) -> Stream:
        """Add a source and return its stream. A flow may have several: one ingress numbers all rows as they arrive.

        `event_time` names a column of timestamps, dates or integers (milliseconds). The ingress then emits watermarks:
        the greatest event time until now, less `lateness_ms`, whenever a row moves it into a further step of
        `watermark_every_ms`. Time windows and timers follow the watermarks; rows that arrive after the watermark has
        passed their window are late. See `flux.model.event_time`. If a step makes the column, name it there instead:
        `Stream.event_time`.

        The watermark is the least that all sources with event time have reached. With `idle_after_s`, a source that has
        given no rows for so long holds back the others no longer, until its next row.

        With `clock_ms`, the ingress emits a clock punctuation before the first row and then so often, in milliseconds,
        until the source has ended: operators that depend on the time of day see it there, the same in every copy.
        """
        if not isinstance(source, Source):
            raise PlanError(
                f"{self.name}.source takes a source such as flux.sources.Table(data), got {type(source).__name__}"
            )
        check_sync_methods(f"source {type(source).__name__}", type(source), Source)
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
        source.idle_after_s = _check_seconds(f"{self.name}.source({type(source).__name__})", idle_after_s)
        source.clock_ms = _check_clock(f"{self.name}.source({type(source).__name__})", clock_ms)
        node = self._logical.add_source(source)
        return Stream(_flow=self._logical, _tails=(node,), _schema=schema)

    def skipped(self) -> Stream:
        """Return the rows that a run with ``on_error="skip"`` skips, each once: `step`, `error` and `row`, as text.

        `row` holds the values of the row that the step refused, as JSON. Rows come from all steps, except those that
        themselves follow the stream of skipped rows. Without ``on_error="skip"`` there are none. Lines that `Files`
        cannot read are not rows yet: they are in the report alone. To have them here, read the file with
        ``format="text"`` and parse it in a step.

        >>> import flux
        >>> flow = flux.Dataflow("inverse")
        >>> numbers = flow.source(flux.sources.Table([{"n": 1}, {"n": 0}]))
        >>> numbers.map(lambda row: {"x": 1 / row.n}).sink(flux.sinks.Null())
        >>> flow.skipped().sink(flux.sinks.Collect())
        >>> flow.run(on_error="skip").table.to_pylist()
        [{'step': 'map(<lambda>)', 'error': 'ZeroDivisionError: division by zero', 'row': '{"n": 0}'}]
        """
        node = self._logical.add(
            partial(
                ExchangeNode,
                inputs=(),
                columns=(),
                partitions=1,
                availability=None,
                order="sn",
                takes_skipped=True,
            )
        )
        rows = Stream(_flow=self._logical, _tails=(node,), _schema=SKIPPED_SCHEMA)
        return rows.select(*SKIPPED_SCHEMA.names)

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
        crash_limit: int | None = CRASH_LIMIT,
        stuck_after_s: float = STUCK_AFTER_S,
        balance: Any = BALANCE_DEFAULT,
        slow: OnSlow = "wait",
        metrics_port: int | str | None = None,
    ) -> Run:
        """Start on `sites` local processes and return the handle; use it in a `with` block.

        `availability` is the default for exchanges. `pool_rows` bounds the rows that each producer buffers.
        With `record`, a directory, every process records its machine's messages and effects there.

        With `on_error="skip"`, a row for which an operator raises is skipped, counted and reported, and does not stop
        the run. With `on_overload="shed"`, rows that arrive while the buffers are full are dropped at the ingress,
        counted and reported; else the source waits. With `max_latency_ms`, only as many rows are in flight as are
        emitted within that time.

        Ingress, egress and controller are started again when they die. One that dies `crash_limit` times within 10 s
        ends the run; with None, none does. Deaths by `run.kill` and `flux kill` do not count.

        Code of a step, a sink or a source that has not returned after `stuck_after_s` is named in the log, in
        `run.status()` and in `flux top`, with its rows and its stack.

        With `balance="auto"`, partitions move from sites that have too much to do to others, and sites that are far
        slower than the rest hold them up no longer. With "off" neither happens. A policy can be named, "level" or
        "hill-climbing", or be an object with a method ``plan(statistics)`` that returns moves: those of `flux.balance`,
        or one of your own. Sites given by `standby` are spares, to which no policy moves load.

        In a run that is balanced, rows are kept for a slow site, and `run.status()` says how many and how long there is
        room for more. Then the source waits for it. With `slow="give-up"` its copies are given up instead, if each of
        its partitions has another copy on a site that is not slow. Such a partition has one copy until the site is not
        slow any more, or another one is added.

        With `metrics_port`, Prometheus can read the metrics of the run at that port of this machine, from this machine
        only, or at "HOST:PORT"; 0 is any free port, and `run.metrics_url` says which. See docs/metrics.rst.
        """
        policy = Policy(
            on_error=on_error,
            on_overload=on_overload,
            max_latency_ms=max_latency_ms,
            stuck_after_s=stuck_after_s,
            balance=balance,
            slow=slow,
        )
        logical = self._logical
        plan = logical.plan(sites, standby, availability, pool_rows, policy)
        return Run(plan, logical.sources, logical.sinks, logical.outputs, record, crash_limit, metrics_port)

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
    if time is not None:
        text = f"{text}; event time is {time.column}, rows may be {time.lateness_ms:,} ms late"
    if source.idle_after_s is not None:
        text = f"{text}; idle after {source.idle_after_s:g} s without rows"
    return text if source.clock_ms is None else f"{text}; with a clock every {source.clock_ms:,} ms"


def _check_seconds(step: str, idle_after_s: Any) -> float | None:
    is_number = isinstance(idle_after_s, int | float) and not isinstance(idle_after_s, bool)
    if idle_after_s is not None and not (is_number and 0 < idle_after_s < math.inf):
        raise PlanError(f"{step}: idle_after_s is a number of seconds above 0, or None; got {idle_after_s!r}")
    return None if idle_after_s is None else float(idle_after_s)


def _check_clock(step: str, clock_ms: int | None) -> int | None:
    is_whole = isinstance(clock_ms, int) and not isinstance(clock_ms, bool)
    if clock_ms is not None and not (is_whole and 1 <= clock_ms <= _DAY_MS):
        raise PlanError(f"{step}: clock_ms is a whole number of milliseconds from 1 to {_DAY_MS:,}; got {clock_ms!r}")
    return clock_ms


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
