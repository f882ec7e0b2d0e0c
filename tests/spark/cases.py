"""The cases in which Spark and Flux are compared: an operator of Spark's, how Spark runs it, and how Flux does.

What Spark makes of the rows below is recorded in `recorded/`, with the clock and the watermark of each micro-batch::

    python tests/spark/cases.py [name ...]        # records anew; needs Java and a minute
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))
sys.path.insert(0, str(Path(__file__).parent))

import more_processors as q
import processors as p
from suite_cases import suite_cases
from traces import MicroBatch, Query, from_plain, to_plain

from flux.spark import pandas_with_state, stateful_processor

RECORDED = Path(__file__).parent / "recorded"
INITIAL = [("a", 100), ("z", 5), ("a", 7)]
# Of the first of these keys one is due with the first watermark, one later; the last has no rows.
DEADLINES = [
    (key, int(p.at(second).timestamp())) for key, second in (("a", 5), ("a", 30), ("b", 45), ("z", 20), ("y", 3_000))
]
BERLIN = p.LocalTimes.ZONE

# One list to a micro-batch: id, value, second of event time. The watermark is ten seconds behind.
INPUTS = (
    [("b", 1, 1), ("a", 2, 2), ("a", 3, 1), ("c", 0, 11)],
    [("a", 2, 20), ("b", 5, 21), ("a", -1, 22), ("a", 4, 0), ("g", 1, 12)],
    [("f", 1, 40), ("a", 9, 13), ("d", 7, 41)],
    [("a", 1, 60), ("a", 1, 60), ("b", 2, 61), ("e", 4, 12), ("e", 3, 13)],
)
# The same, with keys of two columns that are null here and there.
NULLS = (
    [(None, 1, 1), ("a", 1, 2), (None, 1, 3), ("a", 2, 11), ("", 1, 4)],
    [(None, 1, 20), (None, 2, 21), ("a", 1, 22)],
    [("a", 2, 40), (None, 2, 41)],
    [(None, 1, 60), ("", 1, 61)],
)


@dataclass(frozen=True)
class Case:
    """`spark` applies the operator to a DataFrame that is grouped by `keys`; `flux` makes the operator for Flux."""

    spark: Callable[[Any, Any], Any]
    flux: Callable[[], type]
    batches: int = len(INPUTS)
    # Processing time goes on while nothing comes: Spark runs micro-batches without rows until the query is stopped.
    is_endless: bool = False
    keys: tuple[str, ...] = ("id",)
    rows: Any = INPUTS
    # Of Spark's session.
    zone: str = "UTC"
    mode: str = "update"

    def inputs(self) -> list[Any]:
        """The rows of each micro-batch."""
        return [[(key, value, p.at(second)) for key, value, second in rows] for rows in self.rows]


def transformed(cls: Any, mode: str = "None") -> Callable[[Any, Any], Any]:
    return lambda grouped, spark: grouped.transformWithState(cls(), cls.OUTPUT, "Update", mode)


def initial_state(spark: Any) -> Any:
    return spark.createDataFrame(INITIAL, "id string, amount long").groupBy("id")


def with_initial_state(grouped: Any, spark: Any) -> Any:
    return grouped.transformWithState(p.Balances(), p.Balances.OUTPUT, "Update", "None", initial_state(spark))


def with_initial_state_in_pandas(grouped: Any, spark: Any) -> Any:
    cls = p.PandasBalances
    return grouped.transformWithStateInPandas(cls(), cls.OUTPUT, "Update", "None", initial_state(spark))


def with_deadlines_in_pandas(grouped: Any, spark: Any) -> Any:
    given = spark.createDataFrame(DEADLINES, "id string, amount long").groupBy("id")
    return grouped.transformWithStateInPandas(
        q.PandasDeadlines(), q.PandasDeadlines.OUTPUT, "Update", "EventTime", given
    )


def in_pandas(cls: Any, mode: str = "None") -> Callable[[Any, Any], Any]:
    return lambda grouped, spark: grouped.transformWithStateInPandas(cls(), cls.OUTPUT, "Update", mode)


def with_group_state(*arguments: Any) -> Callable[[Any, Any], Any]:
    return lambda grouped, spark: grouped.applyInPandasWithState(*arguments)


LENGTHS = (q.lengths, q.LENGTHS_OUTPUT, q.LENGTHS_STATE, "update", "NoTimeout")
SESSIONS = (p.sessions, p.SESSIONS_OUTPUT, p.SESSIONS_STATE, "update", "EventTimeTimeout")
PAIRS = (p.pairs, p.PAIRS_OUTPUT, p.PAIRS_STATE, "update", "EventTimeTimeout")
LOCAL_SESSIONS = (p.local_sessions, p.LOCAL_OUTPUT, p.LOCAL_STATE, "update", "EventTimeTimeout")
ABSENCES = (p.absences, p.ABSENCES_OUTPUT, p.ABSENCES_STATE, "update", "ProcessingTimeTimeout")

CASES = {
    "value": Case(
        transformed(p.RunningCount), lambda: stateful_processor(p.RunningCount, p.RunningCount.OUTPUT, "Update")
    ),
    "list": Case(
        transformed(p.LastReadings), lambda: stateful_processor(p.LastReadings, p.LastReadings.OUTPUT, "Update")
    ),
    "map": Case(transformed(p.WordCounts), lambda: stateful_processor(p.WordCounts, p.WordCounts.OUTPUT, "Update")),
    "event_timers": Case(
        transformed(p.EventTimers, "EventTime"),
        lambda: stateful_processor(p.EventTimers, p.EventTimers.OUTPUT, "Update", "EventTime", event_time="ts"),
        batches=5,
    ),
    "processing_timers": Case(
        transformed(p.ProcessingTimers, "ProcessingTime"),
        lambda: stateful_processor(p.ProcessingTimers(), p.ProcessingTimers.OUTPUT, "Update", "ProcessingTime"),
        batches=5,
        is_endless=True,
    ),
    "time_to_live": Case(
        transformed(p.Forgetful, "ProcessingTime"),
        lambda: stateful_processor(p.Forgetful, p.Forgetful.OUTPUT, "Update", "ProcessingTime"),
        is_endless=True,
    ),
    "initial_state": Case(
        with_initial_state,
        lambda: stateful_processor(
            p.Balances,
            p.Balances.OUTPUT,
            "Update",
            initialState=[{"id": key, "amount": amount} for key, amount in INITIAL],
        ),
    ),
    "initial_state_in_pandas": Case(
        with_initial_state_in_pandas,
        lambda: stateful_processor(
            p.PandasBalances,
            p.PandasBalances.OUTPUT,
            "Update",
            initialState=[{"id": key, "amount": amount} for key, amount in INITIAL],
            rows="pandas",
        ),
    ),
    "cleared_map": Case(transformed(p.Baskets), lambda: stateful_processor(p.Baskets, p.Baskets.OUTPUT, "Update")),
    "keys": Case(
        transformed(p.Pairs, "EventTime"),
        lambda: stateful_processor(p.Pairs, p.Pairs.OUTPUT, "Update", "EventTime", event_time="ts"),
        batches=5,
        keys=("id", "value"),
        rows=NULLS,
    ),
    "hours": Case(
        transformed(p.Hours),
        lambda: stateful_processor(p.Hours, p.Hours.OUTPUT, "Update", time_zone=BERLIN),
        keys=("id", "ts"),
        zone=BERLIN,
    ),
    "local_times": Case(
        in_pandas(p.LocalTimes, "EventTime"),
        lambda: stateful_processor(
            p.LocalTimes,
            p.LocalTimes.OUTPUT,
            "Update",
            "EventTime",
            rows="pandas",
            event_time="ts",
            time_zone=BERLIN,
        ),
        batches=5,
        keys=("id", "ts"),
        zone=BERLIN,
    ),
    "pandas": Case(
        in_pandas(p.Averages), lambda: stateful_processor(p.Averages, p.Averages.OUTPUT, "Update", rows="pandas")
    ),
    "deleted_state": Case(
        transformed(q.Violations), lambda: stateful_processor(q.Violations(), q.Violations.OUTPUT, "Update")
    ),
    "pandas_states": Case(
        in_pandas(q.PandasStates),
        lambda: stateful_processor(q.PandasStates, q.PandasStates.OUTPUT, "Append", rows="pandas"),
    ),
    "pandas_timers": Case(
        in_pandas(q.PandasTimers, "EventTime"),
        lambda: stateful_processor(
            q.PandasTimers, q.PandasTimers.OUTPUT, "Update", "EventTime", rows="pandas", event_time="ts"
        ),
        batches=5,
    ),
    "pandas_time_to_live": Case(
        in_pandas(q.PandasForgetful, "ProcessingTime"),
        lambda: stateful_processor(
            q.PandasForgetful, q.PandasForgetful.OUTPUT, "Update", "ProcessingTime", rows="pandas"
        ),
        is_endless=True,
    ),
    "composites": Case(
        transformed(q.Composites), lambda: stateful_processor(q.Composites, q.Composites.OUTPUT, "Update")
    ),
    "pandas_composites": Case(
        in_pandas(q.PandasComposites),
        lambda: stateful_processor(q.PandasComposites, q.PandasComposites.OUTPUT, "Update", rows="pandas"),
    ),
    "pandas_deadlines": Case(
        with_deadlines_in_pandas,
        lambda: stateful_processor(
            q.PandasDeadlines,
            q.PandasDeadlines.OUTPUT,
            "Update",
            "EventTime",
            rows="pandas",
            event_time="ts",
            initialState=[{"id": key, "amount": amount} for key, amount in DEADLINES],
        ),
        batches=5,
    ),
    "group_state_no_timeout": Case(with_group_state(*LENGTHS), lambda: pandas_with_state(*LENGTHS)),
    "group_state_event_time": Case(
        with_group_state(*SESSIONS), lambda: pandas_with_state(*SESSIONS, event_time="ts"), batches=5
    ),
    "group_state_keys": Case(
        with_group_state(*PAIRS),
        lambda: pandas_with_state(*PAIRS, event_time="ts"),
        batches=5,
        keys=("id", "value"),
        rows=NULLS,
    ),
    "group_state_local_times": Case(
        with_group_state(*LOCAL_SESSIONS),
        lambda: pandas_with_state(*LOCAL_SESSIONS, event_time="ts", time_zone=BERLIN),
        batches=5,
        keys=("id", "ts"),
        zone=BERLIN,
    ),
    "group_state_processing_time": Case(
        with_group_state(*ABSENCES), lambda: pandas_with_state(*ABSENCES), batches=5, is_endless=True
    ),
}


SUITE = suite_cases(Case)


def chained(grouped: Any, spark: Any) -> Any:
    relayed = grouped.transformWithState(q.Relay(), q.Relay.OUTPUT, "Append", "EventTime", eventTimeColumnName="ts")
    return relayed.groupBy("id").transformWithState(p.EventTimers(), p.EventTimers.OUTPUT, "Append", "EventTime")


# The second of two operators; the first is `Relay`.
CHAINED = Case(chained, CASES["event_timers"].flux, batches=5, mode="append")


def case_of(name: str) -> Case:
    return CHAINED if name == "chained" else (CASES | SUITE)[name]


def start(spark: Any, name: str, folder: Path) -> Query:
    """Start the query of a case."""
    case = case_of(name)
    trigger: dict[str, Any] = {"processingTime": "0 seconds"} if case.is_endless else {"availableNow": True}
    query = Query(folder / name, case.inputs(), zone=case.zone, mode=case.mode)
    return query.start(spark, lambda df: case.spark(df.groupBy(*case.keys), spark), trigger)


def recorded(name: str) -> list[MicroBatch]:
    """What Spark made of a case when it was recorded."""
    return [from_plain(batch) for batch in json.loads((RECORDED / f"{name}.json").read_text())]


def record(names: list[str]) -> None:
    """Run the cases in Spark and write down what it makes of them."""
    from session import new_session

    spark = new_session()
    with tempfile.TemporaryDirectory() as folder:
        for name in names:
            trace = start(spark, name, Path(folder)).trace(case_of(name).batches)
            path = RECORDED / f"{name}.json"
            path.write_text("[\n" + ",\n".join(json.dumps(to_plain(batch)) for batch in trace) + "\n]\n")
            print(f"{name}: {len(trace)} micro-batches, {sum(len(batch.output) for batch in trace)} rows", flush=True)
    spark.stop()


if __name__ == "__main__":
    record(sys.argv[1:] or [*CASES, "chained", *SUITE])
