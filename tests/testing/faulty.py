"""Operators with a fault each, which `check_operator` must find; and some without."""

# ruff: noqa: RUF012 - operators declare `output` as users do, without ClassVar.

from __future__ import annotations

import os
import random
import time
from datetime import date, datetime
from typing import Any

import numpy as np
import pyarrow as pa

import flux


class Totals(flux.Operator):
    """Sound: a running total for each word, and the number of words at each punctuation."""

    output = {"word": "string", "total": "float64"}

    def open(self, context: Any) -> None:
        self.totals: dict[str, float] = {}

    def process(self, batch: Any) -> Any:
        totals = []
        for row in batch.rows():
            self.totals[row.word] = self.totals.get(row.word, 0.0) + row.value
            totals.append(self.totals[row.word])
        return batch.emit({"word": batch.column("word"), "total": totals})

    def on_punctuation(self, p: Any) -> Any:
        return {"word": [p.kind], "total": [float(len(self.totals))]}

    def get_state(self) -> Any:
        return self.totals

    def install_state(self, state: Any) -> None:
        self.totals.update(state)


class Forgetful(Totals):
    """Keeps the last word, and does not say so."""

    last = ""

    def process(self, batch: Any) -> Any:
        out = []
        for row in batch.rows():
            out.append(1.0 if row.word == self.last else 0.0)
            self.last = row.word
        return batch.emit({"word": batch.column("word"), "total": out})


class Destructive(Totals):
    """Its state is gone when it has been asked for."""

    def get_state(self) -> Any:
        state, self.totals = self.totals, {}
        return state


class Batchy(Totals):
    def process(self, batch: Any) -> Any:
        return batch.emit({"word": batch.column("word"), "total": [float(len(batch))] * len(batch)})


class Hourly(Totals):
    """Depends on the hour only, so that one would not notice for long."""

    def process(self, batch: Any) -> Any:
        return batch.emit({"word": batch.column("word"), "total": [float(datetime.now().hour)] * len(batch)})


class Slow(flux.KeyedOperator):
    output = {"late": "bool"}

    def on_tuple(self, key: Any, row: Any, state: Any) -> Any:
        return time.time() // 100, [{"late": time.time() > 1_750_000_000}]


class Dated(flux.KeyedOperator):
    """Says when a row came, in one of the ways in which `time` tells it without being asked for a moment."""

    output = {"day": "string"}

    def on_tuple(self, key: Any, row: Any, state: Any) -> Any:
        return 1, [{"day": time.strftime("%Y-%m-%d")}]


class Stamped(Dated):
    def on_tuple(self, key: Any, row: Any, state: Any) -> Any:
        return 1, [{"day": time.asctime()}]


class Taken(Dated):
    def on_tuple(self, key: Any, row: Any, state: Any) -> Any:
        return 1, [{"day": f"{time.gmtime().tm_yday} {time.localtime().tm_year}"}]


class Lucky(Totals):
    def process(self, batch: Any) -> Any:
        return batch.emit({"word": batch.column("word"), "total": [random.random() for _ in range(len(batch))]})


class Unordered(flux.KeyedOperator):
    """Emits what it has seen in the order of a set; what it keeps is in order, so it comes back as it was."""

    output = {"seen": "string"}

    def on_tuple(self, key: Any, row: Any, state: Any) -> Any:
        seen = {*(state or []), row.word, row.word[::-1]}
        return sorted(seen), [{"seen": " ".join(seen)}]


class Vandal(flux.Operator):
    """Doubles its input in place."""

    output = {"value": "float64"}

    def process(self, batch: Any) -> Any:
        values = np.frombuffer(batch.column("value").buffers()[1], np.float64)
        values *= 2
        return batch.emit({"value": values[: len(batch)].copy()})


class Refilling(flux.Operator):
    """Sound: emits an array that it writes to again, of which Flux makes a copy."""

    output = {"value": "float64"}

    def open(self, context: Any) -> None:
        self.buffer = np.zeros(1_000)

    def process(self, batch: Any) -> Any:
        self.buffer[: len(batch)] = batch["value"]
        return batch.emit({"value": self.emitted(len(batch))})

    def emitted(self, count: int) -> Any:
        return self.buffer[:count]

    def get_state(self) -> Any:
        return None


class Reusing(Refilling):
    """Emits an Arrow array over memory that it writes to again: nobody can see that it will."""

    def emitted(self, count: int) -> Any:
        return pa.array(self.buffer[:count])


class Summing(Totals):
    """Adds up a batch first, and tells the total at punctuations."""

    total = 0.0

    def process(self, batch: Any) -> Any:
        self.total += float(np.sum(batch["value"]))

    def on_punctuation(self, p: Any) -> Any:
        return {"word": [p.kind], "total": [self.total]}

    def get_state(self) -> Any:
        return self.total

    def install_state(self, state: Any) -> None:
        self.total = state


class Raising(Totals):
    def process(self, batch: Any) -> Any:
        for row in batch.rows():
            if row.value > 50:
                raise ValueError("too large")
        return super().process(batch)


class Secret:
    def __repr__(self) -> str:
        return "a secret"


class Closed(flux.KeyedOperator):
    """Keeps what cannot be moved."""

    output = {"n": "int64"}

    def on_tuple(self, key: Any, row: Any, state: Any) -> Any:
        return {"inside": [Secret()]}, None


class Mixing(flux.PooledOperator):
    """Counts rows of all partitions together."""

    output = {"n": "int64"}

    def open(self, context: Any) -> None:
        self.n = 0

    def process(self, batch: Any) -> Any:
        counts = self.n + np.arange(1, len(batch) + 1)
        self.n += len(batch)
        return batch.emit({"n": counts})

    def get_partition_state(self, pid: int) -> Any:
        return self.n

    def install_partition_state(self, pid: int, state: Any) -> None:
        self.n = state

    def drop_partition(self, pid: int) -> None:
        pass


class Existing:
    """Somebody's class, with a sound state."""

    def __init__(self) -> None:
        self.seen: dict[str, int] = {}

    def update(self, row: dict[str, Any]) -> dict[str, Any]:
        self.seen[row["word"]] = self.seen.get(row["word"], 0) + 1
        return {"word": row["word"], "n": self.seen[row["word"]]}

    def getState(self) -> Any:
        return self.seen

    def installState(self, state: Any) -> None:
        self.seen = state


Wrapped = flux.wrap(Existing)


class Logic:
    """A logic as bytewax has them."""

    def __init__(self, snapshot: int | None) -> None:
        self.n = snapshot or 0

    def on_item(self, value: Any) -> Any:
        self.n += 1
        return [{"n": self.n}], self.n == 3

    def on_eof(self) -> Any:
        return [{"n": -self.n}], True

    def snapshot(self) -> int:
        return self.n


WrappedLogic = flux.wrap_bytewax(Logic)


# --- clocks that are bound before anybody could replace them, and time that goes by


class Expiring(flux.KeyedOperator):
    """A key that was silent for an hour of the wall clock begins anew."""

    output = {"n": "int64"}

    def open(self, context: Any) -> None:
        self.seen_at: dict[Any, float] = {}

    def on_tuple(self, key: Any, row: Any, state: Any) -> Any:
        now = time.monotonic()
        if now - self.seen_at.get(key, now) > 3_600:
            state = None
        self.seen_at[key] = now
        return (state or 0) + 1, [{"n": (state or 0) + 1}]


class Pausing(Totals):
    """Forgets everything when an hour went by between two batches."""

    def open(self, context: Any) -> None:
        super().open(context)
        self.last = time.monotonic()

    def process(self, batch: Any) -> Any:
        if time.monotonic() - self.last > 3_600:
            self.totals.clear()
        self.last = time.monotonic()
        return super().process(batch)


class ByDefault(Dated):
    def on_tuple(self, key: Any, row: Any, state: Any, now: Any = time.gmtime) -> Any:
        return 1, [{"day": str(now().tm_yday)}]


class Injected(Dated):
    now = datetime.now

    def on_tuple(self, key: Any, row: Any, state: Any) -> Any:
        return 1, [{"day": str(self.now().date())}]


class Static(Dated):
    now = staticmethod(time.time)

    def on_tuple(self, key: Any, row: Any, state: Any) -> Any:
        return 1, [{"day": str(self.now() // 86_400)}]


def _closing(now: Any) -> Any:
    return lambda self, key, row, state: (1, [{"day": str(now() // 86_400)}])


class Enclosed(Dated):
    on_tuple = _closing(time.time)


class Named(Dated):
    def on_tuple(self, key: Any, row: Any, state: Any) -> Any:
        return 1, [{"day": str(time.clock_gettime(time.CLOCK_REALTIME) // 86_400)}]


# --- what is kept outside of an instance


class Shared(flux.KeyedOperator):
    """Keeps counts in a class attribute, and begins with none."""

    output = {"n": "int64"}
    counts: dict[Any, int] = {}

    def open(self, context: Any) -> None:
        self.counts.clear()

    def on_tuple(self, key: Any, row: Any, state: Any) -> Any:
        self.counts[key] = self.counts.get(key, 0) + 1
        return None, [{"n": self.counts[key]}]


class Remembering(Shared):
    """The same, and never forgets."""

    def open(self, context: Any) -> None:
        pass


class Default(Totals):
    def process(self, batch: Any, kept: list[int] = []) -> Any:  # noqa: B006 - that is its fault.
        kept += [1] * len(batch)
        return batch.emit({"word": batch.column("word"), "total": [float(len(kept))] * len(batch)})


_COUNTS: dict[Any, int] = {}


class Global(flux.KeyedOperator):
    output = {"n": "int64"}

    def open(self, context: Any) -> None:
        _COUNTS.clear()

    def on_tuple(self, key: Any, row: Any, state: Any) -> Any:
        _COUNTS[key] = _COUNTS.get(key, 0) + 1
        return None, [{"n": _COUNTS[key]}]


class Numbered(Totals):
    """Tells the number of its process."""

    def process(self, batch: Any) -> Any:
        return batch.emit({"word": batch.column("word"), "total": [float(os.getpid())] * len(batch)})


class Hasty(Totals):
    """Takes another way for large batches."""

    def process(self, batch: Any) -> Any:
        out = super().process(batch)
        if len(batch) > 64:
            return batch.emit({"word": batch.column("word"), "total": [0.0] * len(batch)})
        return out


class Undecodable(flux.KeyedOperator):
    """What `encode_state` gives is not what `decode_state` takes."""

    output = {"n": "int64"}

    @staticmethod
    def encode_state(value: Any) -> Any:
        return [1] if isinstance(value, Secret) else NotImplemented

    @staticmethod
    def decode_state(state: Any) -> Any:
        return state["secret"]

    def on_tuple(self, key: Any, row: Any, state: Any) -> Any:
        return Secret(), None


# --- sound, and not to be accused


class Exact(flux.KeyedOperator):
    """Asks for the classes of values, and for its own."""

    output = {"days": "int64"}

    def open(self, context: Any) -> None:
        if type(self) is not Exact:
            raise RuntimeError("derived")

    def on_tuple(self, key: Any, row: Any, state: Any) -> Any:
        if type(row.day) is not date or type(row.at) is not datetime:
            raise TypeError(f"no date: {row!r}")
        return 1, [{"days": (row.at.date() - row.day).days}]


class ExactTotals(Totals):
    def open(self, context: Any) -> None:
        super().open(context)
        if type(self) is not ExactTotals:
            raise RuntimeError("derived")


class Measured(Totals):
    """Measures how long it takes, and tells nobody."""

    def process(self, batch: Any) -> Any:
        since = time.perf_counter()
        out = super().process(batch)
        self.busy_s = time.perf_counter() - since
        return out


# --- each raises in one of its methods


class OpenRaises(Totals):
    def open(self, context: Any) -> None:
        raise RuntimeError("in open")


class PunctuationRaises(Totals):
    def on_punctuation(self, p: Any) -> Any:
        raise RuntimeError("in on_punctuation")


class GetRaises(Totals):
    def get_state(self) -> Any:
        raise RuntimeError("in get_state")


class InstallRaises(Totals):
    def install_state(self, state: Any) -> None:
        raise RuntimeError("in install_state")


class CloseRaises(Totals):
    def close(self) -> None:
        raise RuntimeError("in close")


class ReturnsDict(Totals):
    def process(self, batch: Any) -> Any:
        return {"word": ["a"]}
