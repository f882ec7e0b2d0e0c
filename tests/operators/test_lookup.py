"""Lookup against a plain dict: the last row of each key before each row, however batches are cut and moved."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import flux
import flux.testing
from flux.exchange.sides import widened_names
from flux.model.batch import Batch
from flux.model.operator import OperatorStep
from flux.operators import Lookup
from flux.operators.join_spec import lookup_spec
from flux.plan import Policy
from flux.types.errors import PlanError
from flux.types.hashing import partition_of
from tests.operators.feeding import PARTITIONS, cuts, moved, opened, tuples
from tests.runtime.through_kills import through_kills

LEFT = pa.schema([("k", pa.string()), ("v", pa.int64())])
RIGHT = pa.schema([("id", pa.string()), ("v", pa.float64()), ("name", pa.string())])
KEYS = st.sampled_from(["a", "b", "", None])
NAMES = st.none() | st.sampled_from(["x", "y"])
EVENTS = st.lists(st.tuples(st.integers(0, 1), KEYS, st.sampled_from([0.5, math.nan]), NAMES), max_size=50)
Event = tuple[int, Any, float, Any]  # Side, key, and a row of the table.


def plain(events: Sequence[Event], how: str) -> list[tuple[int, tuple[Any, ...]]]:
    table: dict[Any, tuple[Any, Any]] = {}
    found: list[tuple[int, tuple[Any, ...]]] = []
    for sn, (side, key, value, name) in enumerate(events):
        if side and key is not None:
            table[key] = value, name
        elif not side and (how == "left" or key in table):
            found.append((sn, (key, sn, *table.get(key, (None, None)))))
    return found


def batch_of(events: Sequence[Event], first_sn: int) -> Batch:
    columns: list[Any] = [pa.array([event[0] for event in events], pa.uint8())]
    columns += [pa.array([None if side else key for side, key, *_ in events], pa.string())]
    columns += [pa.array([None if event[0] else first_sn + n for n, event in enumerate(events)], pa.int64())]
    for i, field in enumerate(RIGHT, 1):
        columns.append(pa.array([event[i] if event[0] else None for event in events], field.type))
    arrow = pa.RecordBatch.from_arrays(columns, names=widened_names((LEFT, RIGHT)))
    keys = pa.array([event[1] for event in events], pa.string())
    return Batch(arrow, np.arange(first_sn, first_sn + len(events)), None, partition_of([keys], PARTITIONS))


@settings(max_examples=60, deadline=None)
@given(EVENTS, st.sampled_from(["left", "inner"]), st.data())
def test_each_row_finds_the_last_row_of_its_key(events: list[Event], how: str, data: st.DataObject) -> None:
    spec = lookup_spec(LEFT, RIGHT, {"k": "id"}, "_right", how)
    step = OperatorStep(Lookup, {"joined": spec}, "Lookup", spec.ours, PARTITIONS, 0, spec.output)
    sites, at = [opened(step, [0, 1]), opened(step, [2, 3])], {0: 0, 1: 0, 2: 1, 3: 1}
    moves = data.draw(st.lists(st.integers(0, PARTITIONS - 1), max_size=8))
    found: list[tuple[int, tuple[Any, ...]]] = []
    for i, (start, stop) in enumerate(data.draw(cuts(len(events)))):
        whole = batch_of(events[start:stop], start)
        for number, site in enumerate(sites):
            here = np.flatnonzero([at[int(pid)] == number for pid in whole.partition])
            out = site.process(whole.take(here)) if len(here) else None
            found += [] if out is None else zip(out.sn.tolist(), tuples(out), strict=True)
        if i < len(moves):
            pid = moves[i]
            old, at[pid] = at[pid], 1 - at[pid]
            moved(sites[old], sites[at[pid]], pid)
    assert repr(sorted(found, key=lambda entry: entry[0])) == repr(plain(events, how))
    assert spec.output.names == ["k", "v", "v_right", "name"]


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 1), KEYS, st.none() | st.booleans()), max_size=50),
    st.sampled_from(["left", "inner"]),
    st.data(),
)
def test_a_row_of_the_table_may_remove_the_row_of_its_key(events: list[Any], how: str, data: st.DataObject) -> None:
    schemas = LEFT, pa.schema([("id", pa.string()), ("gone", pa.bool_()), ("n", pa.int64())])
    spec = lookup_spec(*schemas, {"k": "id"}, "_right", how, deletes="gone")
    assert spec.output.names == ["k", "v", "n"]
    step = OperatorStep(Lookup, {"joined": spec}, "Lookup", spec.ours, PARTITIONS, 0, spec.output)
    sites, at = [opened(step), opened(step, [])], 0
    found: list[Any] = []
    for start, stop in data.draw(cuts(len(events))):
        if stop > start:
            out = sites[at].process(deleting_batch(schemas, events[start:stop], start))
            found += [] if out is None else tuples(out)
        if data.draw(st.booleans()):
            for pid in range(PARTITIONS):
                moved(sites[at], sites[1 - at], pid)
            at = 1 - at
    table: dict[Any, int] = {}
    expected = []
    for n, (side, key, gone) in enumerate(events):
        if side and key is not None:
            table[key] = n
            if gone:
                del table[key]
        elif not side and (how == "left" or key in table):
            expected.append((key, n, table.get(key)))
    assert found == expected


def deleting_batch(schemas: Any, events: Sequence[Any], first_sn: int) -> Batch:
    numbers = range(first_sn, first_sn + len(events))
    columns = [pa.array([side for side, *_ in events], pa.uint8())]
    for side, values in ((0, zip([key for _, key, _ in events], numbers, strict=True)), (1, None)):
        rows = list(values) if values is not None else [(e[1], e[2], n) for e, n in zip(events, numbers, strict=True)]
        for place, field in enumerate(schemas[side]):
            column = [row[place] if event[0] == side else None for event, row in zip(events, rows, strict=True)]
            columns.append(pa.array(column, field.type))
    arrow = pa.RecordBatch.from_arrays(columns, names=widened_names(schemas))
    keys = pa.array([event[1] for event in events], pa.string())
    return Batch(arrow, np.array(numbers), None, partition_of([keys], PARTITIONS))


def test_rows_that_are_removed_take_no_room() -> None:
    schemas = LEFT, pa.schema([("id", pa.string()), ("gone", pa.bool_())])
    spec = lookup_spec(*schemas, {"k": "id"}, "_right", "left", deletes="gone")
    hosted: Any = opened(OperatorStep(Lookup, {"joined": spec}, "Lookup", spec.ours, PARTITIONS, 0, spec.output))
    wide = pa.schema([("id", pa.string()), ("gone", pa.bool_()), ("n", pa.int64())])
    for start in range(0, 50_000, 500):
        events = [(1, f"{start + n}", gone) for gone in (False, True) for n in range(250)]
        hosted.process(deleting_batch((LEFT, wide), events, start))
    assert len(hosted._instance._table) == 0
    assert hosted._instance._rows._rows < 20_000


@settings(max_examples=30, deadline=None)
@given(EVENTS, st.sampled_from(["left", "inner"]))
def test_a_table_of_the_plan_is_looked_up_without_an_exchange(events: list[Event], how: str) -> None:
    table = list({key: {"id": key, "v": v, "name": name} for _, key, v, name in events[::2]}.values())
    rows = [{"k": key, "v": n} for n, (_, key, *_) in enumerate(events)]
    flow = flux.Dataflow("table")
    source = flow.source(flux.sources.Table(pa.Table.from_pylist(rows, LEFT)))
    made = source.lookup(pa.Table.from_pylist(table, RIGHT), on={"k": "id"}, how=how)
    assert made._schema == lookup_spec(LEFT, RIGHT, {"k": "id"}, "_right", how).output
    factory = made._tails[0].step.factory  # type: ignore[union-attr]
    hosted = opened(OperatorStep(factory, {}, "lookup", (), 1, 0, made._schema), [0])
    before: list[Event] = [(1, row["id"], row["v"], row["name"]) for row in table]
    batch = Batch(pa.RecordBatch.from_pylist(rows, LEFT), np.arange(len(rows)), None, np.zeros(len(rows), np.uint16))
    expected = plain(before + [(0, row["k"], 0.0, None) for row in rows], how)
    found = tuples(hosted.process(batch)) if rows else []
    assert repr(found) == repr([(k, n - len(before), *rest) for _, (k, n, *rest) in expected])


def is_table(batch: Any) -> Any:
    return batch["number"] % 5 == 0


def is_event(batch: Any) -> Any:
    return batch["number"] % 5 != 0


def looked_up(source: flux.sources.Source, broadcast: bool = False) -> flux.Dataflow:
    flow = flux.Dataflow("lookups")
    rows = flow.source(source)
    table = rows.filter(is_table, batch=True).select("k", set_by="number")
    events = rows.filter(is_event, batch=True)
    events.lookup(table, on="k", partitions=4, broadcast=broadcast).sink(flux.sinks.Collect())
    events.lookup([{"k": n, "square": n * n} for n in range(9)], on="k", how="inner").sink(flux.sinks.Collect())
    return flow


@pytest.mark.parametrize("broadcast", [False, True])
def test_a_table_that_changes_is_the_same_though_two_sites_die(tmp_path: Path, broadcast: bool) -> None:
    number = np.arange(1_200)
    key = pa.array(np.random.default_rng(1).integers(0, 12, 1_200), mask=number % 11 == 0)
    rows = pa.table({"number": number, "k": key})
    flow = partial(looked_up, broadcast=broadcast)
    report = through_kills(flow, rows, tmp_path, (1, 0, 7, 60, 0, 200, 31))
    table: dict[Any, int] = {}
    expected = []
    for n, k in enumerate(key.to_pylist()):
        if n % 5 == 0 and k is not None:
            table[k] = n
        elif n % 5:
            expected.append({"number": n, "k": k, "set_by": table.get(k)})
    assert report.tables[0].to_pylist() == expected
    squares = [{**row, "square": row["k"] ** 2} for row in expected if row["k"] is not None and row["k"] < 9]
    assert [{**row, "set_by": None} for row in report.tables[1].to_pylist()] == [
        {"number": row["number"], "k": row["k"], "square": row["square"], "set_by": None} for row in squares
    ]


def broadcast_lookup(rows: pa.Table, deletes: str | None = None) -> tuple[flux.Dataflow, list[dict[str, Any]]]:
    """A flow whose table goes to all partitions, all rows of which have the key 7 or 8; and its expected output."""
    flow = flux.Dataflow("broadcast")
    source = flow.source(flux.sources.Table(rows, batch_rows=5))
    table = source.filter(is_table, batch=True).select("k", "gone", set_by="number").exchange("k", partitions=3)
    events = source.filter(is_event, batch=True).select("number", "k")
    options: Any = {"on": "k", "partitions": 4, "deletes": deletes, "broadcast": True}
    events.lookup(table.apply(flux.operators.Distinct, on=["k", "set_by"]), **options).sink(flux.sinks.Collect())
    known: dict[int, int] = {}
    expected = []
    for row in rows.to_pylist():
        if row["number"] % 5 == 0:
            known[row["k"]] = row["number"]
            if row["gone"] and deletes:
                del known[row["k"]]
        else:
            expected.append({"number": row["number"], "k": row["k"], "set_by": known.get(row["k"])})
    return flow, expected


def two_keys(count: int) -> pa.Table:
    number = np.arange(count)
    return pa.table({"number": number, "k": 7 + number // 10 % 2, "gone": number % 15 == 0})


def test_a_broadcast_table_is_in_every_partition_and_rows_of_one_key_in_several() -> None:
    flow, expected = broadcast_lookup(two_keys(400), deletes="gone")
    plan = flow._logical.plan(2, 0, "pairs", 1, Policy())
    spread, broadcast = (edge.route for edge in plan.edges if edge.consumer == 2)
    assert len(set(spread.partition(pa.record_batch({"k": [7] * 50}), np.arange(50), None).tolist())) == 4
    assert broadcast.by == "all"
    assert "by position" in flow.explain(sites=2)
    assert "Distinct -> stage 2, to all partitions" in flow.explain(sites=2)
    assert flow.run(sites=2).table.to_pylist() == expected
    assert {row["set_by"] for row in expected} > {None, 5}


def test_a_broadcast_lookup_holds_in_the_simulated_world() -> None:
    flow, _ = broadcast_lookup(two_keys(40))
    flux.testing.simulate(flow, seeds=12)


@pytest.mark.parametrize(
    ("table", "parameters", "says"),
    [
        ([{"k": 1, "w": 1}, {"k": 1, "w": 2}], {}, "the table has 2 rows with k 1; a key has one row"),
        ([{"k": "a"}], {}, "'k' is int64 here and 'k' is string there"),
        ([{"id": 1}], {}, r"lookup\(on=...\): the other stream has no column 'k'"),
        ([{"k": 1}], {"how": "outer"}, "how"),
        ([{"k": 1}], {"deletes": "gone"}, "is for another stream"),
        ([{"k": 1}], {"broadcast": "yes"}, "is True or False, got 'yes'"),
        (iter([pa.table({"k": [1]})]), {}, "got an iterator"),
        (5, {}, "Table"),
    ],
)
def test_an_invalid_lookup_is_refused_with_the_plan(table: Any, parameters: dict[str, Any], says: str) -> None:
    rows = flux.Dataflow("invalid").source(flux.sources.Table([{"k": 1, "v": 2}]))
    with pytest.raises(PlanError, match=says):
        rows.lookup(table, on="k", **parameters)


@pytest.mark.parametrize("deletes", ["gone", "v"])
def test_deletes_names_a_column_of_booleans(deletes: str) -> None:
    rows = flux.Dataflow("invalid").source(flux.sources.Table([{"k": 1, "v": 2}]))
    with pytest.raises(PlanError, match=rf"lookup\(deletes='{deletes}'\) names a column of booleans .* has k int64"):
        rows.lookup(rows.select("k", "v"), on="k", deletes=deletes)
