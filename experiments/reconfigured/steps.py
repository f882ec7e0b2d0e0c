"""Steps with much state, in each form of operator, and what a change makes of their state."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

import flux

OUTPUT = {"key": "int64", "count": "int64"}
_WORD_BYTES = 8
_PIECE_WORDS = 1 << 17


class Keyed(flux.KeyedOperator):
    """A counter for each key, with so many bytes beside it."""

    output: ClassVar = OUTPUT

    def open(self, context: flux.Context) -> None:
        self._by: int = context.parameters.get("by", 1)
        self._ballast = bytes(context.parameters["key_bytes"])

    def on_tuple(self, key: Any, row: Any, state: Any) -> Any:
        count = (state[0] if state else 0) + self._by
        return [count, self._ballast], [{"key": row.key, "count": count}]


def wrapped(state: Any) -> Any:
    """Migrate the state of a key."""
    return [state[0], state[1]]


class ByPartition(flux.Operator):
    """A counter for each key, and an array of so many bytes, of which each row changes a word."""

    output: ClassVar = OUTPUT

    def open(self, context: flux.Context) -> None:
        self._by: int = context.parameters.get("by", 1)
        self._words: int = context.parameters["partition_bytes"] // _WORD_BYTES
        self._counts: dict[int, int] = {}
        self._bulk = np.zeros(0, np.int64)

    def process(self, batch: flux.Batch) -> Any:
        if len(self._bulk) < self._words:  # A little at a time, so that nothing waits for it.
            more = min(_PIECE_WORDS, self._words - len(self._bulk))
            self._bulk = np.concatenate([self._bulk, np.ones(more, np.int64)])
        counts = []
        for key in batch["key"].tolist():
            self._counts[key] = count = self._counts.get(key, 0) + self._by
            counts.append(count)
        self._bulk[batch["key"] % len(self._bulk)] += 1
        return batch.emit({"key": batch["key"], "count": counts})

    def get_state(self) -> Any:
        return {"counts": list(self._counts.items()), "bulk": self._bulk}

    def install_state(self, state: Any) -> None:
        self._counts, self._bulk = dict(state["counts"]), state["bulk"]


def renewed(state: Any) -> Any:
    """Migrate the state of a partition: every word of it is read and written."""
    return state | {"bulk": state["bulk"] + 1}
