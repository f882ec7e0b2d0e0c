"""bytewax's own logics, run by Flux unchanged, give what bytewax gives: when keys move, and through kills.

It takes about 20 s: several logics are checked with many inputs.
"""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import flux
from flux.model.punctuation import Punctuation
from flux.types.errors import OperatorError, PlanError
from flux.types.hashing import partition_of
from tests.adapters.bytewax_flows import CASES, START, Case, Row, builder_of, by_bytewax, by_key, op, win
from tests.adapters.moving_about import PARTITIONS, emitted
from tests.runtime.waiting import wait_until

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
SHOWN = ["fold", "stateful map", "join", "sliding windows", "session windows"]


def wrapped(case: Case) -> Any:
    return flux.wrap_bytewax(builder_of(case), value=case.value, emit=case.emit, output=case.output)


def together(count: int) -> list[str]:
    """Keys of one partition."""
    letters = pa.array("abcdefghijklmnopqrstuvwxyz")
    partitions = partition_of([letters], PARTITIONS)
    return [k for k, pid in zip(letters.to_pylist(), partitions, strict=True) if pid == 0][:count]


def some_rows(count: int, seed: int = 0) -> list[Row]:
    """Keys of their own pace, times that go to and fro, some of them late."""
    draw = random.Random(seed)
    times = (n // 3 + draw.choice((0, 0, 1, 2, 6, -9)) for n in range(count))
    return [{"k": draw.choice("abcdefgh"), "v": draw.randrange(10), "ts": ts} for ts in times]


@pytest.mark.parametrize("name", CASES)
@settings(max_examples=15, deadline=None)
@given(count=st.integers(1, 60), seed=st.integers(0, 99), moves=st.lists(st.integers(0, 59), max_size=6))
def test_a_logic_gives_what_bytewax_gives_wherever_its_keys_move(
    name: str, count: int, seed: int, moves: list[int]
) -> None:
    rows = some_rows(count, seed)
    got = emitted(wrapped(CASES[name]), rows, key=("k",), moves=moves)
    assert by_key(got) == by_bytewax(CASES[name], rows)


@pytest.mark.parametrize("name", SHOWN)
def test_a_logic_gives_what_bytewax_gives_through_kills(name: str) -> None:
    rows = some_rows(400, seed=7)
    flow = flux.Dataflow("bytewax")
    events = flow.source(flux.sources.Table(rows, rate=400, batch_rows=5))
    events.exchange("k", partitions=6).apply(wrapped(CASES[name])).sink(flux.sinks.Collect())
    with flow.start(sites=3, standby=1) as run:
        # A fold says nothing before the end.
        wait_until(lambda: run.status().inputs >= 100, "a quarter of the rows has come in")
        run.kill("site-2")
        report = run.wait()
    assert len(report.failures) == 1
    assert by_key(report.table.to_pylist()) == by_bytewax(CASES[name], rows)


# What bytewax leaves to the clock.


class Reminder:
    """Says `late` when two seconds of the stream have gone by without a row of its key."""

    def __init__(self, last: datetime | None) -> None:
        self.last = last or flux.stream_time()

    def on_item(self, row: Row) -> tuple[list[Row], bool]:
        self.last = flux.stream_time()
        return [{"what": "row", "at": str(self.last.time())}], False

    def on_notify(self) -> tuple[list[Row], bool]:
        return [{"what": "late", "at": str(flux.stream_time().time())}], True

    def notify_at(self) -> datetime:
        return self.last + timedelta(seconds=2)

    def snapshot(self) -> datetime:
        return self.last


def events(*what: str | int) -> list[Any]:
    """Rows of these keys, and the clock at these seconds."""
    return [{"k": each} if isinstance(each, str) else Punctuation(0, "clock", 1_000 * each) for each in what]


@pytest.mark.parametrize("moves", [[], [0], [1, 3], [2, 4, 5]])
def test_the_clock_of_the_stream_drives_notifications(moves: list[int]) -> None:
    given = events("a", 1, "b", 2, "b", 3, 9, "a", 10)
    got = emitted(flux.wrap_bytewax(Reminder), given, key=("k",), moves=moves)
    assert [(row["k"], row["what"], row["at"]) for row in got] == [
        ("a", "row", "00:00:00"),
        ("b", "row", "00:00:01"),
        ("a", "late", "00:00:02"),
        ("b", "row", "00:00:02"),
        ("b", "late", "00:00:09"),
        ("a", "row", "00:00:09"),
    ]


class Asking:
    """Asks to be notified at the millisecond that a row says, 0 for never."""

    def __init__(self, due: datetime | None) -> None:
        self.due = due

    def on_item(self, row: Row) -> tuple[list[Any], bool]:
        self.due = EPOCH + timedelta(milliseconds=row["at"]) if row["at"] else None
        return [], False

    def on_notify(self) -> tuple[list[Any], bool]:
        self.due = None
        return ["notified"], False

    def notify_at(self) -> datetime | None:
        return self.due

    def snapshot(self) -> datetime | None:
        return self.due


@pytest.mark.parametrize("moves", [[], [3], [0, 2]])
def test_logics_of_one_time_are_notified_in_the_order_of_their_keys_also_after_a_move(moves: list[int]) -> None:
    one, other = together(2)
    asked = [{"k": k, "at": at} for k, at in ((one, 10), (other, 10), (one, 0), (one, 10))]
    got = emitted(flux.wrap_bytewax(Asking), [*asked, *events(1)], key=("k",), moves=moves)
    assert [row["k"] for row in got] == [one, other]


def test_watermarks_may_tell_the_time_instead() -> None:
    given = [{"k": "a"}, Punctuation(0, "clock", 9_000), Punctuation(0, "watermark", 5_000)]
    got = emitted(flux.wrap_bytewax(Reminder, time="watermark"), given, key=("k",))
    assert [row["at"] for row in got] == ["00:00:00", "00:00:05"]


def asking(time: Any, **source: Any) -> flux.Dataflow:
    flow = flux.Dataflow("asking")
    rows = flow.source(flux.sources.Table([{"k": "a", "at": n} for n in range(1, 5)]), **source)
    rows.exchange("k").apply(flux.wrap_bytewax(Asking, time=time)).sink(flux.sinks.Collect())
    return flow


@pytest.mark.parametrize(("time", "source"), [("clock", {}), ("clock", {"event_time": "at"}), ("watermark", {})])
def test_asking_for_a_time_that_nobody_tells_is_a_plan_error(time: str, source: dict[str, str]) -> None:
    with pytest.raises(
        PlanError, match=f"may ask to be notified by the {time}, and no source .* Table. Use flow.source"
    ):
        asking(time, **source).explain()


def test_asking_for_a_time_that_is_told_is_none() -> None:
    asking("watermark", event_time="at", watermark_every_ms=1).explain()
    asking(None).explain()
    assert emitted(flux.wrap_bytewax(Asking, time=None), [{"k": "a", "at": 1}, *events(1)], key=("k",)) == []


def test_windows_close_when_the_stream_says_that_time_has_passed() -> None:
    clock: Any = win.EventClock(lambda row: START, timedelta(seconds=5), now_getter=flux.stream_time)
    case = Case(
        lambda up: win.collect_window(
            "c", up, clock, win.TumblingWindower(align_to=START, length=timedelta(seconds=10))
        ),
        lambda key, event: {"kind": event[1]},
        {"kind": "string"},
    )
    seconds = int((START - EPOCH).total_seconds())
    given = [Punctuation(0, "clock", seconds * 1_000), {"k": "a"}, *events(seconds + 14), *events(seconds + 15)]
    kept = [row["kind"] for row in emitted(wrapped(case), given[:3], key=("k",), ends=False)]
    closed = [row["kind"] for row in emitted(wrapped(case), given, key=("k",), ends=False)]
    assert (kept, closed) == ([], ["E", "M"])


def of_kind(clock: Any) -> Case:
    """What windows emit, and when the windows closed."""
    return Case(
        lambda up: win.collect_window("c", up, clock, _tumbling()),
        lambda key, event: {"kind": event[1], "n": len(event[2]) if event[1] == "E" else 0},
        {"kind": "string", "n": "int64"},
    )


SECONDS = int((START - EPOCH).total_seconds())


def seconds_after_start(*what: Any) -> list[Any]:
    return [SECONDS + each if isinstance(each, int) else each for each in what]


@pytest.mark.parametrize("moves", [[], [1, 3]])
def test_an_event_clock_without_now_getter_has_the_time_of_the_stream(moves: list[int]) -> None:
    case = of_kind(win.EventClock(lambda row: START, timedelta(seconds=5)))
    given = events(*seconds_after_start(0, "a", 14, "b", 15, 16))
    got = [row["kind"] for row in emitted(wrapped(case), given, key=("k",), moves=moves, ends=False)]
    assert got == ["E", "M"], "the window of a has closed after 15 s, that of b is open"
    assert emitted(wrapped(case), given[:3], key=("k",), moves=moves, ends=False) == []


def test_rows_before_the_first_clock_are_as_if_they_had_come_with_it() -> None:
    case = of_kind(win.EventClock(lambda row: START, timedelta(seconds=5)))
    given = events(*seconds_after_start("a", 0, "a", 14))
    assert emitted(wrapped(case), given, key=("k",), ends=False) == []
    [closed, _] = emitted(wrapped(case), [*given, *events(SECONDS + 15)], key=("k",), ends=False)
    assert closed["n"] == 2, "from 1970 to the first clock no time has passed"


def test_without_a_clock_an_event_clock_is_moved_by_rows_alone() -> None:
    case = of_kind(win.EventClock(lambda row: START + timedelta(seconds=row["ts"]), timedelta(seconds=5)))
    given = [{"k": "a", "ts": ts} for ts in (0, 14, 16)]
    assert [row["n"] for row in emitted(wrapped(case), given, key=("k",), ends=False) if row["kind"] == "E"] == [1]


@pytest.mark.parametrize("moves", [[], [0, 2]])
def test_a_system_clock_is_the_clock_of_the_stream(moves: list[int]) -> None:
    given = events(*seconds_after_start(1, "a", 9, "a", 10, "a", 19, 20))
    got = emitted(wrapped(of_kind(win.SystemClock())), given, key=("k",), moves=moves, ends=False)
    assert [row["n"] for row in got if row["kind"] == "E"] == [2, 1]


def test_a_now_getter_of_ones_own_stays() -> None:
    case = of_kind(win.EventClock(lambda row: START, timedelta(), now_getter=lambda: START))
    given = events(*seconds_after_start(0, "a", 60))
    assert emitted(wrapped(case), given, key=("k",), ends=False) == []


def test_a_system_clock_where_no_source_emits_the_clock_is_a_plan_error() -> None:
    flow = flux.Dataflow("clockless")
    rows = flow.source(flux.sources.Table([{"k": "a"}])).exchange("k")
    rows.apply(wrapped(of_kind(win.SystemClock()))).sink(flux.sinks.Null())
    with pytest.raises(
        PlanError, match=r"notified by the clock, and no source .* Table. Use flow.source\(..., clock_ms"
    ):
        flow.explain()


class Never(Asking):
    def notify_at(self) -> None:
        """Nothing is asked for: bytewax has such a method in every logic."""
        return None


def test_a_logic_whose_notify_at_returns_none_asks_for_nothing() -> None:
    flow = flux.Dataflow("never")
    rows = flow.source(flux.sources.Table([{"k": "a", "at": 1}])).exchange("k")
    rows.apply(flux.wrap_bytewax(Never)).sink(flux.sinks.Collect())
    assert flow.run().table.num_rows == 0


def _tumbling() -> Any:
    return win.TumblingWindower(align_to=START, length=timedelta(seconds=10))


# What is emitted, and what goes wrong.


class Counting:
    def __init__(self, seen: int | None) -> None:
        self.seen = seen or 0

    def on_batch(self, values: Sequence[Any]) -> tuple[list[Any], bool]:
        assert len(values) == 1, "where batches are cut is nobody's business"
        self.seen += 1
        return [self.seen], self.seen == 3

    def snapshot(self) -> int:
        return self.seen


def test_a_logic_that_is_done_is_forgotten_and_begins_anew() -> None:
    got = emitted(flux.wrap_bytewax(Counting), events("a", "a", "b", "a", "a"), key=("k",), moves=[1, 3])
    assert [(row["k"], row["value"]) for row in got] == [("a", 1), ("a", 2), ("b", 1), ("a", 3), ("a", 1)]


def test_a_logic_is_given_a_column_or_what_a_function_makes_of_a_row() -> None:
    class Echo(Counting):
        def on_batch(self, values: Sequence[Any]) -> tuple[list[Any], bool]:
            return list(values), False

    rows = [{"k": "a", "v": 7}]
    for value, gives in (("v", {"value": 7}), (lambda row: {"twice": 2 * row["v"]}, {"twice": 14}), (None, {"v": 7})):
        assert emitted(flux.wrap_bytewax(Echo, value=value), rows, key=("k",)) == [{"k": "a"} | gives]


def test_a_column_that_is_not_there_is_a_plan_error() -> None:
    flow = flux.Dataflow("no such column")
    stream = flow.source(flux.sources.Table([{"k": "a", "v": 7}])).exchange("k")
    with pytest.raises(PlanError, match=r"wrap_bytewax\(Counting\): value='price' .* columns k, v"):
        stream.apply(flux.wrap_bytewax(Counting, value="price"))


@pytest.mark.parametrize(
    ("builder", "says"),
    [
        (lambda snapshot: 7, "returned int, which has no snapshot and no on_item"),
        (lambda: None, "must return the logic of a new key; it raised TypeError"),
        (lambda snapshot: 1 / 0, "it raised ZeroDivisionError"),
    ],
)
def test_what_builds_no_logic_is_a_plan_error(builder: Any, says: str) -> None:
    with pytest.raises(PlanError, match=says):
        flux.wrap_bytewax(builder)


def test_what_a_logic_must_return_is_said() -> None:
    class Wrong(Counting):
        def on_batch(self, values: Sequence[Any]) -> Any:
            return [1]

    with pytest.raises(OperatorError, match=r"Wrong.on_batch returned \[1\]; expected a tuple"):
        emitted(flux.wrap_bytewax(Wrong), events("a"), key=("k",))


class Ending(Asking):
    """Ends with what the millisecond says."""

    def on_eof(self) -> tuple[list[Any], bool]:
        if self.due is None:
            raise ValueError("never asked")
        return [{"a": 1, "b": 2} if (self.due - EPOCH) > timedelta(milliseconds=1) else {"a": 1}], False


@pytest.mark.parametrize(
    ("at", "emit", "says"),
    [
        ((1, 2), None, r"Ending.on_eof \(.*test_bytewax.py:\d+\) returned .*'b': 2.*with the keys k, a\. "),
        ((2, 1), None, r"Ending.on_eof \(.*test_bytewax.py:\d+\) returned .*'a': 1.*with the keys k, a, b"),
        ((1, 2), lambda key, value: 3, r"<lambda> \(.*test_bytewax.py:\d+\) returned 3; expected"),
        ((0, 0), None, r"Ending.on_eof \(.*test_bytewax.py:\d+\) raised ValueError: never asked"),
        ((1, 2), lambda key, value: value["c"], r"<lambda> \(.*test_bytewax.py:\d+\) raised KeyError: 'c'"),
    ],
)
def test_what_is_emitted_at_the_end_is_checked_and_the_method_blamed(at: Any, emit: Any, says: str) -> None:
    rows = [{"k": k, "at": each} for k, each in zip(together(2), at, strict=True)]
    with pytest.raises(OperatorError, match=says):
        emitted(flux.wrap_bytewax(Ending, emit=emit, time=None), rows, key=("k",))


def test_flux_does_not_import_bytewax() -> None:
    look = "import flux, sys; flux.wrap_bytewax; print('bytewax' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", look], check=True, capture_output=True, text=True).stdout == "False\n"


class Later(op.StatefulLogic):  # type: ignore[misc]
    """Asks to be notified at a time that it is told."""

    when: Any = None

    def on_item(self, value: Any) -> tuple[list[Any], bool]:
        return [], False

    def notify_at(self) -> Any:
        return self.when

    def snapshot(self) -> None:
        return None


def test_a_time_without_a_zone_is_the_fault_of_who_returned_it() -> None:
    class Naive(Later):
        when = datetime(2030, 1, 1)

    with pytest.raises(OperatorError, match=r"Later.notify_at \(.*returned datetime.*with a time zone"):
        emitted(flux.wrap_bytewax(lambda state: Naive()), [{"k": 1, "v": 1}], key=("k",))


def test_a_logic_inside_that_of_bytewax_may_ask_for_time_too() -> None:
    shim = op._StatefulLogic(Later(), lambda state: Later())
    flow = flux.Dataflow("asks")
    operator = flux.wrap_bytewax(lambda state: shim, output={"k": "int64", "value": "int64"})
    flow.source(flux.sources.Table([{"k": 1}])).exchange("k").apply(operator).sink(flux.sinks.Collect())
    with pytest.raises(PlanError, match="clock"):
        flow.explain()


def test_what_a_generator_does_is_done_before_the_logic_is_asked_for_its_time() -> None:
    class Lazy:
        def __init__(self, seen: int | None) -> None:
            self.seen = seen or 0

        def on_item(self, row: Row) -> tuple[Any, bool]:
            def emitted() -> Any:
                self.seen += 1
                yield f"row {self.seen}"

            return emitted(), False

        def on_notify(self) -> tuple[list[str], bool]:
            return [f"time {self.seen}"], True

        def notify_at(self) -> datetime | None:
            return EPOCH + timedelta(seconds=1) if self.seen == 2 else None

        def snapshot(self) -> int:
            return self.seen

    got = emitted(flux.wrap_bytewax(Lazy), [*events("a", "a"), *events(1)], key=("k",), ends=False)
    assert [row["value"] for row in got] == ["row 1", "row 2", "time 2"]


def test_a_dict_that_a_generator_goes_on_with_is_what_it_was_when_it_was_yielded() -> None:
    class Same(Counting):
        def on_batch(self, values: Sequence[Any]) -> tuple[Any, bool]:
            def emitted() -> Any:
                row: Row = {}
                for row["n"] in range(3):
                    yield row

            return emitted(), True

    got = emitted(flux.wrap_bytewax(Same, emit=lambda key, value: value), [{"k": "a"}], key=("k",))
    assert [row["n"] for row in got] == [0, 1, 2]
