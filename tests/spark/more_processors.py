"""Further operators of the kinds that Spark's documentation, examples and tests have, in both row formats.

Nothing here knows of Flux. Each class says in `OUTPUT` what it emits, so that a test gives both engines the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pandas as pd
from pyspark.sql import Row
from pyspark.sql.streaming import StatefulProcessor


class Violations(StatefulProcessor):  # type: ignore[misc]  # pyspark is untyped here
    """Value state beside one that `init` asks for and deletes: rows above a limit, in how many batches."""

    OUTPUT = "id string, above long, batches long"

    def init(self, handle: Any) -> None:
        self.above = handle.getValueState("above", "n long, batches long")
        handle.getValueState("temporary", "value int")
        handle.deleteIfExists("temporary")
        handle.deleteIfExists("never there")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        above, batches = self.above.get() if self.above.exists() else (0, 0)
        above += sum(1 for row in rows if row.value > 1)
        self.above.update((above, batches + 1))
        if batches == 2:
            self.above.clear()
        yield Row(batches=batches + 1, id=key[0], above=above, unknown="dropped")


class PandasStates(StatefulProcessor):  # type: ignore[misc]
    """Pandas, with a list and a map state, several DataFrames of output, and ones without rows or columns."""

    OUTPUT = "id string, kind string, n long, total long"

    def init(self, handle: Any) -> None:
        self.values = handle.getListState("values", "value int")
        self.counts = handle.getMapState("counts", "value int", "n int, last timestamp")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[pd.DataFrame]:
        for frame in rows:
            self.values.appendList([(int(value),) for value in frame["value"]])
            for value, ts in zip(frame["value"], frame["ts"], strict=True):
                found = self.counts.getValue((int(value),)) if self.counts.containsKey((int(value),)) else (0, None)
                self.counts.updateValue((int(value),), (found[0] + 1, ts.to_pydatetime()))
        held = [value for (value,) in self.values.get()]
        if len(held) > 3:
            self.values.put([(value,) for value in held[-2:]])
            self.counts.removeKey((held[0],))
        yield pd.DataFrame()
        yield pd.DataFrame({"id": key, "kind": ["list"], "n": [len(held)], "total": [sum(held)]})
        entries = [(entry[0], value[0]) for entry, value in self.counts.iterator()]
        keys, counts = [entry for entry, _ in entries], [n for _, n in entries]
        yield pd.DataFrame({"total": counts, "n": keys, "kind": ["map"] * len(entries), "id": list(key) * len(entries)})


class PandasTimers(StatefulProcessor):  # type: ignore[misc]
    """Pandas, with event-time timers: what a key had is told when the watermark has passed it."""

    OUTPUT = "id string, event string, at long, rows long"

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.rows = handle.getValueState("rows", "n long")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[pd.DataFrame]:
        [count] = self.rows.get() or (0,)
        for frame in rows:
            count += len(frame)
            self.handle.registerTimer(int(frame["ts"].max().tz_localize("UTC").timestamp() * 1000))
        self.rows.update((count,))
        timers = len(list(self.handle.listTimers()))
        yield pd.DataFrame({"id": key, "event": ["rows"], "at": [timers], "rows": [count]})

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[pd.DataFrame]:
        [count] = self.rows.get() or (-1,)
        self.rows.clear()
        at = expiredTimerInfo.getExpiryTimeInMs()
        yield pd.DataFrame({"id": [key[0]], "event": ["expired"], "at": [at], "rows": [count]})


class Relay(StatefulProcessor):  # type: ignore[misc]
    """The first of two operators on event time: passes rows on, with their numbers."""

    OUTPUT = "id string, value int, ts timestamp"

    def init(self, handle: Any) -> None:
        self.count = handle.getValueState("count", "n int")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        [count] = self.count.get() or (0,)
        for row in rows:
            count += 1
            yield Row(id=key[0], value=count, ts=row.ts)
        self.count.update((count,))


def lengths(key: Any, frames: Any, state: Any) -> Iterator[pd.DataFrame]:
    """For `applyInPandasWithState` without timeouts: counts as texts; the count of a key with value 5 is removed."""
    if state.exists:
        (count,) = state.get
    else:
        count = 0
    ends = False
    for frame in frames:
        count += len(frame)
        ends = ends or bool((frame["value"] == 5).any())
    if ends:
        state.remove()
    else:
        state.update((count,))
    yield pd.DataFrame()
    yield pd.DataFrame({"id": [], "count": []})
    yield pd.DataFrame({"id": [key[0]], "count": [str(count)]})


LENGTHS_OUTPUT = "id string, count string"
LENGTHS_STATE = "len long"


class PandasForgetful(StatefulProcessor):  # type: ignore[misc]
    """Pandas, with time-to-live: what each state holds before the rows of a micro-batch are put in."""

    OUTPUT = "id string, life long, value int, list string, map string, exists string"
    LIVES_MS = (1, 6_000, 3_600_000)

    def init(self, handle: Any) -> None:
        self.values, self.lists, self.maps = {}, {}, {}
        for life in self.LIVES_MS:
            self.values[life] = handle.getValueState(f"value{life}", "v int", ttlDurationMs=life)
            self.lists[life] = handle.getListState(f"list{life}", "v int", life)
            self.maps[life] = handle.getMapState(f"map{life}", "k int", "v int", life)

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[pd.DataFrame]:
        before = pd.DataFrame([self._held(key, life) for life in self.LIVES_MS])
        for frame in rows:
            for value in frame["value"].tolist():
                for life in self.LIVES_MS if value >= 0 else ():
                    self.values[life].update((value,))
                    self.lists[life].appendValue((value,))
                    self.maps[life].updateValue((value,), (2 * value,))
        yield before.astype({"value": "Int32"})

    def _held(self, key: Any, life: int) -> dict[str, Any]:
        states = self.values[life], self.lists[life], self.maps[life]
        value = states[0].get()
        return {
            "id": key[0],
            "life": life,
            "value": None if value is None else value[0],
            "list": str([v for (v,) in states[1].get()]),
            "map": str(sorted((k, v) for (k,), (v,) in states[2].iterator())),
            "exists": str([state.exists() for state in states]),
        }


_TAG = "struct<name: string, weight: double>"
COMPOSITE_OUTPUT = f"id string, n long, tags array<{_TAG}>, last struct<at: timestamp, pair: array<int>>, kinds string"


def _compose(processor: Any, rows: list[tuple[int, Any]]) -> tuple[int, list[Any], Any, str]:
    """Put rows of value and time into the states of a composite processor; return what they hold."""
    n, tags, last = processor.whole.get() if processor.whole.exists() else (0, [], None)
    tags = [tuple(tag) for tag in tags]
    for value, ts in rows:
        n += 1
        tags = [*tags, (f"t{value}", None if value < 0 else value / 2)][-3:]
        last = (ts, [value, n])
        processor.groups.appendValue((value % 2, [(f"g{value}", float(value))]))
        seen = processor.by_kind.getValue((value % 3, "even" if value % 2 == 0 else "odd"))
        times = [] if seen is None else list(seen[1])
        processor.by_kind.updateValue((value % 3, "even" if value % 2 == 0 else "odd"), (len(times) + 1, [*times, ts]))
    processor.whole.update((n, tags, last))
    groups = [(parity, [tuple(tag) for tag in inner]) for parity, inner in processor.groups.get()]
    kinds = sorted((tuple(kind), count, len(times)) for kind, (count, times) in processor.by_kind.iterator())
    return n, tags, last, str((groups, kinds))


def _ask_for_composites(processor: Any, handle: Any) -> None:
    last = "struct<at: timestamp, pair: array<int>>"
    processor.whole = handle.getValueState("whole", f"n long, tags array<{_TAG}>, last {last}")
    processor.groups = handle.getListState("groups", f"parity int, tags array<{_TAG}>")
    processor.by_kind = handle.getMapState("by_kind", "rest int, kind string", "n int, times array<timestamp>")


class Composites(StatefulProcessor):  # type: ignore[misc]
    """States of structs and arrays within each other; keys of a map of two columns."""

    OUTPUT = COMPOSITE_OUTPUT

    def init(self, handle: Any) -> None:
        _ask_for_composites(self, handle)

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        n, tags, last, kinds = _compose(self, [(row.value, row.ts) for row in rows])
        tag, end = Row("name", "weight"), Row("at", "pair")
        yield Row(id=key[0], n=n, tags=[tag(*each) for each in tags], last=end(*last), kinds=kinds)


class PandasComposites(StatefulProcessor):  # type: ignore[misc]
    """The same in pandas; what is in the structs is emitted as text."""

    OUTPUT = "id string, n long, tags string, pair string, kinds string"

    def init(self, handle: Any) -> None:
        _ask_for_composites(self, handle)

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[pd.DataFrame]:
        given = [
            (value, ts.to_pydatetime())
            for frame in rows
            for value, ts in zip(frame["value"].tolist(), frame["ts"], strict=True)
        ]
        n, tags, last, kinds = _compose(self, given)
        columns = {"id": key, "n": [n], "tags": [str(tags)], "pair": [str(last[1])], "kinds": [kinds]}
        yield pd.DataFrame(columns)


class PandasDeadlines(StatefulProcessor):  # type: ignore[misc]
    """Pandas, with an initial state that sets timers on event time."""

    OUTPUT = "id string, event string, at long, amount long"

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.amount = handle.getValueState("amount", "n long")

    def handleInitialState(self, key: Any, initialState: Any, timerValues: Any) -> None:
        self.amount.update((int(initialState["amount"].sum()),))
        for amount in initialState["amount"].tolist():
            self.handle.registerTimer(amount * 1_000)  # In seconds of event time, from the first on.

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[pd.DataFrame]:
        [amount] = self.amount.get() or (0,)
        amount += sum(int(frame["value"].sum()) for frame in rows)
        self.amount.update((amount,))
        timers = sorted(self.handle.listTimers())
        at = timers[0] if timers else -1
        yield pd.DataFrame({"id": key, "event": [f"{len(timers)} timers"], "at": [at], "amount": [amount]})

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[pd.DataFrame]:
        [amount] = self.amount.get() or (-1,)
        at = expiredTimerInfo.getExpiryTimeInMs()
        yield pd.DataFrame({"id": [key[0]], "event": ["expired"], "at": [at], "amount": [amount]})
