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
