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


class Clocks(StatefulProcessor):  # type: ignore[misc]
    """What the clock says when rows come, and when a timer fires that was due long ago."""

    OUTPUT = "id string, event string, clock long"

    def init(self, handle: Any) -> None:
        self.handle = handle

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        self.handle.registerTimer(1)
        yield Row(id=key[0], event="rows", clock=timerValues.getCurrentProcessingTimeInMs())

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:
        yield Row(id=key.id, event="expired", clock=timerValues.getCurrentProcessingTimeInMs())


class Baskets(StatefulProcessor):  # type: ignore[misc]
    """Map state that is emptied: a negative value does so before what follows it, a 5 when all rows were seen."""

    OUTPUT = "id string, before boolean, after boolean, held string"

    def init(self, handle: Any) -> None:
        self.held = handle.getMapState("held", "value int", "second int")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        before = self.held.exists()
        values = []
        for row in rows:
            values.append(row.value)
            if row.value < 0:
                self.held.clear()
            else:
                self.held.updateValue((row.value,), (row.ts.second,))
        held = sorted(value for (value,), _ in self.held.iterator())
        if 5 in values:
            self.held.clear()
        yield Row(id=key[0], before=before, after=self.held.exists(), held=str(held))


class Forgetful(StatefulProcessor):  # type: ignore[misc]
    """Time-to-live: values, lists and maps that are gone at once, for a while, and for ever as tests go.

    What is there before a micro-batch's rows are put in is told, for each length of life.
    """

    OUTPUT = "id string, life long, value int, list string, map string, exists string"
    SHORT_MS, MIDDLE_MS, LONG_MS = LIVES_MS = 1, 6_000, 3_600_000

    def init(self, handle: Any) -> None:
        self.values, self.lists, self.maps = {}, {}, {}
        for life in self.LIVES_MS:
            self.values[life] = handle.getValueState(f"value{life}", "v int", ttlDurationMs=life)
            self.lists[life] = handle.getListState(f"list{life}", "v int", life)
            self.maps[life] = handle.getMapState(f"map{life}", "k int", "v int", life)
        self.kept = handle.getValueState("kept", "v int")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        told = [self._told(key, life) for life in self.LIVES_MS]
        for row in rows:
            self.kept.update((row.value,))
            if row.value >= 0:
                for life in self.LIVES_MS:
                    self.values[life].update((row.value,))
                    self.lists[life].appendValue((row.value,))
                    self.maps[life].updateValue((row.value,), (row.ts.second,))
        yield from told

    def _told(self, key: Any, life: int) -> Row:
        states = self.values[life], self.lists[life], self.maps[life]
        before = states[0].get()
        held = [v for (v,) in states[1].get()]
        entries = sorted((k, v) for (k,), (v,) in states[2].iterator())
        exists = [state.exists() for state in (*states, self.kept)]
        return Row(
            id=key[0], life=life, value=before and before[0], list=str(held), map=str(entries), exists=str(exists)
        )


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


class PandasBalances(StatefulProcessor):  # type: ignore[misc]
    """Initial state in pandas: a key's rows come in one DataFrame."""

    OUTPUT = "id string, balance long, opened string"

    def init(self, handle: Any) -> None:
        self.balance = handle.getValueState("balance", "amount long, opened string")

    def handleInitialState(self, key: Any, initialState: Any, timerValues: Any) -> None:
        amount, _ = self.balance.get() or (0, "")
        self.balance.update((amount + int(initialState["amount"].sum()), f"given {len(initialState)} {key[0]}"))

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[pd.DataFrame]:
        amount, opened = self.balance.get() or (0, "new")
        amount += sum(int(frame["value"].sum()) for frame in rows)
        self.balance.update((amount, opened))
        yield pd.DataFrame({"id": key, "balance": [amount], "opened": [opened]})


class Pairs(StatefulProcessor):  # type: ignore[misc]
    """A key of two columns, either of which may be null, with timers."""

    OUTPUT = "id string, value int, event string, rows long, at long"

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.rows = handle.getValueState("rows", "rows long")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        [count] = self.rows.get() or (0,)
        for row in rows:
            count += 1
            assert (row.id, row.value) == tuple(key)
            self.handle.registerTimer(int(row.ts.timestamp()) * 1000)
        self.rows.update((count,))
        yield Row(id=key[0], value=key[1], event="rows", rows=count, at=None)

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:
        [count] = self.rows.get()
        yield Row(id=key.id, value=key.value, event="expired", rows=count, at=expiredTimerInfo.getExpiryTimeInMs())


class Hours(StatefulProcessor):  # type: ignore[misc]
    """Rows in a time zone: what a time looks like, and what comes of it."""

    OUTPUT = "id string, hour int, key_hour int, latest timestamp"

    def init(self, handle: Any) -> None:
        self.latest = handle.getValueState("latest", "latest timestamp")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        latest = max(row.ts for row in rows)
        self.latest.update((latest,))
        yield Row(id=key[0], hour=latest.hour, key_hour=key[1].hour, latest=latest)


class Moments(StatefulProcessor):  # type: ignore[misc]
    """The same in pandas."""

    OUTPUT = "id string, hour int, key_hour int, latest timestamp"

    def init(self, handle: Any) -> None:
        pass

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[pd.DataFrame]:
        latest = max(frame["ts"].max() for frame in rows)
        yield pd.DataFrame({"id": key[0], "hour": [latest.hour], "key_hour": [key[1].hour], "latest": [latest]})


class LocalTimes(StatefulProcessor):  # type: ignore[misc]
    """Pandas in a time zone: times are naive there, in rows, in the key, and in what is given back."""

    OUTPUT = "id string, event string, hour int, at timestamp, latest timestamp"
    ZONE = "Europe/Berlin"

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.latest = handle.getValueState("latest", "latest timestamp")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[pd.DataFrame]:
        latest = max(frame["ts"].max() for frame in rows)
        self.handle.registerTimer(int(latest.tz_localize(self.ZONE).timestamp()) * 1000)
        self.latest.update((latest.to_pydatetime(),))
        yield self._frame(key[0], "rows", key[1], latest)

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[pd.DataFrame]:
        [latest] = self.latest.get()
        yield self._frame(key.id, "expired", None, latest)

    def _frame(self, name: Any, event: str, at: Any, latest: Any) -> pd.DataFrame:
        shown = {"id": [name], "event": [event], "hour": [latest.hour], "at": [at], "latest": [latest]}
        return pd.DataFrame(shown).astype({"at": "datetime64[us]"})


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


def local_sessions(key: Any, frames: Any, state: Any) -> Iterator[pd.DataFrame]:
    """For `applyInPandasWithState` in a time zone: times in rows, keys and states, also of keys that have timed out."""
    if state.hasTimedOut:
        [latest] = state.get
        state.remove()
        event = "closed"
    else:
        latest = max(frame["ts"].max() for frame in frames)
        state.update((latest.to_pydatetime(),))
        ends_ms = int(latest.tz_localize(LocalTimes.ZONE).timestamp()) * 1000
        state.setTimeoutTimestamp(max(ends_ms, state.getCurrentWatermarkMs() + 1))
        event = "open"
    yield pd.DataFrame(
        {"id": [key[0]], "event": [event], "hour": [latest.hour], "at": [key[1]], "latest": [pd.Timestamp(latest)]}
    )


LOCAL_OUTPUT = LocalTimes.OUTPUT
LOCAL_STATE = "latest timestamp"


def pairs(key: Any, frames: Any, state: Any) -> Iterator[pd.DataFrame]:
    """For `applyInPandasWithState`: a key of two columns of which one may be null; it times out."""
    count = (state.getOption or (0,))[0]
    if state.hasTimedOut:
        state.remove()
    else:
        count += sum(len(frame) for frame in frames)
        state.update((count,))
        state.setTimeoutTimestamp(max(1, state.getCurrentWatermarkMs()) + 1)
    yield pd.DataFrame({"id": [key[0]], "value": [int(key[1])], "gone": [state.hasTimedOut], "rows": [count]})


PAIRS_OUTPUT = "id string, value int, gone boolean, rows long"
PAIRS_STATE = "rows long"


def at(second: int) -> datetime:
    """A moment of the day on which all rows of the tests are."""
    return datetime(2024, 5, 1, 12, second // 60, second % 60, tzinfo=UTC)
