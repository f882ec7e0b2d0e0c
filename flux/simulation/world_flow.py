"""World flow: the dataflow that a simulated world runs, drawn from its seed, and the output it must have.

Rows of a source have keys of their own. So the output of each source is known exactly, in order, however the rows of
several sources are interleaved.
"""

# ruff: noqa: RUF012 - operators declare `output` as users do, without ClassVar.

from __future__ import annotations

import functools
import json
import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from ..dataflow import Dataflow
from ..model.operator import Context, KeyedOperator
from ..sinks import Collect, Jsonl, Sink
from ..sources import Table
from ..spark.sink.outlet import Outlet

OUTPUT = Path("/simulated/output/rows.jsonl")
OUTLET = Path("/simulated/outlet")
_SEGMENT_BYTES = 700
_NAMES = ("source", "n", "nth", "total")


class RunningTotal(KeyedOperator):
    """Numbers the rows of a key, and adds them up, each with the `bonus`."""

    output = {"source": "int64", "n": "int64", "nth": "int64", "total": "int64"}

    def open(self, context: Context) -> None:
        self.bonus = context.parameters.get("bonus", 0)

    def on_tuple(self, key: Any, row: Any, state: Any) -> Any:
        nth, total = state or (0, 0)
        nth, total = nth + 1, total + row.n + self.bonus
        return [nth, total], [{"source": row.source, "n": row.n, "nth": nth, "total": total}]


class KeptSink(Sink):
    """Keeps rows outside of all processes; `effect` is called before and after each write.

    It replaces what a repeated write replaces. One that `keeps_position` returns it when it is opened.
    """

    def __init__(self, kept: list[tuple[int, list[Any]]], effect: Callable[[str], None], keeps_position: bool) -> None:
        self._kept = kept
        self._effect = effect
        self._keeps_position = keeps_position
        self.blocks = True

    def open(self, directory: Path) -> int | None:
        return (self._kept[-1][0] if self._kept else 0) if self._keeps_position else None

    def write(self, rows: pa.RecordBatch, after: int, upto: int) -> None:
        self._effect(f"begins {after} to {upto}")
        while self._kept and self._kept[-1][0] > after:
            self._kept.pop()
        self._kept.append((upto, rows.to_pylist()))
        self._effect(f"has {after} to {upto}")


@dataclass(frozen=True, kw_only=True)
class WorldFlow:
    """A dataflow and its settings."""

    sources: int
    rows: int
    keys: int
    partitions: int
    stages: int
    sink: str
    batch_rows: int
    rate: float
    sites: int
    standby: int
    pool_rows: int

    @classmethod
    def draw(cls, rng: random.Random) -> WorldFlow:
        """Return a flow at random."""
        rows = rng.randint(3, 12)
        return cls(
            sources=rng.choice((1, 1, 1, 2)),
            rows=rows,
            keys=rng.randint(1, 5),
            partitions=rng.randint(1, 4),
            stages=rng.choice((1, 1, 1, 1, 2)),
            sink=rng.choice(("collect", "jsonl", "kept", "kept", "kept with position")),
            batch_rows=rng.choice((1, 2, 3, 5)),
            rate=rows / rng.choice((0.1, 0.2, 0.4)),
            sites=rng.choice((2, 2, 2, 3, 4)),
            standby=rng.choice((0, 0, 0, 1)),
            pool_rows=rng.choice((8, 32, 1_000)),
        )

    def limited(self, rows_max: int | None, sites_max: int | None) -> WorldFlow:
        """Return the flow with no more rows of each source and no more sites than these."""
        rows = self.rows if rows_max is None else min(self.rows, rows_max)
        sites = self.sites if sites_max is None else min(self.sites, sites_max)
        return replace(self, rows=rows, sites=sites)

    def build(self, sink: Sink) -> Dataflow:
        """Return the dataflow with this sink; each process has one of its own."""
        flow = Dataflow("world")
        tables = [
            Table(_table(number, self.rows, self.keys), rate=self.rate, batch_rows=self.batch_rows)
            for number in range(self.sources)
        ]
        first, *others = [flow.source(table) for table in tables]
        stream = first.union(*others) if others else first
        stream = stream.exchange("source", "key", partitions=self.partitions).apply(RunningTotal)
        if self.stages == 2:
            stream = stream.exchange("source", "nth", partitions=self.partitions).apply(RunningTotal)
        stream.sink(sink)
        return flow

    def make_sink(self, kept: list[tuple[int, list[Any]]], effect: Callable[[str], None]) -> Sink:
        """Return a sink of the flow's kind."""
        if self.sink == "collect":
            return Collect()
        if self.sink == "jsonl":
            return Jsonl(OUTPUT)
        if self.sink == "outlet":
            return Outlet(OUTLET, segment_bytes=_SEGMENT_BYTES)
        return KeptSink(kept, effect, keeps_position=self.sink != "kept")

    def inputs(self, source: int) -> list[tuple[int, int]]:
        """Return key and number of the rows of a source."""
        table = _table(source, self.rows, self.keys)
        return [(key.as_py(), n.as_py()) for key, n in zip(table["key"], table["n"], strict=True)]

    def expected(self, source: int) -> list[tuple[int, ...]]:
        """Return the output of one source, as a plain loop computes it."""
        rows = self.inputs(source)
        for _ in range(self.stages):
            states: dict[int, tuple[int, int]] = {}
            made: list[tuple[int, ...]] = []
            for key, n in rows:
                nth, total = states.get(key, (0, 0))
                states[key] = nth, total = nth + 1, total + n
                made.append((source, n, nth, total))
            rows = [(nth, n) for _, n, nth, _ in made]
        return made

    def difference(self, output: list[dict[str, Any]], is_whole: bool = True) -> str | None:
        """Return how an output, or its beginning, differs from what it must be; None if it does not."""
        for source in range(self.sources):
            got = [tuple(row[name] for name in _NAMES) for row in output if row["source"] == source]
            expected = self.expected(source)[: None if is_whole else len(got)]
            if got != expected:
                at = next((i for i, (a, b) in enumerate(zip(got, expected, strict=False)) if a != b), None)
                place = min(len(got), len(expected)) if at is None else at
                return (
                    f"source {source} gave {len(got)} rows of output, not {len(expected)}; from row {place} on it is "
                    f"{got[place : place + 3]}, not {expected[place : place + 3]}"
                )
        return None


@functools.lru_cache(maxsize=64)
def _table(source: int, rows: int, keys: int) -> pa.RecordBatch:
    """Return the rows of a source; each process of a world reads them."""
    numbers = range(rows)
    columns = {"source": [source] * rows, "key": [n * 7 % keys for n in numbers], "n": list(numbers)}
    return pa.record_batch(columns)


def rows_of_lines(content: bytes) -> list[dict[str, Any]]:
    """Return the rows in a file of `Jsonl`."""
    return [json.loads(line) for line in content.splitlines()]
