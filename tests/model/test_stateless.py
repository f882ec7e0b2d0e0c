"""Steps without state: map, filter, flat_map and select, in the ingress and on sites."""

# ruff: noqa: RUF012 - operators declare `output` as users do, without ClassVar.

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import flux
from experiments.dmz import Sessions
from flux.model.batch import Batch
from flux.model.punctuation import Punctuation
from flux.plan import Policy
from flux.plan.plan import INPUT
from flux.site.steps import Steps
from tests.whole_flow import flow_of

pytestmark = pytest.mark.usefixtures("deadline")
ROWS = [{"k": n % 5, "v": n} for n in range(60)]


def a_flow() -> tuple[flux.Dataflow, flux.Stream]:
    flow = flux.Dataflow("steps")
    return flow, flow.source(flux.sources.Table(ROWS))


def ingress_of(flow: flux.Dataflow, policy: Policy | None = None) -> Steps:
    """The steps before the first exchange, without a process around them."""
    steps = Steps(flow._logical.plan(2, 0, "pairs", 1_000, policy or Policy()), 0)
    steps.open([0])
    return steps


def through(stream: flux.Stream, rows: list[dict[str, Any]] = ROWS, policy: Policy | None = None) -> Any:
    """What a step makes of rows, as a batch; None if nothing."""
    stream.sink(flux.sinks.Null())
    steps = ingress_of(flow_of(stream), policy)
    table = pa.RecordBatch.from_pylist(rows, stream._flow.sources[0].schema)
    batch = Batch(table, np.arange(1, len(rows) + 1), None, np.zeros(len(rows), np.uint16))
    taps = steps.process(batch, INPUT)
    assert len(taps) <= 1
    return next(iter(taps.values()), None)


def rows_of(batch: Any) -> list[dict[str, Any]]:
    return [] if batch is None else batch.arrow.to_pylist()


# What they make of rows.


@pytest.mark.parametrize("batch", [False, True])
def test_map_makes_one_row_of_each(batch: bool) -> None:
    def double(rows: Any) -> Any:
        return {"w": rows["v"] * 2} if batch else {"w": rows.v * 2}

    out = through(a_flow()[1].map(double, batch=batch))
    assert rows_of(out) == [{"w": row["v"] * 2} for row in ROWS]
    assert out.sn.tolist() == list(range(1, 61))
    assert out.sub is None, "one row of each takes no level of the order"


@pytest.mark.parametrize("by", ["row", "numpy", "arrow", "list"])
def test_filter_keeps_rows_as_they_are(by: str) -> None:
    functions = {
        "row": lambda row: row.v % 3 == 0,
        "numpy": lambda batch: batch["v"] % 3 == 0,
        "arrow": lambda batch: pc.is_in(batch.column("v"), pa.array(range(0, 60, 3))),
        "list": lambda batch: [v % 3 == 0 for v in batch["v"].tolist()],
    }
    out = through(a_flow()[1].filter(functions[by], batch=by != "row"))
    assert rows_of(out) == ROWS[::3]
    assert out.sn.tolist() == list(range(1, 61, 3))
    assert out.sub is None


class Awaitable:
    """What an async function returns, but without a warning if nothing awaits it."""

    def __await__(self) -> Any:
        yield


def test_filter_refuses_an_awaitable_which_would_be_true_for_every_row() -> None:
    with pytest.raises(flux.OperatorError, match=r"its function returned <.*; expected whether to keep the row"):
        through(a_flow()[1].filter(lambda row: Awaitable()))


def test_filter_with_nothing_left_gives_nothing() -> None:
    assert through(a_flow()[1].filter(lambda row: False)) is None


def test_a_mask_with_nulls_keeps_the_rows_that_are_true() -> None:
    flow = flux.Dataflow("nulls")
    rows = [{"v": 1}, {"v": None}, {"v": 3}]
    stream = flow.source(flux.sources.Table(rows)).filter(lambda batch: batch["v"] > 1, batch=True)
    assert rows_of(through(stream, rows)) == [{"v": 3}]


@pytest.mark.parametrize("batch", [False, True])
def test_flat_map_makes_as_many_rows_as_it_likes(batch: bool) -> None:
    def repeat(rows: Any) -> Any:
        if not batch:
            return [{"w": rows.v, "i": i} for i in range(rows.v % 3)]
        counts = rows["v"] % 3
        origin = np.repeat(np.arange(len(rows)), counts)
        return {"w": rows["v"][origin], "i": np.concatenate([np.arange(n) for n in counts])}, origin

    out = through(a_flow()[1].flat_map(repeat, batch=batch))
    assert rows_of(out) == [{"w": row["v"], "i": i} for row in ROWS for i in range(row["v"] % 3)]
    assert out.sub is not None


def test_select_keeps_renames_and_computes() -> None:
    stream = a_flow()[1].select("v", key="k", half=lambda batch: batch["v"] / 2, twice=(lambda b: b["v"] * 2, "int32"))
    assert rows_of(through(stream))[:2] == [
        {"v": 0, "key": 0, "half": 0.0, "twice": 0},
        {"v": 1, "key": 1, "half": 0.5, "twice": 2},
    ]


def test_with_columns_keeps_all_columns_and_replaces_in_place() -> None:
    made = a_flow()[1].with_columns(k=lambda batch: batch["k"] + 10, half=(lambda b: b["v"] / 2, "float64"), w="v")
    found = rows_of(through(made))
    assert found == [{**row, "k": row["k"] + 10, "half": row["v"] / 2, "w": row["v"]} for row in ROWS]
    assert list(found[0]) == [*ROWS[0], "half", "w"]


def test_a_declared_output_is_cast_to() -> None:
    out = through(a_flow()[1].map(lambda row: {"w": row.v}, output={"w": "float32"}))
    assert out.arrow.schema == pa.schema({"w": pa.float32()})


def test_only_steps_that_make_several_rows_of_one_take_a_level() -> None:
    _, events = a_flow()
    two = {"v": "int64"}
    stream = events.filter(lambda row: True).map(lambda row: {"v": row.v}, output=two)
    assert (events._level, stream._level) == (0, 0)
    flat = stream.flat_map(lambda row: [{"v": row.v}], output=two)
    assert flat._level == 1
    assert flat.select("v").union(stream)._level == 1


def test_a_chain_of_steps_keeps_the_order_of_descendants() -> None:
    _, events = a_flow()
    stream = events.flat_map(lambda row: [{"v": row.v}] * 2, output={"v": "int64"})
    stream = stream.filter(lambda row: row.v < 2).flat_map(lambda row: [{"v": row.v, "i": i} for i in range(2)])
    out = through(stream)
    assert out.sn.tolist() == [1] * 4 + [2] * 4
    assert out.sub.tolist() == sorted(out.sub[:4].tolist()) * 2 and len(set(out.sub[:4].tolist())) == 4


# Branches within a segment.


def test_branches_of_one_stream_each_get_all_of_its_rows() -> None:
    flow, events = a_flow()
    small = events.filter(lambda row: row.v < 10)
    small.select("v").sink(flux.sinks.Null())
    small.map(lambda row: {"w": -row.v}).sink(flux.sinks.Null())
    events.sink(flux.sinks.Null())
    steps = ingress_of(flow)
    taps = steps.process(Batch(pa.RecordBatch.from_pylist(ROWS), np.arange(60), None, np.zeros(60, np.uint16)), INPUT)
    plan = flow._logical.plan(2, 0, "pairs", 1_000, Policy())
    found = [rows_of(taps[edge.tap]) for edge in plan.edges]
    assert found == [[{"v": v} for v in range(10)], [{"w": -v} for v in range(10)], ROWS]


def test_a_punctuation_goes_down_every_branch() -> None:
    class Last(flux.Operator):
        output = {"n": "int64"}

        def open(self, context: Any) -> None:
            self.n = 0

        def process(self, batch: Any) -> None:
            self.n += len(batch)

        def on_punctuation(self, p: Any) -> Any:
            return {"n": [self.n]}

    flow, events = a_flow()
    counted = events.exchange("k", partitions=2).apply(Last)
    counted.map(lambda row: {"n": row.n + 1}, output={"n": "int64"}).sink(flux.sinks.Null())
    counted.filter(lambda row: row.n > 1).apply(Last).sink(flux.sinks.Null())
    steps = Steps(flow._logical.plan(2, 0, "pairs", 1_000, Policy()), 1)
    steps.open([0, 1])
    partition = np.array([0, 1, 1], np.uint16)
    steps.process(Batch(pa.RecordBatch.from_pylist(ROWS[:3]), np.arange(3), None, partition))
    taps = steps.process(None, [Punctuation(9, "end", None, frozenset({0, 1}))])
    assert [rows_of(batch) for batch in taps.values()] == [[{"n": 2}, {"n": 3}], [{"n": 0}, {"n": 1}]]


# What goes wrong.


def careless(row: Any) -> Any:
    return {"w": 1 // (row.v - 7)}


@pytest.mark.parametrize("step", ["map", "filter"])
def test_what_a_function_raises_names_it_the_step_and_the_row(step: str) -> None:
    with pytest.raises(
        flux.OperatorError, match=r"careless \(.*test_stateless.py:\d+\) raised ZeroDivisionError"
    ) as caught:
        through(getattr(a_flow()[1], step)(careless))
    assert (caught.value.step, caught.value.row) == (f"{step}(careless)", 8)
    assert "the row was {'k': 2, 'v': 7}" in str(caught.value)


@pytest.mark.parametrize(
    ("step", "function", "says"),
    [
        ("map", lambda row: 3, "returned 3; expected a dict"),
        (
            "map",
            lambda row: {"w": 1} if row.v < 5 else {"x": 1},
            r"returned \{'x': 1\}; expected a dict with the keys w",
        ),
        ("flat_map", lambda row: {"w": 1}, r"write \[\{...\}\] for one row"),
        ("flat_map", lambda row: [1], "returned 1; expected an iterable of dicts"),
        ("flat_map", lambda row: None, "NoneType"),
    ],
)
def test_a_function_of_rows_that_returns_something_else_is_told_what_was_expected(
    step: str, function: Any, says: str
) -> None:
    with pytest.raises(flux.OperatorError, match=says) as caught:
        through(getattr(a_flow()[1], step)(function))
    assert caught.value.step == f"{step}(<lambda>)"
    assert caught.value.row is not None


@pytest.mark.parametrize(
    ("step", "function", "says"),
    [
        ("map", lambda batch: 3, "expected a dict of columns"),
        ("map", lambda batch: {"w": [1]}, "origin"),
        ("filter", lambda batch: [True], "60 truth values"),
        ("filter", lambda batch: batch["v"], "60 truth values"),
        ("flat_map", lambda batch: {"w": [1]}, r"expected \(columns, origin\)"),
    ],
)
def test_a_function_of_batches_that_returns_something_else_is_told_too(step: str, function: Any, says: str) -> None:
    with pytest.raises(flux.OperatorError, match=says):
        through(getattr(a_flow()[1], step)(function, batch=True))


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda s: s.map(3), "map takes a function"),
        (lambda s: s.map(careless, output={"w": "nothing"}), r"map\(careless\)"),
        (lambda s: s.select(), "select needs the columns"),
        (lambda s: s.select("nowhere"), r"no column 'nowhere'; it has k, v"),
        (lambda s: s.select(new="nowhere"), "no column 'nowhere'"),
        (lambda s: s.select("v", "v"), "'v' twice"),
        (lambda s: s.select("v", v="k"), "'v' twice"),
        (lambda s: s.select(new=3), "a function of the batch, or"),
        (lambda s: s.select(new=(careless, "nothing")), "select: "),
        (lambda s: s.map(careless).exchange("w"), r"map\(careless\) does not say what it emits"),
        (lambda s: s.select(new=careless).exchange("new"), r'select\(new=\(function, "float64"\)\)'),
        (lambda s: s.filter(careless).apply(Sessions), "needs an exchange in front"),
    ],
)
def test_a_step_that_cannot_be_is_a_plan_error_that_says_what_to_do(make: Any, says: str) -> None:
    with pytest.raises(flux.PlanError, match=says):
        make(a_flow()[1])


# In a run.


def test_steps_run_in_the_ingress_behind_an_exchange_and_before_the_sink() -> None:
    class Sums(flux.KeyedOperator):
        output = {"k": "int64", "total": "int64"}

        def on_tuple(self, key: Any, row: Any, state: Any) -> Any:
            total = (state or 0) + row.v
            return total, [{"k": key[0], "total": total}]

    flow, events = a_flow()
    odd = events.filter(lambda row: row.v % 2)
    negative = odd.exchange("k", partitions=4).map(lambda row: {"k": row.k, "v": -row.v}, {"k": "int64", "v": "int64"})
    sums = negative.apply(Sums)
    sums.select("total").flat_map(lambda row: [{"t": row.total}] * (row.total % 2)).sink(flux.sinks.Collect())
    totals: dict[int, int] = {}
    expected = []
    for row in ROWS[1::2]:
        totals[row["k"]] = totals.get(row["k"], 0) - row["v"]
        expected += [{"t": totals[row["k"]]}] * (totals[row["k"]] % 2)
    assert flow.run(sites=2).table.to_pylist() == expected


def test_an_error_in_the_ingress_ends_the_run_with_step_and_row() -> None:
    flow, events = a_flow()
    events.map(careless).sink(flux.sinks.Collect())
    with pytest.raises(flux.OperatorError, match="careless") as caught:
        flow.run(sites=2)
    assert (caught.value.step, caught.value.row) == ("map(careless)", 8)


def test_rows_that_a_step_refuses_can_be_skipped_and_are_counted() -> None:
    flow, events = a_flow()
    events.map(careless, output={"w": "int64"}).sink(flux.sinks.Collect())
    report = flow.run(sites=2, on_error="skip")
    assert report.outputs == len(ROWS) - 1
    assert report.skipped == 1
    [row] = report.skipped_rows
    assert (row.step, row.row, row.values) == ("map(careless)", 8, "{'k': 2, 'v': 7}")


def test_rows_that_a_step_of_the_ingress_skips_are_counted_once_whenever_it_is_killed() -> None:
    rows = [{"k": 0, "v": n % 10} for n in range(400)]
    flow = flux.Dataflow("skipping")
    events = flow.source(flux.sources.Table(rows, rate=200, batch_rows=10))
    events.map(careless, output={"w": "int64"}).sink(flux.sinks.Collect())
    with flow.start(sites=2, on_error="skip") as run:
        for count in (60, 200):
            run.wait_for_output(count)
            run.kill("ingress")
        report = run.wait()
    assert (report.outputs, report.skipped, len(report.skipped_rows)) == (360, 40, 40)
