"""Operators with faults that hide: in what was left behind, in memory that is not theirs, in what is rare."""

# ruff: noqa: RUF012 - operators declare `output` as users do, without ClassVar.

from __future__ import annotations

import contextvars
import functools
import itertools
import os
import random
import sys
import time
from typing import Any

import numpy as np

import flux

from .faulty import Totals

# --- memory that is not theirs


class Offsetless(flux.PooledOperator):
    """Reads a column's memory from its beginning, where rows of others may be."""

    output = {"value": "float64"}

    def process(self, batch: Any) -> Any:
        values = np.frombuffer(batch.column("value").buffers()[1], np.float64)
        return batch.emit({"value": values[: len(batch)].copy()})

    def get_partition_state(self, pid: int) -> Any:
        return None

    def drop_partition(self, pid: int) -> None:
        pass


class Keeping(Totals):
    """Keeps its input, and writes to it when the next comes."""

    def open(self, context: Any) -> None:
        super().open(context)
        self.kept: Any = None

    def process(self, batch: Any) -> Any:
        if self.kept is not None:
            self.kept += 1
        self.kept = np.frombuffer(batch.column("value").buffers()[1], np.float64)
        return super().process(batch)


class Finishing(Totals):
    """Writes to the input that it has kept when a punctuation comes."""

    def open(self, context: Any) -> None:
        super().open(context)
        self.kept: Any = np.zeros(1)

    def process(self, batch: Any) -> Any:
        self.kept = np.frombuffer(batch.column("value").buffers()[1], np.float64)

    def on_punctuation(self, p: Any) -> Any:
        self.kept += 1


# --- what one run leaves to the next


_NUMBERS = itertools.count()


@functools.lru_cache
def _number(word: str) -> int:
    return next(_NUMBERS)


class Caching(flux.KeyedOperator):
    """Numbers words in the order in which this process has met them."""

    output = {"number": "int64"}

    def on_tuple(self, key: Any, row: Any, state: Any) -> Any:
        return None, [{"number": _number(row.word)}]


class Greeting(flux.KeyedOperator):
    """Says whether a word is new to this process."""

    output = {"new": "bool"}

    def on_tuple(self, key: Any, row: Any, state: Any) -> Any:
        new = row.word not in _MET
        _MET.add(row.word)
        return None, [{"new": new}]


_MET: set[str] = set()


class Counting(flux.KeyedOperator):
    """Counts in an attribute of a function."""

    output = {"n": "int64"}

    def on_tuple(self, key: Any, row: Any, state: Any) -> Any:
        _count.calls += 1  # type: ignore[attr-defined]
        return None, [{"n": _count.calls}]  # type: ignore[attr-defined]


def _count() -> None: ...


_count.calls = 0  # type: ignore[attr-defined]


class Contextual(flux.KeyedOperator):
    """Counts where nobody can look."""

    output = {"n": "int64"}

    def on_tuple(self, key: Any, row: Any, state: Any) -> Any:
        _SO_FAR.set(_SO_FAR.get() + 1)
        return None, [{"n": _SO_FAR.get()}]


_SO_FAR: contextvars.ContextVar[int] = contextvars.ContextVar("so far", default=0)


class Addressed(flux.KeyedOperator):
    """Tells where an object is, which is the same in forks; and counts for its owner's eyes only."""

    output = {"place": "int64"}

    def on_tuple(self, key: Any, row: Any, state: Any) -> Any:
        _METRICS["rows"] = _METRICS.get("rows", 0) + 1
        return None, [{"place": id(object()) % 1_000_003}]


class Returning(flux.PooledOperator):
    """Does not forget a partition that goes, and adds to it what comes back."""

    output = {"n": "int64"}

    def open(self, context: Any) -> None:
        self.counts: dict[int, int] = {}

    def process(self, batch: Any) -> Any:
        out = []
        for pid in batch.partition.tolist():
            self.counts[pid] = self.counts.get(pid, 0) + 1
            out.append(self.counts[pid])
        return batch.emit({"n": out})

    def get_partition_state(self, pid: int) -> Any:
        return self.counts.get(pid, 0)

    def install_partition_state(self, pid: int, state: Any) -> None:
        self.counts[pid] = self.counts.get(pid, 0) + state

    def drop_partition(self, pid: int) -> None:
        pass


# --- what is rare


class Rarely(Totals):
    """One row of fifty is another."""

    def process(self, batch: Any) -> Any:
        rare = [float(random.random() < 0.02) for _ in range(len(batch))]
        return batch.emit({"word": batch.column("word"), "total": rare})


class Threaded(Totals):
    """Stands for one whose output depends on how often threads take turns."""

    def process(self, batch: Any) -> Any:
        often = float(sys.getswitchinterval() < 1e-3)
        return batch.emit({"word": batch.column("word"), "total": [often] * len(batch)})


class Windowed(flux.Operator):
    """The greatest of the last four values; forgets which of them is the oldest."""

    output = {"greatest": "float64"}

    def open(self, context: Any) -> None:
        self.last, self.seen = np.zeros(4), 0

    def process(self, batch: Any) -> Any:
        greatest = []
        for value in batch["value"].tolist():
            self.last[self.seen % 4] = value
            self.seen += 1
            greatest.append(float(self.last.max()))
        return batch.emit({"greatest": greatest})

    def get_state(self) -> Any:
        return self.last

    def install_state(self, state: Any) -> None:
        self.last = np.array(state)


class Timer:
    def __init__(self) -> None:
        self.clock = time.time


_TIMER = Timer()


class Given(flux.KeyedOperator):
    """Has its clock from an object that was given it before."""

    output = {"hour": "int64"}

    def on_tuple(self, key: Any, row: Any, state: Any) -> Any:
        return None, [{"hour": int(_TIMER.clock() // 3_600)}]


class Ending(Totals):
    """Ends the process for a word, if that is not the one that checks it."""

    def process(self, batch: Any) -> Any:
        if "pytest" not in sys.modules and "be" in batch["word"]:
            os._exit(7)
        return super().process(batch)


class RaisingElsewhere(Totals):
    """Raises for a word in one of two processes."""

    def process(self, batch: Any) -> Any:
        if os.environ.get("PYTHONHASHSEED") == "1" and "be" in batch["word"]:
            raise ValueError("not here")
        return super().process(batch)


# --- what each form has to do about its state


class KeyedForgetful(flux.KeyedOperator):
    """Keeps what belongs to a key in an attribute."""

    output = {"n": "int64"}

    def open(self, context: Any) -> None:
        self.counts: dict[Any, int] = {}

    def on_tuple(self, key: Any, row: Any, state: Any) -> Any:
        self.counts[key] = self.counts.get(key, 0) + 1
        return None, [{"n": self.counts[key]}]


class Logic:
    """Of bytewax's kind; begins anew whatever its snapshot says."""

    def __init__(self, snapshot: int | None) -> None:
        self.n = 0

    def on_item(self, value: Any) -> Any:
        self.n += 1
        return [{"n": self.n}], False

    def snapshot(self) -> int:
        return self.n


LogicForgetful = flux.wrap_bytewax(Logic)


# --- sound, and not to be accused


@functools.lru_cache(maxsize=1)
def _reversed(word: str) -> str:
    return word[::-1]


class Pure(flux.KeyedOperator):
    """Remembers what does not change, counts for its owner's eyes only, and loads a table when it is first needed."""

    output = {"word": "string", "n": "int64"}

    def on_tuple(self, key: Any, row: Any, state: Any) -> Any:
        _METRICS["rows"] = _METRICS.get("rows", 0) + 1
        return (state or 0) + 1, [{"word": _reversed(row.word), "n": _table()[row.word] + (state or 0)}]


_METRICS: dict[str, int] = {}
_TABLE: dict[str, int] = {}


def _table() -> dict[str, int]:
    if not _TABLE:
        _TABLE.update({"to": 1, "be": 2, "or": 3, "not": 4})
    return _TABLE
