"""The cases of `suite_processors`: each processor of Spark's tests in both row formats, for Spark and for Flux."""

from __future__ import annotations

import functools
from typing import Any

import suite_processors as s
import suite_times as t

from flux.spark import stateful_processor

INITIAL = [("a", 2, 100), ("z", 7, 5), ("b", 1, 40), ("a", 3, 8)]  # Of one row for each key of two columns.
NONE, CLOCK, EVENT = "None", "ProcessingTime", "EventTime"
FORMS = {"rows": False, "pandas": True}

# The processor, its time mode, and the columns of its initial state, if it has one.
PROCESSORS: dict[str, tuple[type[s.InBothForms], str, tuple[str, ...]]] = {
    "given_totals": (s.GivenTotals, NONE, ("id", "value")),
    "given_timers": (t.GivenTimers, CLOCK, ("id",)),
    "given_lists": (s.GivenLists, NONE, ("id",)),
    "latest_times": (t.LatestTimes, EVENT, ()),
    "earliest_times": (t.EarliestTimes, EVENT, ()),
    "resets": (t.Resets, CLOCK, ()),
    "deleted": (s.Deleted, CLOCK, ()),
    "nothings": (s.Nothings, NONE, ()),
    "iterators": (s.Iterators, CLOCK, ()),
    "long_lists": (s.LongLists, NONE, ()),
    "map_calls": (s.MapCalls, CLOCK, ()),
    "persons": (s.Persons, NONE, ()),
    "scores": (s.Scores, NONE, ()),
    "addresses": (s.Addresses, NONE, ()),
    "composite_output": (s.CompositeOutput, NONE, ()),
    "large_values": (s.LargeValues, NONE, ()),
    "highest": (s.Highest, NONE, ()),
    "sessions": (t.Sessions, EVENT, ()),
    "timeouts": (t.Timeouts, CLOCK, ()),
    "on_time": (t.OnTime, EVENT, ()),
}


def initial(columns: tuple[str, ...]) -> list[dict[str, Any]]:
    """The initial state of keys with these columns."""
    rows = [{"id": key, "value": value, "amount": amount} for key, value, amount in INITIAL]
    return [{name: row[name] for name in (*columns, "amount")} for row in rows]


def in_spark(name: str, form: str, grouped: Any, spark: Any) -> Any:
    """Apply the processor to a grouped DataFrame."""
    cls, mode, given = PROCESSORS[name]
    method = grouped.transformWithStateInPandas if FORMS[form] else grouped.transformWithState
    state = None
    if given:
        kinds = {"id": "string", "value": "int", "amount": "long"}
        ddl = ", ".join(f"{column} {kinds[column]}" for column in (*given, "amount"))
        rows = [tuple(row.values()) for row in initial(given)]
        state = spark.createDataFrame(rows, ddl).groupBy(*given)
    return method(cls(FORMS[form]), cls.OUTPUT, "Update", mode, state)


def in_flux(name: str, form: str) -> type:
    """Make the operator."""
    cls, mode, given = PROCESSORS[name]
    settings: dict[str, Any] = {"rows": "pandas"} if FORMS[form] else {}
    settings |= {"event_time": "ts"} if mode == EVENT else {}
    settings |= {"initialState": initial(given)} if given else {}
    made: type = stateful_processor(cls(FORMS[form]), cls.OUTPUT, "Update", mode, **settings)
    return made


def suite_cases(case: Any) -> dict[str, Any]:
    """Return a `Case` for each processor in each form."""
    made = {}
    for name, (_, mode, given) in PROCESSORS.items():
        for form in FORMS:
            made[f"suite_{name}_{form}"] = case(
                functools.partial(in_spark, name, form),
                functools.partial(in_flux, name, form),
                batches={NONE: 4, EVENT: 5, CLOCK: 5}[mode],
                is_endless=mode == CLOCK,
                keys=given or ("id",),
            )
    return made
