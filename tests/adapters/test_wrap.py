"""Classes that know nothing of Flux, run by it."""

from __future__ import annotations

import functools
import logging
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import pyarrow as pa
import pytest

import flux
from flux.types.errors import OperatorError, PlanError, StateError
from tests.adapters.moving_about import emitted

ROWS = [{"k": n % 5, "v": n} for n in range(40)]


class Totals:
    """The usual names: they need not be said."""

    def __init__(self, start: int = 0) -> None:
        self.start = start
        self.totals: dict[int, int] = {}

    def update(self, row: dict[str, int]) -> dict[str, int]:
        total = self.totals[row["k"]] = self.totals.get(row["k"], self.start) + row["v"]
        return {"k": row["k"], "total": total}

    def getState(self) -> dict[int, int]:
        return self.totals

    def installState(self, state: dict[int, int]) -> None:
        self.totals.update(state)


def totals(start: int = 0) -> list[dict[str, int]]:
    plain = Totals(start)
    return [plain.update(row) for row in ROWS]


@pytest.mark.parametrize("moves", [[], [3], [0, 7, 8, 30]])
def test_the_usual_methods_are_found(moves: list[int]) -> None:
    assert emitted(flux.wrap(Totals), ROWS, key=("k",), moves=moves) == totals()


def test_parameters_reach_the_constructor() -> None:
    assert emitted(flux.wrap(Totals), ROWS, key=("k",), start=7) == totals(7)


def test_a_wrapped_class_survives_a_kill() -> None:
    flow = flux.Dataflow("wrapped")
    operator = flux.wrap(Totals, output={"k": "int64", "total": "int64"})
    flow.source(flux.sources.Table(ROWS, rate=80)).exchange("k", partitions=4).apply(operator, start=1).sink(
        flux.sinks.Collect()
    )
    with flow.start(sites=2, standby=1) as run:
        run.wait_for_output(5)
        run.kill("site-1")
        assert run.wait().table.to_pylist() == totals(1)


@dataclass
class Seen:
    values: set[int]


class Odd:
    """Other names, state of a class, and outputs of every kind."""

    def __init__(self) -> None:
        self.seen = Seen(set())

    def look(self, row: dict[str, int]) -> Any:
        is_new = row["v"] % 7 not in self.seen.values
        self.seen.values.add(row["v"] % 7)
        return ({"v": row["v"]} for _ in range(2)) if is_new else None

    def all(self) -> Iterator[dict[str, int]]:
        yield from ({"v": -v} for v in sorted(self.seen.values))


@pytest.mark.parametrize("moves", [[], [2, 5, 6]])
def test_methods_may_be_named_or_functions_and_classes_in_the_state_are_named(moves: list[int]) -> None:
    operator = flux.wrap(
        Odd,
        process="look",
        get_state=vars,
        install_state=lambda it, state: vars(it).update(state),
        at_end="all",
        state_types=(Seen,),
    )
    rows = [{"k": 1, "v": v} for v in (1, 8, 2, 1, 9, 3, 2)]
    got = [row["v"] for row in emitted(operator, rows, key=("k",), moves=moves)]
    assert got == [1, 1, 2, 2, 3, 3, -1, -2, -3]


def test_what_makes_instances_may_be_wrapped_too() -> None:
    assert emitted(flux.wrap(lambda: Totals(3)), ROWS, key=("k",)) == totals(3)


def test_an_instance_that_can_be_called_is_called() -> None:
    class Twice:
        def __call__(self, row: dict[str, int]) -> dict[str, int]:
            return {"v": 2 * row["v"]}

    operator = flux.wrap(Twice, get_state=lambda it: None, install_state=lambda it, state: None)
    assert [row["v"] for row in emitted(operator, ROWS, key=("k",))] == [2 * row["v"] for row in ROWS]


class Mute:
    def say(self) -> None: ...


@pytest.mark.parametrize(
    ("wrapping", "says"),
    [
        (lambda: flux.wrap(Mute), r"wrap\(Mute\): it has none of the methods update, .*it has say\..*process= which"),
        (lambda: flux.wrap(Mute, process="speak"), r"it has no method 'speak'; it has say"),
        (lambda: flux.wrap(Mute, process="say"), "none of the methods getState, .*get_state=vars"),
        (lambda: flux.wrap(Odd, process="look", get_state=vars), "none of the methods installState.*vars"),
        (lambda: flux.wrap(Totals, process=7), "expected the name of a method or a function, got 7"),  # type: ignore[arg-type]
        (lambda: flux.wrap("Totals"), "wrap takes a class"),  # type: ignore[arg-type]
        (lambda: flux.wrap(lambda: 1 / 0), "it raised ZeroDivisionError"),
    ],
)
def test_what_does_not_fit_is_a_plan_error_that_says_what_to_do(wrapping: Any, says: str) -> None:
    with pytest.raises(PlanError, match=says):
        wrapping()


def test_an_error_names_the_method_of_the_class_and_the_row() -> None:
    class Raising(Totals):
        def update(self, row: dict[str, int]) -> dict[str, int]:
            if row["v"] == 3:
                raise ValueError("three")
            return super().update(row)

    with pytest.raises(
        OperatorError, match=r"Raising.update \(.*test_wrap.py:\d+\) raised ValueError: three.*'v': 3"
    ) as caught:
        emitted(flux.wrap(Raising), ROWS, key=("k",))
    assert caught.value.row == 4


@pytest.mark.parametrize("returned", ["text", 7, [1, 2], [{"k": 1}, {"other": 2}]])
def test_what_is_no_row_is_refused(returned: Any) -> None:
    class Wrong(Totals):
        def update(self, row: dict[str, int]) -> Any:
            return returned

    with pytest.raises(OperatorError, match="expected None, a dict or an iterable of dicts") as caught:
        emitted(flux.wrap(Wrong), ROWS, key=("k",))
    assert caught.value.row is not None


def test_state_that_cannot_be_moved_is_named() -> None:
    with pytest.raises(StateError, match=r"Seen.*at \['seen'\].*state_types = \(Seen,\)"):
        emitted(flux.wrap(Odd, process="look", get_state=vars, install_state=setattr), ROWS, key=("k",), moves=[1])


class KeepsItsRow:
    """Returns the dict that it goes on counting in, and a list that it goes on adding to."""

    def __init__(self) -> None:
        self.stats: dict[str, Any] = {"n": 0, "all": []}

    def update(self, row: dict[str, int]) -> dict[str, Any]:
        self.stats["n"] += 1
        self.stats["all"].append(row["v"])
        return self.stats

    def getState(self) -> dict[str, Any]:
        return self.stats

    def installState(self, state: dict[str, Any]) -> None:
        self.stats = state


@pytest.mark.parametrize("output", [None, {"n": "int64", "all": pa.list_(pa.int64())}])
def test_a_row_is_what_it_was_when_it_was_returned(output: Any) -> None:
    wrapped = flux.wrap(KeepsItsRow, output=output)
    told = emitted(wrapped, [{"k": 1, "v": v} for v in range(5)], key=("k",), moves=[2])
    assert told == [{"n": n, "all": list(range(n))} for n in range(1, 6)]


def test_a_static_method_is_called_as_one() -> None:
    class Doubles(Totals):
        @staticmethod
        def update(row: dict[str, int]) -> dict[str, int]:  # type: ignore[override]
            return {"v": 2 * row["v"]}

    assert emitted(flux.wrap(Doubles), ROWS[:2], key=("k",)) == [{"v": 0}, {"v": 2}]


def test_an_error_about_a_static_method_names_the_users_file() -> None:
    class Divides(Totals):
        @staticmethod
        def update(row: dict[str, int]) -> Any:  # type: ignore[override]
            return {"v": 2 // row["v"]} if row["v"] < 2 else 5

    name, line = re.escape(Divides.update.__qualname__), Divides.update.__code__.co_firstlineno
    with pytest.raises(OperatorError, match=rf"{name} \({__file__}:{line + 2}\) raised ZeroDivisionError"):
        emitted(flux.wrap(Divides), ROWS[:1], key=("k",))
    with pytest.raises(OperatorError, match=rf"{name} \({__file__}:{line}\) returned 5"):
        emitted(flux.wrap(Divides), ROWS[2:3], key=("k",))


class Failing(Totals):
    def __init__(self, place: str) -> None:
        super().__init__()
        self.place = place
        self.fail("__init__")

    def fail(self, place: str) -> None:
        if place == self.place:
            raise ValueError("not today")

    def finish(self) -> list[Any]:
        self.fail("finish")
        return [5]

    def getState(self) -> dict[int, int]:
        self.fail("getState")
        return super().getState()


@pytest.mark.parametrize(
    ("place", "says"),
    [
        ("__init__", r"Failing \(.*test_wrap.py:\d+\) raised ValueError: not today"),
        ("getState", r"Failing\.getState \(.*test_wrap.py:\d+\) raised ValueError: not today"),
        ("finish", r"Failing\.finish \(.*test_wrap.py:\d+\) raised ValueError: not today"),
        ("", r"Failing\.finish \(.*test_wrap.py:\d+\) returned 5; expected None, a dict"),
    ],
)
def test_an_error_names_the_method_in_which_it_arose(place: str, says: str) -> None:
    with pytest.raises(OperatorError, match=says) as caught:
        emitted(flux.wrap(Failing, at_end="finish"), ROWS[:4], key=("k",), moves=[1], place=place)
    assert "update" not in str(caught.value)


# What classes look like that were not written to be wrapped.


class Slotted:
    __slots__ = ("total",)

    def __init__(self) -> None:
        self.total = 0

    def update(self, row: dict[str, int]) -> dict[str, int]:
        self.total += row["v"]
        return {"total": self.total}


class Pickled(Slotted):
    """It can be pickled, and says how; what it says is its state."""

    def __getstate__(self) -> int:
        return self.total

    def __setstate__(self, state: int) -> None:
        self.total = state


def test_what_a_class_says_to_pickle_is_its_state() -> None:
    plain = Pickled()
    expected = [plain.update(row) for row in ROWS[::5]]
    assert emitted(flux.wrap(Pickled), ROWS[::5], key=("k",), moves=[1, 4]) == expected


def test_every_class_can_be_pickled_but_not_every_one_says_how() -> None:
    with pytest.raises(
        PlanError, match=r"none of the methods getState, .*__getstate__.*getattr\(it, name\) for name in it.__slots__"
    ):
        flux.wrap(Slotted)


class Pair(NamedTuple):
    k: int
    total: int


@dataclass
class Sum:
    k: int
    total: int


@pytest.mark.parametrize("kind", [Pair, Sum])
def test_a_named_tuple_or_a_dataclass_is_a_row(kind: Any) -> None:
    class Named(Totals):
        def update(self, row: dict[str, int]) -> Any:
            made = kind(**super().update(row))
            return made if row["v"] % 2 else [made, made]

    expected = [row for n, row in enumerate(totals()) for _ in range(1 if n % 2 else 2)]
    assert emitted(flux.wrap(Named), ROWS, key=("k",), moves=[3]) == expected


def test_a_tuple_is_no_row_and_is_shown_as_a_whole() -> None:
    class Tuples(Totals):
        def update(self, row: dict[str, int]) -> Any:
            return row["k"], row["v"]

    with pytest.raises(OperatorError, match=r"returned \(1, 1\); expected None, a dict"):
        emitted(flux.wrap(Tuples), [{"k": 1, "v": 1}], key=("k",))


class Fits:
    """As models are that learn bit by bit."""

    def __init__(self, *, rate: float, decay: float = 1) -> None:
        self.rate = rate

    def partial_fit(self, xs: Any, ys: Any) -> Fits:
        return self

    async def update(self, row: Any) -> None: ...


STATE: dict[str, Any] = {"get_state": vars, "install_state": lambda it, state: vars(it).update(state)}


@pytest.mark.parametrize(
    ("wrapping", "says"),
    [
        (
            lambda: flux.wrap(Fits, process="partial_fit", **STATE),
            r"partial_fit\(self, xs.*, ys.*\).* is called with the instance and a row.*process=lambda it, row: ",
        ),
        (lambda: flux.wrap(Fits, process=lambda: {}, **STATE), r"is called with the instance and a row"),
        (lambda: flux.wrap(Fits, **STATE), r"update is a coroutine.*process=lambda it, row: "),
    ],
)
def test_a_method_that_cannot_be_called_so_is_a_plan_error(wrapping: Any, says: str) -> None:
    with pytest.raises(PlanError, match=says):
        wrapping()


@pytest.mark.parametrize(
    ("given", "says"),
    [({}, "missing a required argument: 'rate'"), ({"rate": 1, "pace": 2}, "unexpected keyword argument 'pace'")],
)
def test_parameters_that_a_class_does_not_take_are_a_plan_error(given: dict[str, Any], says: str) -> None:
    flow = flux.Dataflow("models")
    rows = flow.source(flux.sources.Table(ROWS)).exchange("k")
    with pytest.raises(PlanError, match=rf"{says}.*apply\(\.\.\., name=value\)"):
        rows.apply(flux.wrap(Fits, process=lambda it, row: {}, **STATE), **given)


def by_columns(method: Any) -> Any:
    """Gives a method the columns of a row, by name."""

    @functools.wraps(method)
    def given(self: Any, row: dict[str, int]) -> Any:
        return method(self, **row)

    return given


def test_a_method_that_is_decorated_is_called_as_it_can_be() -> None:
    class Decorated(Totals):
        @by_columns
        def update(self, k: int, v: int) -> dict[str, int]:
            return {"sum": k + v}

    assert emitted(flux.wrap(Decorated), ROWS[:3], key=("k",)) == [{"sum": n} for n in (0, 2, 4)]


def test_a_dict_that_is_yielded_at_the_end_is_what_it_was_then() -> None:
    class AtEnd(Totals):
        def finish(self) -> Iterator[dict[str, int]]:
            row: dict[str, int] = {}
            for row["k"], row["total"] in sorted(self.totals.items()):
                yield row

    got = emitted(flux.wrap(AtEnd, process=lambda it, row: it.update(row) and None, at_end="finish"), ROWS, key=("k",))
    assert sorted(row["k"] for row in got) == [0, 1, 2, 3, 4]


class Mean:
    """Knows no keys: it is the mean of all rows that it gets."""

    def __init__(self, start: int = 0) -> None:
        self.count, self.total = 0, start

    def update(self, row: dict[str, int]) -> dict[str, float]:
        self.count, self.total = self.count + 1, self.total + row["v"]
        return {"mean": self.total / self.count}

    def getState(self) -> list[int]:
        return [self.count, self.total]

    def installState(self, state: list[int]) -> None:
        self.count, self.total = state

    def last(self) -> dict[str, float]:
        return {"mean": -float(self.count)}


def means(start: int = 0) -> list[float]:
    """Those of each key, and at the end the counts of each, by partition."""
    plain: dict[int, Mean] = {}
    return [plain.setdefault(row["k"], Mean(start)).update(row)["mean"] for row in ROWS]


@pytest.mark.parametrize("moves", [[], [3], [0, 7, 8, 30]])
def test_per_key_each_key_has_an_instance_of_its_own_that_moves_with_its_partition(moves: list[int]) -> None:
    operator = flux.wrap(Mean, per="key", at_end="last")
    (*rows,) = (row["mean"] for row in emitted(operator, ROWS, key=("k",), moves=moves, start=3))
    assert rows[: len(ROWS)] == means(3)
    assert rows[len(ROWS) :] == [-8.0] * 5, "at the end each is asked once"


def test_instances_per_key_survive_a_kill() -> None:
    flow = flux.Dataflow("per key")
    operator = flux.wrap(Mean, per="key", output={"mean": "float64"})
    rows = flow.source(flux.sources.Table(ROWS, rate=80))
    rows.exchange("k", partitions=2).apply(operator).sink(flux.sinks.Collect())
    with flow.start(sites=2, standby=1) as run:
        run.wait_for_output(5)
        run.kill("site-1")
        assert [row["mean"] for row in run.wait().table.to_pylist()] == means()


@pytest.mark.parametrize(("per", "by"), [(None, "hash"), (None, "any"), ("partition", "hash"), ("key", "hash")])
def test_keys_that_share_an_instance_unsaid_are_a_warning(per: Any, by: Any, caplog: pytest.LogCaptureFixture) -> None:
    flow = flux.Dataflow("shared")
    rows = flow.source(flux.sources.Table(ROWS))
    keyed = rows.exchange("k", partitions=2) if by == "hash" else rows.exchange(by="any", partitions=2)
    keyed.apply(flux.wrap(Mean, per=per)).sink(flux.sinks.Null())
    caplog.set_level(logging.WARNING, "flux")
    flow.run()
    warned = [text for text in caplog.messages if "share" in text]
    if per is None and by == "hash":
        [warning] = warned
        assert "for each partition, and its keys share it" in warning and 'flux.wrap(Mean, per="key")' in warning
    else:
        assert not warned


def test_an_instance_per_key_needs_a_key() -> None:
    rows = flux.Dataflow("keyless").source(flux.sources.Table(ROWS))
    with pytest.raises(PlanError, match="Mean keeps its state by key"):
        rows.exchange(by="any").apply(flux.wrap(Mean, per="key"))
    with pytest.raises(PlanError, match=r"wrap\(Mean\): per is 'key' or 'partition', got 'row'"):
        flux.wrap(Mean, per="row")  # type: ignore[arg-type]
