"""An error in a user's processor or function names the user's file and line, in each form and method."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from pyspark.sql import Row
from pyspark.sql.streaming import StatefulProcessor

from flux.hosting import host
from flux.model.batch import Batch
from flux.model.operator import OperatorStep, Punctuation, output_of
from flux.spark import pandas_with_state, stateful_processor
from flux.types.errors import OperatorError, PlanError

METHODS = ("handleInitialState", "handleInputRows", "handleExpiredTimer", "close")


def fail() -> None:
    raise ValueError("not today")


PLACE = f"{__file__}:{fail.__code__.co_firstlineno + 1}"


class Failing(StatefulProcessor):  # type: ignore[misc]  # pyspark is untyped here
    """Fails in one of its methods, from the first or the second call on: the first of `init` is that of the plan."""

    calls = 0

    def __init__(self, method: str, lazy: bool, make: Callable[..., Any]) -> None:
        self.method, self.lazy, self.make = method, lazy, make

    def fail_in(self, method: str, after: int = 0) -> None:
        if method == self.method:
            Failing.calls += 1
            if Failing.calls > after:
                fail()

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.fail_in("init")

    def rows(self, method: str) -> Iterator[Any]:
        self.fail_in(method)
        yield self.make(id="a")

    def produced(self, method: str) -> Any:
        return self.rows(method) if self.lazy else list(self.rows(method))

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:
        self.handle.registerTimer(1)
        return self.produced("handleInputRows")

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Any:
        return self.produced("handleExpiredTimer")

    def handleInitialState(self, key: Any, initialState: Any, timerValues: Any) -> None:
        self.fail_in("handleInitialState")

    def close(self) -> None:
        self.fail_in("close", after=2)


def frame(**values: Any) -> pd.DataFrame:
    return pd.DataFrame({name: [value] for name, value in values.items()})


def process(operator: Any) -> None:
    """Run two micro-batches of one row."""
    rows = pa.record_batch({"id": ["a"], "n": [1]})
    hosted = host(OperatorStep(operator, {}, "step", ("id",), 1, 0, output_of(operator, {}, ("id",), rows.schema)))
    hosted.open([0])
    for sn in (0, 10):
        hosted.process(Batch(rows, np.array([sn]), None, np.zeros(1, np.uint16)))
        hosted.punctuate(Punctuation(sn + 1, "clock", sn + 1, frozenset({0})))
        hosted.punctuate(Punctuation(sn + 2, "batch", sn, frozenset({0})))


def error_of(operator: Any) -> str:
    with pytest.raises(OperatorError) as raised:
        process(operator)
    return str(raised.value)


@pytest.mark.parametrize("lazy", [False, True], ids=["list", "generator"])
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(("form", "make"), [("rows", Row), ("pandas", frame)])
def test_an_error_in_a_processor_names_its_method_and_the_users_line(
    form: str, make: Any, method: str, lazy: bool
) -> None:
    Failing.calls = 0
    operator = stateful_processor(
        Failing(method, lazy, make),
        "id string",
        timeMode="ProcessingTime",
        initialState=pa.table({"id": ["a"], "n": [1]}),
        rows=form,
    )
    text = error_of(operator)
    assert f"Failing.{method} ({PLACE}) raised ValueError: not today" in text, text


@pytest.mark.parametrize("form", ["rows", "pandas"])
def test_an_error_in_init_names_the_users_line_when_the_plan_is_made(form: str) -> None:
    with pytest.raises(PlanError) as raised:
        stateful_processor(Failing("init", False, Row), "id string", rows=form)
    assert f"Failing.init ({PLACE}) raised ValueError: not today" in str(raised.value)


def eager(key: Any, frames: Any, state: Any) -> list[pd.DataFrame]:
    fail()
    return []


def lazy(key: Any, frames: Any, state: Any) -> Iterator[pd.DataFrame]:
    yield frame(id="a")
    fail()


def bound(wanted: str, key: Any, frames: Any, state: Any) -> Iterator[pd.DataFrame]:
    return lazy(key, frames, state)


class Callee:
    """An object that can be called."""

    def __call__(self, key: Any, frames: Any, state: Any) -> Any:
        return lazy(key, frames, state)


def decorated(function: Any) -> Any:
    return functools.wraps(function)(lambda *args: function(*args))


@pytest.mark.parametrize(
    ("function", "name"),
    [
        (eager, "eager"),
        (lazy, "lazy"),
        (functools.partial(bound, "id"), "bound"),
        (Callee(), "Callee"),
        (decorated(eager), "eager"),
    ],
    ids=["function", "generator", "partial", "object", "decorated"],
)
def test_an_error_in_a_pandas_function_names_the_users_line(function: Any, name: str) -> None:
    text = error_of(pandas_with_state(function, "id string", "n long"))
    assert f"{name} ({PLACE}) raised ValueError: not today" in text, text


@pytest.mark.parametrize("form", ["rows", "pandas"])
def test_output_of_another_form_names_the_users_method(form: str) -> None:
    """What a processor returns is converted by Flux, and the error arises there."""
    wrong = {"rows": lambda **values: 1 / 0, "pandas": lambda **values: "no frame"}[form]
    text = error_of(stateful_processor(Failing("", False, wrong), "id string", timeMode="ProcessingTime", rows=form))
    assert f"Failing.handleInputRows ({__file__}:" in text, text
