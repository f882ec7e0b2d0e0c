"""The most frequent words of each second, from lines of text.

Shows how steps are put together. `flat_map` makes words of lines and needs no exchange. Counting needs the words that
are equal together, so they are exchanged by word; ranking needs all counts of a second together, so these are exchanged
by window. Each exchange is a place where any site may die and no row is lost, repeated or reordered.

Of words that are equally frequent, any may be the one that is told; it is the same in every run.

    python -m experiments.examples.top_words --rows 20000 --kill
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa

import flux
from experiments.examples.running import main

K = 3
SECOND_MS = 1_000
VERSE = """Whether 'tis nobler in the mind to suffer the slings and arrows of outrageous fortune
or to take arms against a sea of troubles and by opposing end them to die to sleep no more and by a sleep
to say we end the heartache and the thousand natural shocks that flesh is heir to"""


def lines(rows: int, seed: int = 0) -> pa.Table:
    """Lines of up to eight words, a hundred lines to a second. Some words are frequent; which, changes with time."""
    draw = np.random.default_rng(seed)
    vocabulary = sorted(set(VERSE.split()))
    ts = np.cumsum(draw.integers(1, 20, rows))
    text = []
    for when in ts:
        chosen = (draw.zipf(1.5, draw.integers(0, 9)) + when // SECOND_MS) % len(vocabulary)
        text.append(" ".join(vocabulary[word] for word in chosen))
    return pa.table({"text": pa.array(text, pa.string()), "ts": ts})


def words(line: Any) -> Iterator[dict[str, Any]]:
    """The words of a line, each with the line's time; a line that is null has none."""
    for word in (line.text or "").lower().split():
        yield {"word": word, "ts": line.ts}


def flow(source: flux.sources.Source) -> flux.Dataflow:
    """Up to K rows for each second: word, window_start, window_end, count, rank."""
    dataflow = flux.Dataflow("top words")
    spoken = dataflow.source(source, event_time="ts").flat_map(words, output={"word": "string", "ts": "int64"})
    counts = spoken.exchange("word", partitions=16).apply(
        flux.operators.TimeWindow, time="ts", size_ms=SECOND_MS, aggregates={"count": "count"}
    )
    top = counts.exchange("window_start", partitions=8).apply(
        flux.operators.TopK, k=K, by="count", time="window_start", size_ms=SECOND_MS
    )
    top.sink(flux.sinks.Collect())
    return dataflow


if __name__ == "__main__":
    raise SystemExit(main(__doc__, lines, flow))
