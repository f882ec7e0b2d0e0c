"""What a user gets wrong is a plan error that says what was expected, and never an error of Python or of the run."""

# ruff: noqa: RUF012 - operators declare `output` as users do, without ClassVar.

from __future__ import annotations

import datetime
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import flux
from experiments.dmz import Sessions
from flux.operators import CountWindow, Distinct, GroupBy, Join, SessionWindow, TimeWindow, TopK
from tests.whole_flow import flow_of

KINDS = {
    "k": pa.int64(),
    "src": pa.int32(),
    "dst": pa.int32(),
    "data": pa.binary(),
    "v": pa.int64(),
    "ts": pa.timestamp("us"),
    "half": pa.float16(),
    "wide": pa.decimal256(76, 0),
    "fine": pa.decimal256(40, 39),
    "small": pa.decimal32(5, 2),
    "large": pa.decimal256(76, 38),
}
COUNT = {"n": "count"}


class Same(flux.Operator):
    output = {"k": "int64", "v": "int64"}

    def process(self, batch: Any) -> Any:
        return batch


class Unsaid(Same):
    output = None


class Empty(Same):
    output = {}


class Needs(Same):
    def __init__(self, history: int) -> None:
        self.history = history


def a_stream() -> flux.Stream:
    table = pa.table({name: pa.array([], kind) for name, kind in KINDS.items()})
    return flux.Dataflow("refused").source(flux.sources.Table(table))


def applied(operator: Any, **parameters: Any) -> Callable[[flux.Stream], Any]:
    return lambda s: s.exchange("k").apply(operator, **parameters)


def by_range(column: str = "k", **given: Any) -> Callable[[flux.Stream], Any]:
    return lambda s: s.exchange(column, by="range", partitions=2, **given)


def explained(s: flux.Stream, **settings: Any) -> str:
    s.sink(flux.sinks.Null())
    return flow_of(s).explain(**settings)


def written(s: flux.Stream) -> None:
    s.sink(flux.sinks.Parquet("never made"))


ON = "on is a column, or a list of columns"


@pytest.mark.parametrize(
    ("make", "says"),
    [
        # Lists of columns. A set has another order in every process.
        (applied(Distinct, on={"k", "v"}), f"{ON}.* a set has no order"),
        (applied(Distinct, on=frozenset("k")), ON),
        (applied(Distinct, on={"k": 1}), ON),
        (applied(Distinct, on=5), f"{ON}.* Got 5"),
        (applied(Distinct, on=None), ON),
        (applied(Distinct, on=[["k"]]), ON),
        (applied(Distinct, on=["k", "k"]), "on names 'k' twice"),
        (lambda s: s.join(s, on={"k", "v"}, within=1), r"join needs the columns .* on=\["),
        (applied(GroupBy, aggregates={"n": (max, {"k", "v"}, "int64")}), "aggregate 'n': expected"),
        # Columns are named one by one.
        (lambda s: s.exchange(["k", "v"]), r"exchange takes the names .* exchange\('src', 'dst'\); got \['k', 'v'\]"),
        (lambda s: s.exchange(["k"], ["k"]), "exchange takes the names of columns one by one"),
        (
            lambda s: s.exchange(lambda row: row.k),
            r"one by one, .* Of a function make a column before, .*new=\(function",
        ),
        (lambda s: s.select(["k", "v"]), "select takes the names of columns one by one"),
        (lambda s: s.with_columns(), r"with_columns needs the columns to add, such as with_columns\("),
        (lambda s: s.with_columns(w=5), r"with_columns\(w=\.\.\.\) takes the name of a column, a function .* got 5"),
        (lambda s: s.with_columns(w="nope"), "with_columns.* no column 'nope'"),
        (lambda s: s.map(dict).with_columns(w="v"), "map.* does not say what it emits, so with_columns"),
        # Names that would stand twice.
        (applied(GroupBy, aggregates={"k": "count"}), "GroupBy: .* 'k' twice.* another name, or rename"),
        (
            applied(TimeWindow, time="ts", size_ms=5, aggregates={"window_end": "count"}),
            "TimeWindow: .*'window_end' twice",
        ),
        (lambda s: applied(TopK, k=1, by="rank")(s.select("k", rank="v")), "TopK: .* 'rank' twice.* rename the column"),
        (
            lambda s: s.select("v", max_v="k").exchange("max_v").apply(CountWindow, value="v"),
            "CountWindow: .*'max_v' twice",
        ),
        # Values.
        (applied(GroupBy, aggregates={"n": np.array(["sum", "v"])}), "aggregate 'n': expected .* got array"),
        (applied(GroupBy, aggregates={"n": (np.array(["sum", "avg"]), "v")}), "aggregate 'n': expected"),
        (applied(Distinct, time="ts", size_ms=2**64), "size_ms is a whole number of milliseconds, from 1 to"),
        (applied(TopK, k=1, by="v", time="ts", size_ms=2**70), "size_ms is a whole number of milliseconds, from 1 to"),
        (applied(TimeWindow, time="ts", size_ms=2**70, aggregates=COUNT), "size_ms is a whole number .* from 1 to"),
        (applied(CountWindow, value="v", history=2**40), "history is a number of rows, from 1 to 1,048,576; got"),
        (applied(CountWindow, value="v", slide=2**70), "slide is a number of rows, from 1 to .*; got"),
        (
            applied(GroupBy, aggregates={"s": ("variance", "wide")}),
            r"no variance of 'wide', which is dec.*; expected numbers.* or by select\(",
        ),
        (
            applied(GroupBy, aggregates={"s": ("avg", "data")}),
            "no avg of 'data', which is binary; expected numbers, or decimals of 128 bits. Cast",
        ),
        (applied(CountWindow), "value='dur' must be a column of numbers; got k, src, .* Set value='...'"),
        (by_range(sample=[2**70]), "the sample must be values of int64"),
        (by_range(sample=[1.5]), "the sample must be values of int64"),
        (by_range(boundaries=[1.9]), "boundaries are 1 values of int64"),
        (by_range(boundaries={1}), "boundaries are 1 values of int64, in order.* a set has no order"),
        (by_range("half", boundaries=[1.5]), "cannot be put in order: cast"),
        (by_range("half", sample=[1.5]), "cannot be put in order: cast"),
        (by_range("small", boundaries=[1]), r"decimal32\(5, 2\) cannot be put in order: cast"),
        (lambda s: explained(s, path=5), r"explain\(path=...\) is the name of a .* file, got 5"),
        (lambda s: s.exchange("wide"), r"type decimal256\(76, 0\).* 38 digits .* Cast"),
        (lambda s: s.exchange("fine"), r"type decimal256\(40, 39\).* 38 digits .* Cast"),
        # What operators are and emit.
        (applied(Needs), "Needs: it is made without arguments.*'history'.* context.parameters"),
        (
            applied(Same()),
            r"apply takes an operator class, got an instance of Same: write apply\(Same, \.\.\.\)",
        ),
        (applied("Same"), "apply takes an operator class, such as one of flux.operators, or a function .* got 'Same'"),
        (
            applied(lambda row: row),
            r"<lambda>: it is made without .* A function of a row goes into map\(\.\.\.\) or filter",
        ),
        (applied(Join), r"Join takes two streams: write a.join\(b, on="),
        (applied(Empty), "Empty: output has no column"),
        (lambda s: s.map(dict, output={}), "output has no column"),
        # What a sink must know.
        (
            lambda s: written(s.exchange("k").apply(Unsaid)),
            "Parquet: .*columns, which must be known before .* declare `output`",
        ),
        (lambda s: written(s.map(dict)), "Parquet: .*columns, which must be known before .* declare `output`"),
    ],
)
def test_it_is_refused_with_the_plan(make: Callable[[flux.Stream], Any], says: str) -> None:
    with pytest.raises(flux.PlanError, match=says):
        make(a_stream())


@pytest.mark.parametrize(
    "make",
    [
        applied(Distinct, on=["v", "k"]),
        applied(Distinct, on=("k",), time="ts", size_ms=1),
        applied(partial(Needs, 3)),
        applied(CountWindow, value="v", history=1 << 20, slide=1 << 40),
        by_range(boundaries=[2.0]),
        by_range(boundaries=np.array([2])),
        by_range("ts", boundaries=[datetime.datetime(2026, 1, 1)]),
        by_range(sample={3, 1, 2}),
        lambda s: s.exchange("large"),
    ],
)
def test_what_is_like_it_and_can_be_is_not(make: Callable[[flux.Stream], Any]) -> None:
    make(a_stream())


@pytest.mark.parametrize(
    ("operator", "parameters"),
    [
        (GroupBy, {"aggregates": COUNT}),
        (GroupBy, {"aggregates": COUNT, "emit": "watermarks"}),
        (TimeWindow, {"time": "ts", "size_ms": 5, "aggregates": COUNT}),
        (SessionWindow, {"time": "ts", "gap_ms": 5, "aggregates": COUNT}),
        (CountWindow, {"value": "v"}),
        (TopK, {"k": 1, "by": "v"}),
        (Distinct, {}),
        (Sessions, {}),
    ],
)
def test_an_operator_of_the_library_that_depends_on_the_order_is_not_behind_order_any(
    operator: Any, parameters: Any
) -> None:
    exchanged = a_stream().exchange("src", order="any")
    for stream in (exchanged, exchanged.filter(bool)):
        says = rf"{operator.__name__} depends on the order of rows, and exchange\('src'\) has order=\"any\""
        with pytest.raises(flux.PlanError, match=says):
            stream.apply(operator, **parameters)
