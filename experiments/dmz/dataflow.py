"""The dataflow of Thesis 2.2: packets of a network, a plain loop that computes the same, and what it gives.

Packets pass between 1,000 sources and 100 destinations. Each pair has one session after the other, of one
of 10 applications. The flow finds sessions by (src, dst), and for each (app, src) emits maximum and mean
duration of the last two. `plain_loop` is what one would write without Flux: dicts, one process, no numpy,
no failures.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

import flux

from .sessions import Sessions

__all__ = ["OUTPUT", "PACKETS", "flow", "loop", "packets", "plain_loop", "plain_table", "to_rows"]

SOURCES, DESTINATIONS, APPLICATIONS = 1_000, 100, 10
PAYLOAD_BYTES = 32
HISTORY, SLIDE = 2, 1

PACKETS = pa.schema([("src", "int32"), ("dst", "int32"), ("data", pa.binary(PAYLOAD_BYTES)), ("ts", "int64")])
OUTPUT = pa.schema([("app", "int32"), ("src", "int32"), ("max_dur", "int64"), ("avg_dur", "float64")])

Row = tuple[int, int, bytes, int]


def packets(
    rows: int, seed: int = 0, batch_rows: int = 32_768, sources: int = SOURCES, destinations: int = DESTINATIONS
) -> list[Any]:
    """Return `rows` packets as record batches; the rows depend on `seed` alone, not on the batches.

    Pairs are drawn evenly. The packets of a pair are start, end, start, end, and so on, so that half of all
    rows are starts and every end ends a session.
    """
    draw = np.random.default_rng(seed)
    pair = draw.integers(0, sources * destinations, rows)
    data = draw.integers(0, 256, (rows, PAYLOAD_BYTES), np.uint8)
    data[:, 0] = np.where(_earlier_of_same(pair) % 2 == 0, ord("S"), ord("E"))
    data[:, 1] = draw.integers(0, APPLICATIONS, rows)
    ts = np.cumsum(draw.integers(1, 100, rows))
    columns = [
        pa.array((pair // destinations).astype(np.int32)),
        pa.array((pair % destinations).astype(np.int32)),
        pa.FixedSizeBinaryArray.from_buffers(pa.binary(PAYLOAD_BYTES), rows, [None, pa.py_buffer(data)]),
        pa.array(ts),
    ]
    whole = pa.RecordBatch.from_arrays(columns, schema=PACKETS)
    return [whole.slice(start, batch_rows) for start in range(0, rows, batch_rows)]


def _earlier_of_same(values: Any) -> Any:
    """Return, for each value, how many equal ones stand before it."""
    order = np.argsort(values, kind="stable")
    places = np.arange(len(values))
    in_order = values[order]
    begins = np.where(np.diff(in_order, prepend=-1) != 0, places, 0)
    earlier = np.empty(len(values), np.int64)
    earlier[order] = places - np.maximum.accumulate(begins)
    return earlier


def to_rows(batches: Iterable[Any]) -> list[Row]:
    """Return packets as tuples of Python values (src, dst, data, ts)."""
    rows: list[Row] = []
    for batch in batches:
        rows.extend(zip(*(column.to_pylist() for column in batch.columns), strict=True))
    return rows


def loop(rows: Iterable[Row], history: int = HISTORY, slide: int = SLIDE) -> list[tuple[int, int, int, float]]:
    """Compute the flow's output, (app, src, max, avg) in input order, with a loop over rows and two dicts."""
    started: dict[tuple[int, int], tuple[int, int]] = {}
    windows: dict[tuple[int, int], list[int]] = {}
    counts: dict[tuple[int, int], int] = {}
    out: list[tuple[int, int, int, float]] = []
    for src, dst, data, ts in rows:
        kind = data[0]
        if kind == 83:  # S
            started[src, dst] = (data[1], ts)
        elif kind == 69:  # E
            session = started.pop((src, dst), None)
            if session is None:
                continue
            app, since = session
            key = (app, src)
            window = windows.get(key)
            if window is None:
                window = windows[key] = []
            window.append(ts - since)
            count = counts[key] = counts.get(key, 0) + 1
            if count > history:
                del window[0]
            if count >= history and (count - history) % slide == 0:
                out.append((app, src, max(window), sum(window) / history))
    return out


def plain_loop(batches: Iterable[Any]) -> list[tuple[int, int, int, float]]:
    """Compute the flow's output from record batches; `loop` is the same without the conversion to rows."""
    return loop(to_rows(batches))


def plain_table(batches: Sequence[Any]) -> Any:
    """Return the output that a run of the flow must give, in order."""
    out = plain_loop(batches)
    columns = list(zip(*out, strict=True)) if out else [()] * len(OUTPUT)
    return pa.table([pa.array(column, field.type) for column, field in zip(columns, OUTPUT, strict=True)], OUTPUT)


def flow(
    data: Any, partitions: int = 32, sink: flux.sinks.Sink | None = None, rate: float | None = None
) -> flux.Dataflow:
    """Return the dataflow of thesis 2.2 over `data`: packets, or a source of them."""
    dataflow = flux.Dataflow("dmz")
    source = data if isinstance(data, flux.sources.Source) else flux.sources.Table(data, rate=rate)
    (
        dataflow.source(source)
        .exchange("src", "dst", partitions=partitions)
        .apply(Sessions)
        .exchange("app", "src", partitions=partitions)
        .apply(flux.operators.CountWindow, history=HISTORY, slide=SLIDE)
        .sink(sink if sink is not None else flux.sinks.Collect())
    )
    return dataflow
