"""From what a user writes to a plan: stages, edges, routes, what cannot be planned, and how a plan is explained."""

# ruff: noqa: RUF012 - operators declare `output` as users do, without ClassVar.

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import flux
from experiments.dmz import Sessions
from flux.driver.remote.remote_flow import description
from flux.exchange.routes import boundaries_of
from flux.operators import CountWindow, Distinct, GroupBy, SessionWindow, TimeWindow, TopK
from flux.plan import Plan, Policy, Route
from flux.plan.plan import INPUT
from tests.runtime.fakes import Passing

ROWS = [{"k": 1, "v": 2}]


class Same(flux.Operator):
    output = {"k": "int64", "v": "int64"}

    def process(self, batch: Any) -> Any:
        return batch


class Keyed(flux.KeyedOperator):
    output = {"k": "int64"}

    def on_tuple(self, key: Any, row: Any, state: Any) -> Any:
        return None, None


class Silent(flux.Operator):
    """Leaves out what an operator is for."""


class Unsaid(flux.KeyedOperator):
    """The same, by key."""


class Sealed(Same):
    state_types = (int,)


class Bare(Same):
    state_types = Silent


class Logic:
    """A logic as bytewax has them."""

    def on_item(self, value: Any) -> Any:
        return [value], False

    def snapshot(self) -> Any:
        return None


def a_logic(snapshot: Any) -> Logic:
    return Logic()


def made_keyed() -> Keyed:
    return Keyed()


def a_flow() -> tuple[flux.Dataflow, flux.Stream]:
    flow = flux.Dataflow("plans")
    return flow, flow.source(flux.sources.Table(ROWS))


def plan_of(flow: flux.Dataflow, sites: int = 2, **settings: Any) -> Plan:
    given = {"standby": 0, "availability": "pairs", "pool_rows": 1_000, "policy": Policy(), **settings}
    return flow._logical.plan(sites, *(given[name] for name in ("standby", "availability", "pool_rows", "policy")))


def ends(plan: Plan) -> list[tuple[int, int, int]]:
    return [(edge.producer, edge.tap, edge.consumer) for edge in plan.edges]


# Stages and edges.


def test_a_chain_is_a_chain_as_before() -> None:
    flow, events = a_flow()
    events.exchange("k", partitions=4).apply(Same).exchange("v", partitions=3).apply(Keyed).sink(flux.sinks.Null())
    plan = plan_of(flow)
    assert ends(plan) == [(0, INPUT, 1), (1, 0, 2), (2, 0, 3)]
    assert plan.view().edges == ((0, 1), (1, 2), (2, 3))
    assert [plan.partitions(stage) for stage in range(4)] == [1, 4, 3, 1]
    assert plan.outputs(1) == (1,)


def test_a_stream_feeds_several_operators_and_sinks() -> None:
    flow, events = a_flow()
    same = events.exchange("k", partitions=4).apply(Same)
    same.exchange("v", partitions=3).apply(Keyed).sink(flux.sinks.Null())
    same.filter(lambda row: True).sink(flux.sinks.Null())
    same.apply(Same).sink(flux.sinks.Null(), order="any")
    plan = plan_of(flow)
    assert plan.segments[0].parents == (INPUT, 0, 0)
    assert ends(plan) == [(0, INPUT, 1), (1, 0, 2), (2, 0, 3), (1, 1, 4), (1, 2, 5)]
    assert plan.view().unordered == {5}
    assert plan.view().copies[3:] == ((("egress",),),) * 3


def test_a_union_has_an_edge_for_each_of_its_streams_and_steps_behind_it_are_done_in_each() -> None:
    flow, events = a_flow()
    other = flow.source(flux.sources.Table(ROWS))
    united = events.union(other.filter(lambda row: True)).map(lambda row: {"k": 1}, {"k": "int64"})
    united.exchange("k", partitions=4).apply(Keyed).sink(flux.sinks.Null())
    plan = plan_of(flow)
    assert [step.name for step in plan.first.steps] == ["filter(<lambda>)", "map(<lambda>)", "map(<lambda>)"]
    assert plan.first.parents == (INPUT - 1, INPUT, 0)
    assert ends(plan) == [(0, 1, 1), (0, 2, 1), (1, 0, 2)]


def test_a_stream_may_be_united_with_itself() -> None:
    flow, events = a_flow()
    events.union(events).sink(flux.sinks.Null())
    assert ends(plan_of(flow)) == [(0, INPUT, 1), (0, INPUT, 1)]


def test_a_join_takes_each_side_by_its_own_columns() -> None:
    flow, events = a_flow()
    other = flow.source(flux.sources.Table([{"id": 1, "w": 2}]))
    events.join(other, on={"k": "id"}, within=10, partitions=4).sink(flux.sinks.Null())
    plan = plan_of(flow)
    assert [(edge.side, edge.route.columns) for edge in plan.edges[:2]] == [(0, ("k",)), (1, ("id",))]
    assert plan.segments[0].sides == (events._schema, other._schema)
    assert plan.segments[0].steps[0].output.names == ["k", "v", "w"]


def test_where_one_stream_allows_nulls_the_union_does() -> None:
    strict = pa.schema([pa.field("k", pa.int64(), nullable=False)])
    flow = flux.Dataflow("nulls")
    one = flow.source(flux.sources.Table(pa.table({"k": [1]}, schema=strict)))
    two = flow.source(flux.sources.Table(pa.table({"k": [None, 2]}, schema=pa.schema({"k": pa.int64()}))))
    one.union(two).sink(flux.sinks.Collect())
    table = flow.run(sites=2).table
    assert sorted(map(str, table["k"].to_pylist())) == ["1", "2", "None"]
    assert table.schema.field("k").nullable


# What cannot be planned.


def stream_of(schema: dict[str, Any]) -> flux.Stream:
    flow = flux.Dataflow("other")
    return flow.source(flux.sources.Table(pa.table({name: pa.array([], kind) for name, kind in schema.items()})))


def applied(stream: flux.Stream, times: int) -> flux.Stream:
    for _ in range(times):
        stream = stream.exchange("k").apply(Same)
    return stream


def windowed(stream: flux.Stream) -> flux.Stream:
    return stream.exchange("k").apply(TimeWindow, time="v", size_ms=10, aggregates={"n": "count"})


@pytest.mark.parametrize(
    "behind",
    [
        lambda s: applied(s, 1),
        windowed,
        lambda s: s.flat_map(list),
        lambda s: s.join(s, on="k", within=1),
    ],
)
def test_any_number_of_steps_may_make_several_rows_of_one(behind: Any) -> None:
    _, events = a_flow()
    assert behind(applied(events, 9))._level == 10


def test_a_select_that_keeps_the_key_may_stand_between_exchange_and_operator() -> None:
    _, events = a_flow()
    exchanged = events.exchange("k")
    exchanged.select("k", w="v").filter(bool).apply(Distinct)
    exchanged.select(x="k").select(k="x").apply(Distinct)
    exchanged.map(lambda row: {"k": row.k}, {"k": "int64"}).apply(Distinct)
    exchanged.select(w="v").apply(Same)  # Which does not go by the key.


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda f, s: s.exchange("k").sink(flux.sinks.Null()), r"exchange\('k'\) is followed by a sink"),
        (lambda f, s: s.exchange("k").exchange("v"), "followed by another exchange: put .apply"),
        (lambda f, s: s.exchange("k").union(s), "followed by a union"),
        (lambda f, s: s.join(s.exchange("k"), on="k", within=1), "followed by a join"),
        (lambda f, s: s.union(3), "union takes another stream, got int"),
        (lambda f, s: s.union(stream_of({"k": pa.int64()})), "these are of 'plans' and 'other'"),
        (lambda f, s: s.union(s.select("v", "k")), r"one has \(k int64, v int64\), the other \(v int64, k int64\)"),
        (lambda f, s: s.union(s.map(lambda row: {})), r"map\(<lambda>\) does not say what it emits, so union"),
        (lambda f, s: s.union(s).apply(Same), "Same needs an exchange in front"),
        (lambda f, s: s.exchange("k", by="any").apply(Keyed), 'Keyed keeps its state by key: .* instead of by="any"'),
        (lambda f, s: s.exchange(by="any").apply(Distinct, on="k"), 'Distinct keeps .* instead of by="any"'),
        (lambda f, s: s.exchange(by="any").apply(Sessions), 'Sessions keeps .* instead of by="any"'),
        (
            lambda f, s: s.exchange(by="any").apply(SessionWindow, time="v", gap_ms=9, aggregates={"n": "count"}),
            "SessionWindow keeps its state by key",
        ),
        (lambda f, s: s.exchange(by="any").apply(GroupBy, aggregates={"n": "count"}), "GroupBy keeps its state by key"),
        (lambda f, s: s.exchange(by="any").apply(TopK, k=1, by="v"), "TopK keeps its state by key"),
        (lambda f, s: s.exchange(by="any").apply(CountWindow, value="v"), "CountWindow keeps its state by key"),
        (lambda f, s: s.exchange("k").select("v").apply(Distinct), "Distinct keeps its state by 'k', .* left out 'k'"),
        (lambda f, s: s.exchange("k").select(k="v").apply(Distinct), "partitions the rows for Distinct, .* of 'k'"),
        (lambda f, s: s.exchange("k").select(k=lambda b: b["v"]).apply(Same), "for Same, .* Put the select before"),
        (lambda f, s: s.exchange("k").select(k="v", v="k").filter(bool).apply(Keyed), "makes another column of 'k'"),
        (lambda f, s: s.exchange("k", "k"), "exchange names 'k' twice"),
        (lambda f, s: s.exchange("k").select("v").apply(Keyed), "has left out 'k': keep the column"),
        (lambda f, s: s.exchange("k", "v", by="range"), "takes one column"),
        (lambda f, s: s.exchange("k", by="range", partitions=3, boundaries=[1]), "boundaries are 2 values of int64"),
        (lambda f, s: s.exchange("k", by="range", partitions=3, boundaries=[2, 1]), "in order"),
        (lambda f, s: s.exchange("k", by="range", partitions=2, boundaries=["x"]), "boundaries are 1 values of int64"),
        (lambda f, s: s.exchange("k", by="range", boundaries=[1], sample=[1]), "not both"),
        (lambda f, s: s.exchange("k", by="range", sample=["x"]), "the sample must be values of int64"),
        (lambda f, s: s.exchange("k", by="range", sample=[None]), "holds no value"),
        (lambda f, s: s.select("k").exchange("k", by="range"), r"say boundaries=\[...\], or sample=values"),
        (lambda f, s: s.exchange("k", boundaries=[1]), 'are for by="range"'),
        (lambda f, s: s.exchange(), "exchange needs the columns"),
        (lambda f, s: s.exchange("k", partitions=True), "partitions is a number"),
        (lambda f, s: f.source(f._logical.sources[0]), "is already a source of the flow"),
        (lambda f, s: s.join(s, on="k", within=1, partitions=0), "partitions is a number"),
    ],
)
def test_what_cannot_be_is_a_plan_error_that_says_what_to_do(make: Any, says: str) -> None:
    flow, events = a_flow()
    with pytest.raises(flux.PlanError, match=says):
        make(flow, events)


PACKETS = {"src": pa.int32(), "dst": pa.int32(), "data": pa.binary(2), "ts": pa.int64()}
WORDS = {"word": pa.string(), "n": pa.int64()}


@pytest.mark.parametrize(
    ("operator", "says"),
    [
        (int, "expected an operator class .* got 'int'. Derive it from one of them, or wrap it"),
        (lambda: 3, "got <lambda>, which returns instances of int. Derive it"),
        (Silent, r"gets its rows in process\(self, batch\), and Silent does not define it"),
        (Unsaid, r"gets its rows in on_tuple\(self, key, row, state\), and Unsaid does not define it"),
        (Sealed, "'Sealed': state_types holds dataclasses.*<class 'int'> is none of them. Leave it out"),
        (Bare, r"'Bare': state_types is a tuple of classes, got .*Write state_types = \(Silent,\)"),
    ],
)
def test_what_is_no_operator_is_refused_with_the_plan(operator: Any, says: str) -> None:
    _, events = a_flow()
    with pytest.raises(flux.PlanError, match=says):
        events.exchange("k").apply(operator)


@pytest.mark.parametrize("operator", [Keyed, made_keyed, flux.wrap_bytewax(a_logic)])
def test_whoever_keeps_state_by_key_needs_the_key_whichever_way_it_is_made(operator: Any) -> None:
    _, events = a_flow()
    with pytest.raises(flux.PlanError, match="keeps its state by key: name its columns"):
        events.exchange(by="any").apply(operator)
    with pytest.raises(flux.PlanError, match="has left out 'k': keep the column"):
        events.exchange("k").select("v").apply(operator)


@pytest.mark.parametrize(
    ("schema", "key", "parameters", "says"),
    [
        (WORDS, "n", {"value": "n", "histroy": 3}, "'CountWindow': unknown parameters histroy; it has history, slide"),
        (WORDS, "n", {"value": "n", "history": 0}, "history is a number of rows, from 1 to .*; got 0"),
        (WORDS, "n", {"value": "n", "slide": True}, "slide is a number of rows, from 1 to .*; got True"),
        (WORDS, "n", {"value": 3}, "value is the name of a column; got 3"),
        (WORDS, "n", {"value": "word"}, "column 'word' is string; expected signed integers, or floats. Cast it"),
    ],
)
def test_what_a_window_of_rows_cannot_work_with_is_refused_with_the_plan(
    schema: Any, key: str, parameters: Any, says: str
) -> None:
    with pytest.raises(flux.PlanError, match=says):
        stream_of(schema).exchange(key).apply(flux.operators.CountWindow, **parameters)


@pytest.mark.parametrize(
    ("schema", "key", "parameters", "says"),
    [
        (PACKETS, "src", {"timeout": 3}, "'Sessions': unknown parameters timeout; it has none"),
        (PACKETS, "ts", {}, "the exchange before it partitions by ts. Exchange by src, dst or both"),
        ({"src": pa.int32(), "dst": pa.int32()}, "src", {}, "got src, dst, without data, ts. Rename columns"),
        ({**PACKETS, "dst": pa.list_(pa.int8())}, "src", {}, "the key column 'dst' is list<.*expected numbers, text"),
        ({**PACKETS, "data": pa.string()}, "src", {}, "column 'data' is string; expected binary"),
        ({**PACKETS, "ts": pa.float64()}, "src", {}, "column 'ts' is double; expected integers"),
    ],
)
def test_what_sessions_cannot_be_made_of_is_refused_with_the_plan(
    schema: Any, key: str, parameters: Any, says: str
) -> None:
    with pytest.raises(flux.PlanError, match=says):
        stream_of(schema).exchange(key).apply(Sessions, **parameters)


def test_a_sink_takes_one_stream() -> None:
    _, events = a_flow()
    sink = flux.sinks.Collect()
    events.sink(sink)
    with pytest.raises(flux.PlanError, match=r"takes another stream of 'plans' already.*a\.union\(b\)"):
        events.sink(sink)


def test_a_type_without_a_hash_is_refused_before_the_run() -> None:
    stream = stream_of({"k": pa.list_(pa.int64())})
    with pytest.raises(flux.PlanError, match="cannot be partitioned by a column of type list"):
        stream.exchange("k")


@pytest.mark.parametrize("what", ["source", "exchange", "map", "Same"])
def test_what_leads_to_no_sink_is_an_error_that_names_it(what: str) -> None:
    flow, events = a_flow()
    events.sink(flux.sinks.Null())
    if what == "source":
        flow.source(flux.sources.Table(ROWS))
    elif what == "map":
        events.map(dict)
    else:
        exchanged = events.exchange("k")
        exchanged.apply(Same)
        if what == "Same":
            exchanged.apply(Keyed).sink(flux.sinks.Null())
    with pytest.raises(flux.PlanError, match=rf"{what}.* leads to no sink\. End its stream with \.sink"):
        plan_of(flow)


def test_pairs_need_two_sites_and_one_copy_or_no_exchange_does_not() -> None:
    flow, events = a_flow()
    events.exchange("k").apply(Same).sink(flux.sinks.Null())
    with pytest.raises(flux.PlanError, match='give sites=2 or more, or availability="none"'):
        plan_of(flow, sites=1)
    assert plan_of(flow, sites=1, availability="none").sites == 1


# Remote runs.


def test_flows_that_differ_in_anything_are_told_apart() -> None:
    def flow_of(change: str = "") -> Plan:
        flow, events = a_flow()
        events = events.filter(lambda row: True) if change == "step" else events
        if change == "function":
            other = events.filter(lambda row: False)
        else:
            other = events.filter(lambda row: True)
        by = {"by": "range", "boundaries": [5]} if change == "range" else {}
        stream = other.exchange("k", partitions=2, order="any" if change == "order" else "sn", **by).apply(Same)
        stream.sink(flux.sinks.Null(), order="any" if change == "sink order" else "sn")
        if change == "sink":
            stream.sink(flux.sinks.Null())
        return plan_of(flow)

    same = description(flow_of())
    assert same == description(flow_of())
    for change in ("step", "function", "range", "order", "sink order", "sink"):
        assert description(flow_of(change)) != same, change


# Routes.

VALUES = st.lists(st.none() | st.integers(-20, 20), max_size=30)


@given(VALUES, st.lists(st.integers(-20, 20), max_size=6).map(sorted))
def test_by_range_a_value_goes_behind_every_boundary_that_is_not_above_it(
    values: list[int | None], boundaries: list[int]
) -> None:
    route = Route(partitions=len(boundaries) + 1, by="range", columns=("k",), boundaries=tuple(boundaries))
    rows = pa.record_batch({"k": pa.array(values, pa.int64())})
    found = route.partition(rows, np.arange(len(values)), None).tolist()
    assert found == [0 if v is None else sum(bound <= v for bound in boundaries) for v in values]


@pytest.mark.parametrize(
    ("values", "boundaries", "expected"),
    [
        (["apple", "b", None, "zebra", "m"], ["b", "n"], [0, 1, 0, 2, 1]),
        ([1.5, float("nan"), -0.0, float("inf")], [0.0, 2.0], [1, 2, 1, 2]),
        ([b"a", b"b"], [b"b"], [0, 1]),
    ],
)
def test_ranges_are_known_of_text_bytes_and_floats(values: Any, boundaries: Any, expected: list[int]) -> None:
    route = Route(partitions=len(boundaries) + 1, by="range", columns=("k",), boundaries=tuple(boundaries))
    rows = pa.record_batch({"k": pa.array(values)})
    assert route.partition(rows, np.arange(len(values)), None).tolist() == expected


def test_boundaries_of_a_sample_make_parts_of_about_one_size() -> None:
    sample = pa.array([n * 7919 % 1_000 for n in range(1_000)] + [None])
    route = Route(partitions=8, by="range", columns=("k",), boundaries=boundaries_of(sample, 8))
    counts = np.bincount(route.partition(pa.record_batch({"k": sample}), np.arange(1_001), None), minlength=8)
    assert counts.min() >= 124 and counts.max() <= 126


@pytest.mark.parametrize("rows", [100, 100_000])
def test_straight_behind_a_table_rows_from_all_over_it_are_the_sample(rows: int) -> None:
    flow = flux.Dataflow("sampled")
    events = flow.source(flux.sources.Table(pa.table({"k": range(rows)})))
    events.exchange("k", by="range", partitions=4).apply(Keyed).sink(flux.sinks.Null())
    assert plan_of(flow).edges[0].route.boundaries == (rows // 4, rows // 2, rows * 3 // 4)


@given(st.integers(1, 100), st.integers(2, 40))
def test_by_any_rows_are_dealt_out_by_their_place_alone(first: int, partitions: int) -> None:
    route = Route(partitions=partitions, by="any")
    sn = np.arange(first, first + 4_000)
    rows = pa.record_batch({"k": pa.nulls(4_000)})
    whole = route.partition(rows, sn, None)
    cut = [route.partition(rows.slice(i, 500), sn[i : i + 500], None) for i in range(0, 4_000, 500)]
    assert np.concatenate(cut).tolist() == whole.tolist()
    for chosen in (slice(None), slice(None, None, 2)):
        counts = np.bincount(whole[chosen], minlength=partitions)
        assert counts.min() > 0.4 * counts.mean(), "no partition starves, also if every other row was filtered out"


# Explained.


def test_an_explanation_has_steps_segments_partitions_and_places(tmp_path: Path) -> None:
    flow, events = a_flow()
    other = flow.source(flux.sources.Table(ROWS)).filter(lambda row: True)
    joined = events.join(other, on="k", within=5, partitions=3).select("k", "v")
    same = joined.exchange("v", partitions=2, availability="none", order="any", by="any").apply(Same)
    same.union(events).sink(flux.sinks.Collect())
    joined.sink(flux.sinks.Null(), order="any")
    text = flow.explain(sites=3, standby=1, path=tmp_path / "plan.svg")
    for line in (
        "plans: 2 sources, 2 segments, 2 sinks, on 3 sites and 1 standby",
        "  source 2 -> filter(<lambda>): k int64, v int64",
        "  edge 1: filter(<lambda>) -> stage 1, by hash of k",
        "stage 1, join(k): 3 partitions as pairs, in order",
        "  Join -> select(k, v): k int64, v int64",
        "  0 on site-1 and site-2; 1 on site-2 and site-3; 2 on site-3 and site-1",
        "stage 2, exchange(by any): 2 partitions, one copy of each, as rows arrive",
        "stage 3, egress: sink Collect, in order",
        "stage 4, egress: sink Null, as rows arrive",
    ):
        assert line in text.splitlines()
    assert (tmp_path / "plan.svg").read_text().count("<path") > 10


def test_an_explanation_says_what_sources_give_and_tells_steps_of_one_name_apart(tmp_path: Path) -> None:
    flow = flux.Dataflow("alike")
    first = flow.source(flux.sources.Table(ROWS), event_time="v", lateness_ms=50)
    second = flow.source(flux.sources.Table(ROWS))
    kept = first.filter(lambda row: row.v > 1).union(first.filter(lambda row: row.v < 1), second.select("k", "v"))
    kept.exchange("k", partitions=2).apply(Same).sink(flux.sinks.Null())
    text = flow.explain(sites=2, standby=1, path=tmp_path / "plan.svg")
    for line in (
        "  source 1: Table: k int64, v int64; event time is v, rows may be 50 ms late",
        "  source 2: Table: k int64, v int64",
        "  source 1 -> filter(<lambda>) #1: k int64, v int64",
        "  source 1 -> filter(<lambda>) #2: k int64, v int64",
        "  edge 0: filter(<lambda>) #1 -> stage 1, by hash of k",
        "  edge 1: filter(<lambda>) #2 -> stage 1, by hash of k",
        "  edge 2: select(k, v) -> stage 1, by hash of k",
    ):
        assert line in text.splitlines()
    drawn = (tmp_path / "plan.svg").read_text()
    assert "<!-- alike on 2 sites and 1 standby -->" in drawn
    assert "<!-- filter(&lt;lambda&gt;) #2 of source 1 -->" in drawn


def test_a_plan_that_cannot_be_drawn_there_says_so(tmp_path: Path) -> None:
    flow, events = a_flow()
    events.sink(flux.sinks.Null())
    with pytest.raises(flux.FluxError, match=r"plan\.xyz"):
        flow.explain(path=tmp_path / "plan.xyz")


def test_explain_says_which_steps_the_ingress_runs_and_how_to_spread_them() -> None:
    def explained(spread: bool) -> str:
        flow = flux.Dataflow("f")
        rows = flow.source(flux.sources.Table([{"n": 1}]))
        rows = rows.exchange(by="any", partitions=4) if spread else rows
        some = rows.filter(lambda row: row.n > 0).select("n")
        some.exchange("n", partitions=4).apply(Passing).sink(flux.sinks.Null())
        return flow.explain()

    advice = "all rows pass filter(<lambda>), select(n) in the one ingress process"
    assert advice in explained(spread=False) and 'exchange(by="any") before it' in explained(spread=False)
    assert "ingress process" not in explained(spread=True)
