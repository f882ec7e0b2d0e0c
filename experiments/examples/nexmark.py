"""NEXMark's queries 3, 4, 5, 7, 9, 11, 13, 18 and 19, with the library alone.

People open auctions and bid for what others sell. `tables` makes up the three streams, the same for the same seed. Each
query takes them and returns its result as a stream. Those of windows need event time. The others are of all rows:
without event time there are no watermarks, and they emit their result once, at the end of the stream.
`tests/examples/test_nexmark.py` has the same queries in SQL.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

import flux
from flux.operators import GroupBy, SessionWindow, TimeWindow, TopK

LATENESS_MS = 1_000
SIZE_MS, SLIDE_MS, GAP_MS = 10_000, 2_000, 4_000
SIDE_ROWS = 50  # In the table of query 13.


class Streams(NamedTuple):
    """The three streams of the benchmark."""

    people: flux.Stream
    auctions: flux.Stream
    bids: flux.Stream


def tables(events: int, seed: int = 0) -> dict[str, pa.Table]:
    """Return people, auctions and bids, of 50 events one, three and 46; bids are out of order."""
    draw = np.random.default_rng(seed)
    number = np.arange(events)
    ts, kind = number * 10, number % 50
    people, auctions, bids = ts[kind == 0], ts[(kind > 0) & (kind < 4)], ts[kind >= 4]
    bids = bids[np.argsort(bids + draw.integers(0, LATENESS_MS, len(bids)), kind="stable")]
    opened = np.maximum(np.searchsorted(auctions, bids), 1)
    category = draw.integers(10, 15, len(auctions))
    return {
        "people": pa.table(
            {
                "id": np.arange(len(people)),
                "name": [f"person {n}" for n in range(len(people))],
                "state": draw.choice(["OR", "ID", "CA", "WA", "NY"], len(people)),
                "ts": people,
            }
        ),
        "auctions": pa.table(
            {
                "id": np.arange(len(auctions)),
                "seller": draw.integers(0, max(1, len(people)), len(auctions)),
                "category": category,
                "expires": auctions + draw.integers(500, 20_000, len(auctions)),
                "ts": auctions,
            }
        ),
        "bids": pa.table(
            {
                "auction": np.maximum(opened - 1 - draw.integers(0, 30, len(bids)), 0),
                "bidder": draw.integers(0, max(1, len(people)), len(bids)),
                "price": np.round(10 ** (draw.random(len(bids)) * 4)).astype(np.int64),
                "ts": bids,
            }
        ),
    }


def q3(streams: Streams) -> flux.Stream:
    """Who sells in category 10, in three states."""
    sellers = streams.people.filter(lambda b: np.isin(b["state"], ["OR", "ID", "CA"]), batch=True)
    auctions = streams.auctions.filter(lambda batch: batch["category"] == 10, batch=True)
    return auctions.join(sellers, on={"seller": "id"}, within=None).select("name", "state", "id")


def in_time(batch: Any) -> Any:
    """Which bids came while their auction was open."""
    return (batch["ts"] >= batch["ts_right"]) & (batch["ts"] <= batch["expires"])


def valid_bids(streams: Streams) -> flux.Stream:
    """The bids in time, with their auctions."""
    return streams.bids.join(streams.auctions, on={"auction": "id"}, within=None).filter(in_time, batch=True)


def q4(streams: Streams) -> flux.Stream:
    """The mean of the prices that auctions of a category end with."""
    most = (
        valid_bids(streams)
        .exchange("auction", "category")
        .apply(GroupBy, aggregates={"final": ("max", "price")}, emit="watermarks")
    )
    return most.exchange("category").apply(GroupBy, aggregates={"mean": ("avg", "final")}, emit="watermarks")


def q5(streams: Streams) -> flux.Stream:
    """The auctions with the most bids in each of some overlapping windows."""
    counts = streams.bids.exchange("auction").apply(
        TimeWindow, time="ts", size_ms=SIZE_MS, slide_ms=SLIDE_MS, aggregates={"n": "count"}
    )
    first = {"k": 1, "by": "n", "ties": "all", "time": "window_end", "size_ms": SLIDE_MS}
    return counts.exchange("window_start").apply(TopK, **first).select("window_start", "auction", "n")


def q7(streams: Streams) -> flux.Stream:
    """The highest bids of each window."""
    first = {"k": 1, "by": "price", "ties": "all", "time": "ts", "size_ms": SIZE_MS}
    return streams.bids.exchange(partitions=1).apply(TopK, **first).select("auction", "price", "bidder", "ts")


def q9(streams: Streams) -> flux.Stream:
    """The bid that wins each auction: the highest, and of equal ones the first."""
    order = {"price": "descending", "ts": "ascending"}
    won = valid_bids(streams).exchange("auction").apply(TopK, k=1, by=order)
    return won.select("auction", "bidder", "price", "ts")


def q11(streams: Streams) -> flux.Stream:
    """How many bids each bidder makes without a long pause."""
    sessions = {"time": "ts", "gap_ms": GAP_MS, "aggregates": {"n": "count"}}
    return streams.bids.exchange("bidder").apply(SessionWindow, **sessions)


def q13(streams: Streams) -> flux.Stream:
    """Each bid with a row of a table."""
    keyed = streams.bids.with_columns(key=(lambda batch: batch["auction"] % (2 * SIDE_ROWS), "int64"))
    side = [{"key": n, "value": f"side {n}"} for n in range(SIDE_ROWS)]
    return keyed.lookup(side, on="key", how="inner").select("auction", "bidder", "price", "value")


def q18(streams: Streams) -> flux.Stream:
    """The last bid of each bidder for each auction."""
    last = streams.bids.exchange("bidder", "auction").apply(TopK, k=1, by="ts")
    return last.select("bidder", "auction", "price", "ts")


def q19(streams: Streams) -> flux.Stream:
    """The ten highest bids for each auction."""
    order = {"price": "descending", "ts": "ascending"}
    return streams.bids.exchange("auction").apply(TopK, k=10, by=order).select("auction", "price", "ts", "rank")


OF_WINDOWS: dict[str, Callable[[Streams], flux.Stream]] = {"q5": q5, "q7": q7, "q11": q11}
OF_ALL_ROWS: dict[str, Callable[[Streams], flux.Stream]] = {
    "q3": q3,
    "q4": q4,
    "q9": q9,
    "q13": q13,
    "q18": q18,
    "q19": q19,
}


def flow(
    data: dict[str, pa.Table], queries: dict[str, Callable[[Streams], flux.Stream]], last_s: float | None = None
) -> flux.Dataflow:
    """Return a flow of these queries, each with a sink of its own; the streams last `last_s`, if it is given."""
    dataflow = flux.Dataflow("nexmark")
    time: dict[str, Any] = {"event_time": "ts", "lateness_ms": LATENESS_MS} if queries is OF_WINDOWS else {}
    people, auctions, bids = (
        dataflow.source(flux.sources.Table(rows, rate=None if last_s is None else len(rows) / last_s), **time)
        for rows in (data["people"], data["auctions"], data["bids"])
    )
    for stream in (people, auctions):  # Not every query takes them, and each stream leads to a sink.
        stream.sink(flux.sinks.Null())
    for query in queries.values():
        query(Streams(people, auctions, bids)).sink(flux.sinks.Collect())
    return dataflow
