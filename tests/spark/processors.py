"""Spark's own operators, one of each kind that its documentation shows. Spark and Flux run them unchanged.

Nothing here knows of Flux. Each class says in `OUTPUT` what it emits, so that a test gives both engines the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pandas as pd
from pyspark.sql import Row
from pyspark.sql.streaming import StatefulProcessor
from pyspark.sql.types import IntegerType, LongType, StringType, StructField, StructType


class RunningCount(StatefulProcessor):  # type: ignore[misc]  # pyspark is untyped here
    """Value state: how many rows a key has had, and in which order they came."""

    OUTPUT = "id string, count long, last int, clock long, watermark long"

    def init(self, handle: Any) -> None:
        self.seen = 0  # Spark makes a new instance for each micro-batch: this is no state.
        self.count = handle.getValueState("count", StructType([StructField("count", LongType())]))

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        self.seen += 1
        [count] = self.count.get() if self.count.exists() else (0,)
        last = None
        for row in rows:
            count, last = count + 1, row.value
        self.count.update((count,))
        times = timerValues.getCurrentProcessingTimeInMs(), timerValues.getCurrentWatermarkInMs()
        yield Row(id=key[0], count=count, last=last, clock=times[0], watermark=times[1])


class LastReadings(StatefulProcessor):  # type: ignore[misc]
    """List state: the last three readings of a sensor; a negative one makes it forget them."""

    OUTPUT = StructType([StructField("id", StringType()), StructField("readings", StringType())])

    def init(self, handle: Any) -> None:
        self.readings = handle.getListState("readings", "value int, at timestamp")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        for row in rows:
            if row["value"] < 0:
                self.readings.clear()
            elif not self.readings.exists():
                self.readings.appendList([(row["value"], row.ts)])
            else:
                self.readings.appendValue((row["value"], row.ts))
        held = list(self.readings.get())
        if len(held) > 3:
            self.readings.put(held[-3:])
        shown = " ".join(f"{value}@{at.second}" for value, at in self.readings.get())
        yield Row(id=key[0], readings=shown)


class WordCounts(StatefulProcessor):  # type: ignore[misc]
    """Map state: how often each value of a key was seen; a value of 9 forgets what was seen once."""

    OUTPUT = "id string, value int, count long, kinds int, keys string"

    def init(self, handle: Any) -> None:
        self.counts = handle.getMapState("counts", "value int", "count long, first string")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        values = [row.value for row in rows]
        for value in values:
            if value == 9:
                for seen, (count, _) in list(self.counts.iterator()):
                    if count == 1:
                        self.counts.removeKey(seen)
            elif self.counts.containsKey((value,)):
                count, first = self.counts.getValue((value,))
                self.counts.updateValue((value,), (count + 1, first))
            else:
                self.counts.updateValue((value,), (1, f"{key[0]}{value}"))
        keys = sorted(first for (_, first) in self.counts.values())
        kinds = len(list(self.counts.keys()))
        for value in sorted(set(values)):
            found = self.counts.getValue((value,))
            count = None if found is None else found[0]
            yield Row(id=key[0], value=value, count=count, kinds=kinds, keys=" ".join(keys))


class EventTimers(StatefulProcessor):  # type: ignore[misc]
    """Event-time timers: a key is closed when the watermark has passed its last row, and says what it had.

    Each row moves the timer. A row of value 0 sets two timers more, of which the first to fire deletes the second and
    sets a new one that has expired already: what Spark makes of that, Flux must make too.
    """

    OUTPUT = "id string, event string, at long, rows long, timers string, clock_is_set boolean, watermark long"

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.last = handle.getValueState("last", "ms long, rows long")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        last, count = self.last.get() or (None, 0)
        for row in rows:
            ms = int(row.ts.replace(tzinfo=row.ts.tzinfo or UTC).timestamp()) * 1000
            count += 1
            if last is not None:
                self.handle.deleteTimer(last)
            last = max(ms, last or 0)
            self.handle.registerTimer(last)
            if row.value == 0:
                self.handle.registerTimer(last + 1)
                self.handle.registerTimer(last + 2)
        self.last.update((last, count))
        yield self._row(key, "rows", None, count, timerValues)

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:
        at = expiredTimerInfo.getExpiryTimeInMs()
        last, count = self.last.get() or (None, -1)
        yield self._row((key.id,), "expired", at, count, timerValues)
        if last is not None and at == last + 1:
            self.handle.deleteTimer(last + 2)
            self.handle.registerTimer(last - 10)
        if at == last:
            if at % 2_000 == 0:
                self.last.clear()
            else:
                self.handle.registerTimer(at + 20_000)

    def _row(self, key: Any, event: str, at: Any, count: int, timer_values: Any) -> Row:
        return Row(
            id=key[0],
            event=event,
            at=at,
            rows=count,
            timers=" ".join(str(ms) for ms in sorted(self.handle.listTimers())),
            clock_is_set=timer_values.getCurrentProcessingTimeInMs() > 0,
            watermark=timer_values.getCurrentWatermarkInMs(),
        )


class ProcessingTimers(StatefulProcessor):  # type: ignore[misc]
    """Processing-time timers: each micro-batch's rows are reported when the time has come, counted from the first."""

    OUTPUT = "id string, event string, due long, total int, clock long, watermark long"
    WAIT_MS = 1

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.sums = handle.getMapState("sums", "due long", StructType([StructField("total", IntegerType())]))

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        clock = timerValues.getCurrentProcessingTimeInMs()
        due = clock + self.WAIT_MS
        total = sum(row.value for row in rows)
        self.handle.registerTimer(due)
        self.sums.updateValue((due,), (total,))
        yield Row(id=key[0], event="in", due=due, total=total, clock=clock, watermark=0)

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:
        due = expiredTimerInfo.getExpiryTimeInMs()
        [total] = self.sums.getValue((due,))
        self.sums.removeKey((due,))
        clock, watermark = timerValues.getCurrentProcessingTimeInMs(), timerValues.getCurrentWatermarkInMs()
        yield Row(id=key["id"], event="out", due=due, total=total, clock=clock, watermark=watermark)


class Forgetful(StatefulProcessor):  # type: ignore[misc]
    """Time-to-live: a value, a list and a map, of which only what is young is left."""

    OUTPUT = "id string, value int, list string, map string, exists string"
    LIFE_MS = 2_500

    def init(self, handle: Any) -> None:
        self.value = handle.getValueState("value", "v int", ttlDurationMs=self.LIFE_MS)
        self.items = handle.getListState("items", "v int", self.LIFE_MS)
        self.map = handle.getMapState("map", "k int", "v int", self.LIFE_MS)
        self.kept = handle.getValueState("kept", "v int")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        before = self.value.get()
        held = [v for (v,) in self.items.get()]
        entries = sorted((k, v) for (k,), (v,) in self.map.iterator())
        exists = [state.exists() for state in (self.value, self.items, self.map, self.kept)]
        for row in rows:
            self.kept.update((row.value,))
            if row.value >= 0:
                self.value.update((row.value,))
                self.items.appendValue((row.value,))
                self.map.updateValue((row.value % 3,), (row.value,))
        yield Row(id=key[0], value=before and before[0], list=str(held), map=str(entries), exists=str(exists))


class Balances(StatefulProcessor):  # type: ignore[misc]
    """Initial state: balances are given before the first micro-batch."""

    OUTPUT = "id string, balance long, opened string"

    def init(self, handle: Any) -> None:
        self.balance = handle.getValueState("balance", "amount long, opened string")

    def handleInitialState(self, key: Any, initialState: Any, timerValues: Any) -> None:
        amount = initialState.amount + (self.balance.get() or (0,))[0]
        self.balance.update((amount, f"given {initialState.id}"))

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        amount, opened = self.balance.get() or (0, "new")
        amount += sum(row.value for row in rows)
        self.balance.update((amount, opened))
        yield Row(id=key[0], balance=amount, opened=opened)


class Averages(StatefulProcessor):  # type: ignore[misc]
    """Pandas: the mean of all values of a key, and of those of this micro-batch."""

    OUTPUT = "id string, mean double, latest timestamp, rows long"

    def init(self, handle: Any) -> None:
        self.total = handle.getValueState("total", "total double, rows long")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[pd.DataFrame]:
        total, count = self.total.get() or (0.0, 0)
        latest = None
        for frame in rows:
            total += frame["value"].sum()
            count += len(frame)
            latest = frame["ts"].max()
        self.total.update((total, count))
        yield pd.DataFrame({"id": key, "mean": [total / count], "latest": [latest], "rows": [count]})


def sessions(key: Any, frames: Any, state: Any) -> Iterator[pd.DataFrame]:
    """For `applyInPandasWithState` with event time: a session is told when the watermark has passed its end."""
    if state.hasTimedOut:
        first, last, count = state.get
        state.remove()
        yield pd.DataFrame({"id": [key[0]], "event": ["closed"], "span": [last - first], "rows": [count]})
        return
    first, last, count = state.getOption or (None, 0, 0)
    for frame in frames:
        times = [int(ts.timestamp()) for ts in frame["ts"]]
        first = min([*times, first] if first is not None else times)
        last = max([*times, last])
        count += len(frame)
    state.update((first, last, count))
    state.setTimeoutTimestamp(max(last * 1000, state.getCurrentWatermarkMs() + 1))
    yield pd.DataFrame({"id": [key[0]], "event": ["open"], "span": [last - first], "rows": [count]})


SESSIONS_OUTPUT = "id string, event string, span long, rows long"
SESSIONS_STATE = "first long, last long, rows long"


def absences(key: Any, frames: Any, state: Any) -> Iterator[pd.DataFrame]:
    """For `applyInPandasWithState` with processing time: a key that was silent is told once, and again if it speaks."""
    if state.hasTimedOut:
        [count] = state.get
        if count % 2:
            state.update((count + 1,))  # Without a new timeout it has none.
        else:
            state.remove()
        yield pd.DataFrame({"id": [key[0]], "count": [count], "gone": [True]})
        return
    count = (state.getOption or (0,))[0] + sum(len(frame) for frame in frames)
    state.update((count,))
    state.setTimeoutDuration(1)
    yield pd.DataFrame({"id": [key[0]], "count": [count], "gone": [False]})


ABSENCES_OUTPUT = "id string, count long, gone boolean"
ABSENCES_STATE = "count long"


def at(second: int) -> datetime:
    """A moment of the day on which all rows of the tests are."""
    return datetime(2024, 5, 1, 12, second // 60, second % 60, tzinfo=UTC)
