"""The processors of Spark's own tests, written anew: one for each thing that a test shows, in both row formats.

Nothing here knows of Flux. Rows have an id, a value and a time, so that all of them run over the same input. Each class
says in `OUTPUT` what it emits.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

import pandas as pd
from pyspark.sql import Row
from pyspark.sql.streaming import StatefulProcessor
from pyspark.sql.types import FloatType, IntegerType, LongType, StringType, StructField, StructType

Given = list[tuple[int, Any]]
Emitted = list[dict[str, Any]]
YEAR_MS = 365 * 86_400 * 1_000
LARGE_CHARS = 512 * 1_024


class InBothForms(StatefulProcessor):  # type: ignore[misc]  # pyspark is untyped here
    """Takes rows, or DataFrames, as (value, time), and emits dicts as rows, or as a DataFrame."""

    OUTPUT: Any

    def __init__(self, is_pandas: bool = False) -> None:
        self.is_pandas = is_pandas

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.ask(handle)

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        if self.is_pandas:
            given = [pair for frame in rows for pair in zip(frame["value"].tolist(), frame["ts"], strict=True)]
        else:
            given = [(row.value, row.ts) for row in rows]
        yield from self._in_form(self.work(key, given, timerValues))

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Any]:
        yield from self._in_form(self.expire(key, expiredTimerInfo.getExpiryTimeInMs(), timerValues))

    def handleInitialState(self, key: Any, initialState: Any, timerValues: Any) -> None:
        amounts = initialState["amount"].tolist() if self.is_pandas else [initialState.amount]
        self.begin(key, amounts, timerValues)

    def _in_form(self, rows: Emitted) -> Iterator[Any]:
        if not self.is_pandas:
            yield from (Row(**row) for row in rows)
        elif rows:
            yield pd.DataFrame(rows)

    def struct(self, **fields: Any) -> Any:
        """A struct within a row: a Row there, and a dict in a DataFrame."""
        return fields if self.is_pandas else Row(**fields)

    # What a processor does.

    def ask(self, handle: Any) -> None:
        """Ask for states."""

    def work(self, key: Any, given: Given, timers: Any) -> Emitted:
        """Take the rows of a key."""
        raise NotImplementedError

    def expire(self, key: Any, at_ms: int, timers: Any) -> Emitted:
        """Take a timer that fires."""
        raise NotImplementedError

    def begin(self, key: Any, amounts: list[int], timers: Any) -> None:
        """Take an initial state."""
        raise NotImplementedError


class GivenTotals(InBothForms):
    """An initial state of keys with two columns."""

    OUTPUT = "id string, value int, total string"

    def ask(self, handle: Any) -> None:
        self.total = handle.getValueState("total", StructType([StructField("value", LongType())]))

    def begin(self, key: Any, amounts: list[int], timers: Any) -> None:
        self.total.update((amounts[0],))

    def work(self, key: Any, given: Given, timers: Any) -> Emitted:
        total = self.total.get()[0] if self.total.exists() else 0
        total += sum(value for value, _ in given)
        self.total.update((total,))
        return [{"id": key[0], "value": key[1], "total": str(total)}]


class GivenLists(InBothForms):
    """An initial state that is put into a list."""

    OUTPUT = "id string, held string"

    def ask(self, handle: Any) -> None:
        self.held = handle.getListState("held", StructType([StructField("value", LongType())]))

    def begin(self, key: Any, amounts: list[int], timers: Any) -> None:
        for amount in amounts:
            self.held.appendValue((amount,))

    def work(self, key: Any, given: Given, timers: Any) -> Emitted:
        self.held.appendList([(value,) for value, _ in given])
        return [{"id": key[0], "held": str([value for (value,) in self.held.get()])}]


class Deleted(InBothForms):
    """A state that `init` deletes and that is used all the same; a state with a large time-to-live."""

    OUTPUT = "id string, above long, said string"

    def ask(self, handle: Any) -> None:
        self.above = handle.getValueState("above", "value int", 30_000)
        self.temporary = handle.getValueState("temporary", StructType([StructField("value", IntegerType())]))
        handle.deleteIfExists("temporary")

    def work(self, key: Any, given: Given, timers: Any) -> Emitted:
        try:
            self.temporary.exists()
            said = "nothing"
        except Exception as error:
            said = f"{type(error).__name__}: {'Error checking value state exists' in str(error)}"
        above = (self.above.get() or (0,))[0] + sum(value > 1 for value, _ in given)
        self.above.update((above,))
        return [{"id": key[0], "above": above, "said": said}]


class Nothings(InBothForms):
    """States without a value: what they return, and what comes of clearing them."""

    OUTPUT = "id string, said string"

    def ask(self, handle: Any) -> None:
        self.value = handle.getValueState("value", "value int")
        self.held = handle.getListState("held", "value int")
        self.by_key = handle.getMapState("by_key", "key string", "value int")

    def work(self, key: Any, given: Given, timers: Any) -> Emitted:
        states = (self.value, self.held, self.by_key)
        before = [state.exists() for state in states]
        got = [self.value.get(), list(self.held.get()), list(self.by_key.iterator()), self.by_key.getValue(("x",))]
        self.by_key.removeKey(("x",))
        for state in states:
            state.clear()
        return [{"id": key[0], "said": str([before, got, [state.exists() for state in states]])}]


class Iterators(InBothForms):
    """Lists whose iterators are read by turns, with and without a time-to-live; a list of times."""

    OUTPUT = "id string, said string, times string"

    def ask(self, handle: Any) -> None:
        self.one = handle.getListState("one", StructType([StructField("value", IntegerType())]))
        self.other = handle.getListState("other", "value int", YEAR_MS)
        self.times = handle.getListState("times", "time timestamp")

    def work(self, key: Any, given: Given, timers: Any) -> Emitted:
        for held, more in ((self.one, 111), (self.other, 222)):
            held.put([(120,), (20,)])
            held.appendValue((more,))
            held.appendList([(120,), (20,)])
        first, second = self.one.get(), self.other.get()
        said = [next(first)[0], next(second)[0], next(first)[0]]
        third = self.one.get()
        said += [value for (value,) in third] + [value for (value,) in first] + [value for (value,) in second]
        clock = datetime.fromtimestamp(timers.getCurrentProcessingTimeInMs() / 1_000, UTC).replace(tzinfo=None)
        self.times.put([(clock + timedelta(minutes=1),)] * len(given))
        later = [time.replace(tzinfo=None) - clock for (time,) in self.times.get()]
        return [{"id": key[0], "said": str(said), "times": str(later)}]


class LongLists(InBothForms):
    """Lists of a hundred elements and more, with nulls: put as a whole, or added to."""

    OUTPUT = "id string, before string, after string"

    def ask(self, handle: Any) -> None:
        self.held = handle.getListState("held", "value int, null int")

    def work(self, key: Any, given: Given, timers: Any) -> Emitted:
        before = list(self.held.get())
        if key == ("a",):
            self.held.put([(n, None) for n in range(len(before) + 100)])
        else:
            self.held.appendList([(n, None) for n in range(len(before), len(before) + 100)])
        after = list(self.held.get())
        assert [tuple(each) for each in after] == [(n, None) for n in range(len(after))]
        return [{"id": key[0], "before": str(len(before)), "after": ",".join(str(value) for value, _ in after)}]


class MapCalls(InBothForms):
    """Every call of a map state, with a time-to-live of a year and without one."""

    OUTPUT = "id string, said string"

    def ask(self, handle: Any) -> None:
        self.one = handle.getMapState("one", "name string", "count int")
        self.other = handle.getMapState("other", StructType([StructField("name", StringType())]), "count int", YEAR_MS)

    def work(self, key: Any, given: Given, timers: Any) -> Emitted:
        said: list[Any] = []
        for state in (self.one, self.other):
            for name in ("key2", "key1"):
                before = state.getValue((name,))[0] if state.containsKey((name,)) else 0
                state.updateValue((name,), (before + len(given),))
            keys, values, pairs = state.keys(), state.values(), state.iterator()
            said += [next(keys)[0], next(values)[0], tuple(next(pairs)[0]), next(keys)[0], tuple(next(pairs)[1])]
            state.removeKey(("key1",))
            said += [state.containsKey(("key1",)), state.exists()]
            if len(given) > 1:
                state.clear()
            said.append(state.exists())
        return [{"id": key[0], "said": str(said)}]


_PERSON = "struct<id: int, name: string>"


class Persons(InBothForms):
    """A state of fields that are not null; a struct of the output is emitted as a dict."""

    OUTPUT = f"id string, value {_PERSON}"

    def ask(self, handle: Any) -> None:
        fields = [StructField("id", IntegerType(), False), StructField("name", StringType(), False)]
        self.person = handle.getValueState("person", StructType(fields))

    def work(self, key: Any, given: Given, timers: Any) -> Emitted:
        name = self.person.get()[1] + "0" if self.person.exists() else f"name-{key[0]}"
        self.person.update((len(given), name))
        return [{"id": key[0], "value": {"id": len(given), "name": name}}]


class Scores(InBothForms):
    """A state of many types, with fields in another order in the output."""

    OUTPUT = "id string, value struct<name: string, id: long, score: float, count: int, active: boolean>"

    def ask(self, handle: Any) -> None:
        of = "id long, name string, count int, active boolean"
        kind = StructType([StructField("score", FloatType())])
        self.scores, self.rest = handle.getValueState("scores", kind), handle.getValueState("rest", of)

    def work(self, key: Any, given: Given, timers: Any) -> Emitted:
        if self.rest.exists():
            number, name, count, active = self.rest.get()
            [score] = self.scores.get()
        else:
            number, name, count, active, score = 2**40, f"name-{key[0]}", 100, True, 99.9
        self.rest.update((number + 1, name + "0", count + len(given), not active))
        self.scores.update((score,))
        fields = {"name": name, "id": number, "score": score, "count": count, "active": active}
        return [{"id": key[0], "value": fields}]


class Address(NamedTuple):
    """A struct of a state, as a tuple with names."""

    road: int
    city: str


class Addresses(InBothForms):
    """Arrays of arrays, and structs that are put in as dicts and as tuples with names."""

    OUTPUT = "id string, ids string, said string"
    TAGS = (["one", "two"], ["three"])
    PLACES = (Address(1, "Oslo"), Address(3, "Rome"))

    def ask(self, handle: Any) -> None:
        of = (
            "ids array<int>, tags array<array<string>>, meta array<struct<key: string, value: string>>, "
            "places array<struct<road: int, city: string>>"
        )
        self.whole, self.held = handle.getValueState("whole", of), handle.getListState("held", of)

    def work(self, key: Any, given: Given, timers: Any) -> Emitted:
        total = sum(value for value, _ in given)
        ids = [number + total for number in self.whole.get()[0]] if self.whole.exists() else [0]
        meta = [{"key": "env", "value": "prod"}]
        put = (ids, [list(tags) for tags in self.TAGS], meta, list(self.PLACES))
        self.whole.update(put)
        held = [(each[0] + [total], each[1], [m.asDict() for m in each[2]], each[3]) for each in self.held.get()]
        self.held.put([*held, put])
        said = [self.whole.get()[1:], [each[0] for each in self.held.get()]]
        return [{"id": key[0], "ids": str(ids), "said": str(said)}]


_INNER = "struct<n: int, x: double, many: array<string>, by: map<string, string>>"


class CompositeOutput(InBothForms):
    """Arrays, maps, and both of structs that have arrays and maps in them, as output."""

    OUTPUT = (
        f"id string, many array<string>, by map<string, string>, structs array<{_INNER}>, by_name map<string, {_INNER}>"
    )

    def ask(self, handle: Any) -> None:
        self.count = handle.getValueState("count", "value int")

    def work(self, key: Any, given: Given, timers: Any) -> Emitted:
        count = (self.count.get() or (0,))[0] + len(given)
        self.count.update((count,))

        def inner(n: int) -> Any:
            names = [f"{n}-{each}" for each in range(n + 1)]
            return self.struct(n=n, x=n * 1.5, many=names, by={name: name.upper() for name in names})

        return [
            {
                "id": f"{key[0]}{count}",
                "many": [f"item {n}" for n in range(count)],
                "by": {f"key {n}": f"value {n}" for n in range(count)},
                "structs": [inner(n) for n in range(count)],
                "by_name": {f"name {n}": inner(n) for n in range(count)},
            }
        ]


class LargeValues(InBothForms):
    """Texts of half a megabyte in every kind of state."""

    OUTPUT = "id string, said string"

    def ask(self, handle: Any) -> None:
        self.value = handle.getValueState("value", "value string")
        self.held = handle.getListState("held", "value string")
        self.by_key = handle.getMapState("by_key", "key string", "value string")

    def work(self, key: Any, given: Given, timers: Any) -> Emitted:
        before = [state.exists() for state in (self.value, self.held, self.by_key)]
        large = "a" * LARGE_CHARS
        self.value.update((large,))
        self.held.put([(large,), (large + "b",), (large + "c",)])
        self.by_key.updateValue(("large",), (large,))
        got = [self.value.get()[0], *(text for (text,) in self.held.get()), self.by_key.getValue(("large",))[0]]
        return [{"id": key[0], "said": str([before, [(len(text), text[-1]) for text in got]])}]


class Highest(InBothForms):
    """The highest values of a key; how many is a setting of the instance."""

    OUTPUT = "id string, score double"

    def __init__(self, is_pandas: bool = False, k: int = 2) -> None:
        super().__init__(is_pandas)
        self.k = k

    def ask(self, handle: Any) -> None:
        self.scores = handle.getListState("scores", "score double")

    def work(self, key: Any, given: Given, timers: Any) -> Emitted:
        scores = [score for (score,) in self.scores.get()] + [value / 2 for value, _ in given]
        highest = sorted(scores, reverse=True)[: self.k]
        self.scores.put([(score,) for score in highest])
        return [{"id": key[0], "score": score} for score in highest]
