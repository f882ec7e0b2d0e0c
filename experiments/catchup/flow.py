"""A dataflow with as much state as one asks for, of one kind or another.

Each row is counted under its key, and changes something in the bulk of the state. Counts are emitted: a copy whose
state is not of one instant gives other output than its twin, and the run ends as diverged.
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

import flux

KEYS = 10_000
KINDS = ("numpy", "arrow", "dict")
_WORD_BYTES = 8
_ENTRY_BYTES = 200  # Of a dict, as it travels: an integer for a key, and a list of two integers and a text.
_PIECE_BYTES = 4 << 20


class Large(flux.Operator):
    """A counter for each key, and `state_bytes` in all after some calls: no output depends on when that is."""

    output: ClassVar = {"key": "int64", "count": "int64"}

    def open(self, context: flux.Context) -> None:
        self._kind: str = context.parameters["kind"]
        entry_bytes = _ENTRY_BYTES if self._kind == "dict" else _WORD_BYTES
        self._places: int = context.parameters["state_bytes"] // entry_bytes
        self._per_call = 1 + _PIECE_BYTES // entry_bytes
        self._counts: Any = None
        self._bulk: Any = None
        self._filled = 0

    def _fill(self) -> None:
        """Let the state grow a little: to make it all at once would keep the site from all else for seconds."""
        if self._bulk is None:
            self._counts = np.zeros(KEYS, np.int64)
            self._bulk = {} if self._kind == "dict" else np.zeros(self._places, np.int64)
        start, self._filled = self._filled, min(self._places, self._filled + self._per_call)
        if self._kind == "dict":
            self._bulk.update({i: [i, 0, f"{i:0182}"] for i in range(start, self._filled)})
        else:
            self._bulk[start : self._filled] = np.arange(start, self._filled)

    def process(self, batch: flux.Batch) -> Any:
        if self._filled < self._places:
            self._fill()
        keys = batch["key"]
        if self._kind == "dict":
            for key in keys[:64].tolist():
                self._bulk[key % self._filled][1] += 1
        else:
            np.add.at(self._bulk, keys % self._filled, 1)
        order = np.argsort(keys, kind="stable")
        in_order = keys[order]
        places = np.arange(len(keys))
        begins = np.where(np.diff(in_order, prepend=-1) != 0, places, 0)
        earlier = np.empty(len(keys), np.int64)
        earlier[order] = places - np.maximum.accumulate(begins)
        counts = self._counts[keys] + earlier + 1
        np.add.at(self._counts, keys, 1)
        return batch.emit({"key": keys, "count": counts})

    def get_state(self) -> Any:
        yield {"counts": self._counts, "filled": self._filled}
        if self._kind == "dict":
            yield {"bulk": self._bulk}
        elif self._kind == "arrow":
            words = _PIECE_BYTES // _WORD_BYTES
            for start in range(0, len(self._bulk), words):
                yield {"table": pa.table({"bulk": self._bulk[start : start + words]})}
        else:
            yield {"bulk": self._bulk}

    def install_state(self, state: Any) -> None:
        if "table" in state:
            words = state["table"].column(0).to_numpy()
            self._bulk = words if self._bulk is None else np.concatenate([self._bulk, words])
        else:
            vars(self).update({f"_{name}": value for name, value in state.items()})


def rows(count: int, seed: int = 0, batch_rows: int = 32_768) -> list[pa.RecordBatch]:
    """Keys, drawn evenly."""
    keys = np.random.default_rng(seed).integers(0, KEYS, count)
    whole = pa.record_batch({"key": pa.array(keys)})
    return [whole.slice(start, batch_rows) for start in range(0, count, batch_rows)]


def flow(data: Any, kind: str, state_bytes: int, partitions: int, rate: float | None = None) -> flux.Dataflow:
    """`state_bytes` in all, in so many partitions."""
    dataflow = flux.Dataflow("catchup")
    (
        dataflow.source(flux.sources.Table(data, rate=rate))
        .exchange("key", partitions=partitions)
        .apply(Large, kind=kind, state_bytes=state_bytes // partitions)
        .sink(flux.sinks.Null())
    )
    return dataflow
