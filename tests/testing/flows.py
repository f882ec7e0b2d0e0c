"""Dataflows of every kind that Flux runs, small ones, to be simulated."""

# ruff: noqa: RUF012 - operators declare `output` as users do, without ClassVar.

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import pyarrow as pa

import flux

CARDS = [{"card": i * 7 % 5, "ts": 100 * i + (i * 37 % 5) * 90, "amount": float(i % 11)} for i in range(36)]
DIGITS = {"digit": "int64", "total": "float64"}
ALARMS = [{"card": i % 5, "ts": 260 * i, "level": i % 3} for i in range(14)]


class Running(flux.KeyedOperator):
    """A running total for each card."""

    output = {"card": "int64", "total": "float64"}

    def on_tuple(self, key: Any, row: Any, state: Any) -> Any:
        total = (state or 0.0) + row.amount
        return total, [{"card": row.card, "total": total}] * (1 + (row.card == 3))


class Seen(flux.Operator):
    """Numbers what a partition sees, and so tells any two of its rows that change places."""

    output = {"nth": "int64"}

    def open(self, context: Any) -> None:
        self.seen = 0

    def process(self, batch: Any) -> Any:
        first, self.seen = self.seen, self.seen + len(batch)
        return batch.emit({"nth": range(first, self.seen)})

    def get_state(self) -> Any:
        return self.seen

    def install_state(self, state: Any) -> None:
        self.seen = state


class Tells(flux.Operator):
    """How many rows there were, at each punctuation; and what it was."""

    output = {"kind": "string", "value": "int64", "rows": "int64"}

    def open(self, context: Any) -> None:
        self.rows = 0

    def process(self, batch: Any) -> Any:
        self.rows += len(batch)

    def on_punctuation(self, p: Any) -> Any:
        value = None if p.kind == "end" else p.value  # That of the end is the time of day.
        return {"kind": [p.kind], "value": [value], "rows": [self.rows]}

    def get_state(self) -> Any:
        return self.rows

    def install_state(self, state: Any) -> None:
        self.rows = state


class Totals(flux.Operator):
    """A running total behind each row, and three rows at each punctuation."""

    output = {"card": "int64", "amount": "float64"}

    def open(self, context: Any) -> None:
        self.total = 0.0

    def process(self, batch: Any) -> Any:
        totals = []
        for row in batch.rows():
            self.total += row.amount
            totals.append(self.total)
        return batch.emit({"card": batch.column("card"), "amount": totals})

    def on_punctuation(self, p: Any) -> Any:
        return {"card": [1, 2, 3], "amount": [self.total, self.total + 1, self.total + 2]}

    def get_state(self) -> Any:
        return self.total

    def install_state(self, state: Any) -> None:
        self.total = state


class Silent(flux.KeyedOperator):
    """Tells which cards were silent for so long."""

    output = {"card": "int64", "since": "int64"}

    def on_tuple(self, key: Any, row: Any, state: Any) -> Any:
        self.cancel_timer()
        self.set_timer(row.ts + 300)
        return row.ts, None

    def on_timer(self, key: Any, time: int, state: Any) -> Any:
        return None, [{"card": key[0], "since": state}]


class Largest(flux.KeyedOperator):
    """The largest total of those that came before, by its last digit."""

    output = {"digit": "int64", "largest": "float64"}

    def on_tuple(self, key: Any, row: Any, state: Any) -> Any:
        largest = max(row.total, state or 0.0)
        return largest, [{"digit": key[0], "largest": largest}]


class Doubles(flux.Operator):
    """What it makes of a row depends on that row alone."""

    output = {"card": "int64", "twice": "float64"}

    def process(self, batch: Any) -> Any:
        return batch.emit({"card": batch.column("card"), "twice": batch["amount"] * 2})


class Marked(flux.sources.Source):
    """Rows with punctuations of its own among them: a boundary behind each five, and the time."""

    replays = None
    schema = pa.schema({"card": pa.int64(), "ts": pa.int64(), "amount": pa.float64()})

    async def batches(self, context: Any, after: Any = None) -> AsyncIterator[flux.sources.SourceBatch]:
        for start in range(0, 20, 5):
            rows = pa.RecordBatch.from_pylist(CARDS[start : start + 5], self.schema)
            yield flux.sources.SourceBatch(rows)
            yield flux.sources.SourceBatch(rows.slice(0, 0), punctuations=(("clock", start), ("batch", start // 5)))


def cards(flow: flux.Dataflow, **times: Any) -> Any:
    return flow.source(flux.sources.Table(CARDS, batch_rows=7), **times)


def alarms(flow: flux.Dataflow, **times: Any) -> Any:
    return flow.source(flux.sources.Table(ALARMS, batch_rows=4), **times)


def chain() -> flux.Dataflow:
    """Steps without state before, in and behind the segments."""
    flow = flux.Dataflow("chain")
    some = cards(flow).filter(lambda row: row.amount < 9).select("card", "ts", amount="amount")
    totals = some.exchange("card", partitions=3).apply(Running)
    digits = totals.map(lambda row: {"digit": int(row.total) % 10, "total": row.total}, DIGITS)
    largest = digits.exchange("digit", partitions=2).apply(Largest).filter(lambda row: row.largest > 1)
    largest.flat_map(lambda row: [{"digit": row.digit}] * (row.digit % 3)).sink(flux.sinks.Collect())
    return flow


def stateless() -> flux.Dataflow:
    """No exchange at all: from the ingress to the egress. The first batches are filtered away."""
    flow = flux.Dataflow("stateless")
    few = cards(flow).filter(lambda row: row.ts > 1_500)
    few.map(lambda row: {"cents": int(100 * row.amount)}).sink(flux.sinks.Collect())
    return flow


def branches() -> flux.Dataflow:
    """One stream with several consumers, a union of two of its branches, and three sinks; one takes any order."""
    flow = flux.Dataflow("branches")
    events = cards(flow)
    totals = events.exchange("card", partitions=3).apply(Running)
    small = totals.filter(lambda row: row.total < 20)
    large = totals.filter(lambda row: row.total >= 15)
    small.union(large).exchange("card", partitions=2).apply(Seen).sink(flux.sinks.Collect())
    totals.sink(flux.sinks.Null(), order="any")
    events.select("card").sink(flux.sinks.Jsonl("/nowhere"))
    return flow


def two_sources() -> flux.Dataflow:
    flow = flux.Dataflow("two sources")
    columns = ("card", "ts")
    both = cards(flow).select(*columns).union(alarms(flow).select(*columns))
    both.exchange("card", partitions=3).apply(Seen).sink(flux.sinks.Collect())
    return flow


def joined(operator: Any = Running) -> flux.Dataflow:
    """Two sources, joined by card within so many milliseconds, and an operator behind the join."""
    flow = flux.Dataflow("joined")
    pairs = cards(flow).join(alarms(flow), on="card", within={"ts": 400}, partitions=3)
    pairs.exchange("card", partitions=2).apply(operator).sink(flux.sinks.Collect())
    return flow


def windows() -> flux.Dataflow:
    """Windows of event time over rows that come late, and those of the windows again."""
    flow = flux.Dataflow("windows")
    events = cards(flow, event_time="ts", lateness_ms=200, watermark_every_ms=250)
    aggregates = {"rows": "count", "total": ("sum", "amount")}
    sums = events.exchange("card", partitions=3).apply(
        flux.operators.TimeWindow, time="ts", size_ms=500, aggregates=aggregates
    )
    top = sums.exchange("window_start", partitions=2).apply(
        flux.operators.TopK, k=2, by="total", time="window_start", size_ms=500
    )
    top.sink(flux.sinks.Collect())
    return flow


def joined_windows() -> flux.Dataflow:
    """The watermark is the least of two sources, of which one ends before the other."""
    flow = flux.Dataflow("joined windows")
    ours = cards(flow, event_time="ts", lateness_ms=400, watermark_every_ms=100)
    theirs = alarms(flow, event_time="ts", watermark_every_ms=300)
    pairs = ours.join(theirs, on="card", within={"ts": 400}, partitions=2)
    pairs.exchange("card", partitions=2).apply(Tells).sink(flux.sinks.Collect())
    return flow


def timers() -> flux.Dataflow:
    flow = flux.Dataflow("timers")
    events = cards(flow, event_time="ts", watermark_every_ms=100)
    silent = events.exchange("card", partitions=3).apply(Silent)
    silent.exchange("since", partitions=2).apply(Seen).sink(flux.sinks.Collect())
    return flow


def punctuated() -> flux.Dataflow:
    """The source sets punctuations: clock readings and batch boundaries, which all stages are given."""
    flow = flux.Dataflow("punctuated")
    totals = flow.source(Marked()).exchange("card", partitions=2).apply(Running)
    totals.exchange("card", partitions=3).apply(Tells).sink(flux.sinks.Collect())
    return flow


def caused() -> flux.Dataflow:
    """Rows that a watermark caused in one stage meet, in the next one, those that it causes there."""
    flow = flux.Dataflow("caused")
    totals = cards(flow, event_time="ts", watermark_every_ms=1_000).select("card", "amount")
    for _ in range(2):
        totals = totals.exchange("card", partitions=2).apply(Totals)
    totals.sink(flux.sinks.Collect())
    return flow


def any_order() -> flux.Dataflow:
    """Stages and a sink that do not wait for the merge; watermarks go by them all the same."""
    flow = flux.Dataflow("any order")
    events = cards(flow, event_time="ts", watermark_every_ms=500)
    dealt = events.exchange(by="any", partitions=3, order="any").apply(Doubles)
    again = dealt.select("card", amount="twice").exchange("card", partitions=2, order="any").apply(Doubles)
    again.sink(flux.sinks.Collect(), order="any")
    dealt.exchange("card", partitions=2).apply(Tells).sink(flux.sinks.Collect())
    return flow


def ranges() -> flux.Dataflow:
    flow = flux.Dataflow("ranges")
    totals = cards(flow).exchange("card", by="range", boundaries=[1, 2, 4], partitions=4).apply(Running)
    totals.exchange("total", by="range", boundaries=[12.5], partitions=2).apply(Seen).sink(flux.sinks.Collect())
    return flow


def one_copy() -> flux.Dataflow:
    """The first stage has one copy, the second pairs."""
    flow = flux.Dataflow("one copy")
    totals = cards(flow).exchange("card", partitions=3, availability="none").apply(Running)
    totals.exchange("card", partitions=2).apply(Seen).sink(flux.sinks.Collect())
    return flow


KINDS: tuple[Callable[[], flux.Dataflow], ...] = (
    chain,
    stateless,
    branches,
    two_sources,
    joined,
    windows,
    joined_windows,
    timers,
    punctuated,
    caused,
    any_order,
    ranges,
    one_copy,
)
