"""simulate runs every kind of dataflow with crashes, gives what a real run gives, and finds what is wrong in it.

It takes half a minute: each flow runs in many simulated worlds.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from typing import Any

import pyarrow as pa
import pytest
import trio

import flux
from flux.testing import SimulationFailed, simulate, source_prefix
from flux.testing.flow_simulation import _scenario, make_small_plan
from flux.testing.flow_world import plain_outputs
from flux.testing.source_prefix import pulls
from flux.types.errors import PlanError

from . import flows

FAULTS = {"crashes": 2, "restarts": 2, "moves": 2}


def plain(flow: flux.Dataflow, seed: int = 0) -> list[list[str]]:
    """What each sink is given in the plain run that simulated worlds are compared with."""
    found = source_prefix.source_prefixes(flow._logical.sources, 60, flow.name)
    return [
        [row.value.text for row in rows]
        for rows in plain_outputs(_scenario(make_small_plan(flow, 3, 1, 3), found, {}, seed))
    ]


# --- every kind of flow ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", flows.KINDS, ids=lambda make: make.__name__)
def test_each_kind_of_flow_gives_in_worlds_with_crashes_what_a_plain_run_gives(
    make: Callable[[], flux.Dataflow], capsys: pytest.CaptureFixture[str]
) -> None:
    seeds = 40 if make is flows.stateless else 4  # Without operators it is over soon, mostly before anything happens.
    found = simulate(make(), faults=FAULTS, seeds=seeds, tell=True)
    told = capsys.readouterr().out
    assert found.seeds == seeds and found.outputs > 0
    assert found.lost == 0 or make is flows.one_copy
    assert told.count("=> all invariants hold") == seeds
    assert told.count(" crashes\n") >= 8 and "is started again" in told


@pytest.mark.parametrize(
    "make", [flows.chain, flows.stateless, flows.windows, flows.timers, flows.punctuated, flows.ranges]
)
def test_the_plain_run_of_simulated_worlds_gives_what_real_processes_give(make: Callable[[], flux.Dataflow]) -> None:
    [simulated] = plain(make())
    assert simulated == [repr(row) for row in make().run(sites=2).table.to_pylist()]


def test_what_a_watermark_causes_stage_by_stage_is_in_one_order_on_one_site_on_two_and_here() -> None:
    """What comes by one lane is merged with nothing: it must be in order already."""
    [simulated] = plain(flows.caused())
    for sites in (1, 2):
        real = flows.caused().run(sites=sites, availability="none").table.to_pylist()
        assert simulated == [repr(row) for row in real]


def test_of_a_join_of_two_sources_the_same_pairs_come_as_in_a_real_run() -> None:
    """In another order: the rows of two sources follow each other as they come."""
    [simulated] = plain(flows.joined(flows.Doubles))
    [otherwise] = plain(flows.joined(flows.Doubles), seed=1)
    real = [repr(row) for row in flows.joined(flows.Doubles).run(sites=2).table.to_pylist()]
    assert Counter(simulated) == Counter(otherwise) == Counter(real)
    assert simulated != otherwise


def test_watermarks_stand_where_an_ingress_sets_them_however_rows_are_cut() -> None:
    flow = flows.windows()
    plan = make_small_plan(flow, 2, 0, 3)
    [found] = source_prefix.source_prefixes(flow._logical.sources, 60, "windows")
    punctuations = [
        [mark for pull in pulls([found], random.Random(seed), plan) for mark in pull.punctuations] for seed in range(5)
    ]
    assert punctuations[0] and all(each == punctuations[0] for each in punctuations)
    assert {len(pulls([found], random.Random(seed), plan)) for seed in range(5)} != {1}


def test_a_seed_fixes_the_whole_story(capsys: pytest.CaptureFixture[str]) -> None:
    stories = []
    for seed in (7, 7, 8):
        simulate(flows.joined_windows(), faults=FAULTS, seeds=[seed], tell=True)
        stories.append(capsys.readouterr().out)
    assert stories[0] == stories[1] != stories[2]


# --- what is found ---------------------------------------------------------------------------------------------------


class ByTheClock(flows.Running):
    """Of the hour alone, so that two runs on one day give the same."""

    def on_tuple(self, key: Any, row: Any, state: Any) -> Any:
        return None, [{"card": row.card, "total": float(time.time() // 3600)}]


class ByTheBatch(flux.Operator):
    output = flows.Running.output

    def process(self, batch: Any) -> Any:
        return batch.emit({"card": batch.column("card"), "total": [float(len(batch))] * len(batch)})


class Forgets(flows.Seen):
    """Its state is not what it keeps."""

    def get_state(self) -> Any:
        return 0


class ForgetsMarks(flows.Tells):
    """Keeps the last punctuation, and does not say so."""

    last = -1

    def on_punctuation(self, p: Any) -> Any:
        before, self.last = self.last, p.value or 0
        return {"kind": [p.kind], "value": [before], "rows": [self.rows]}


def failure_of(flow: flux.Dataflow, seeds: int = 40, **settings: Any) -> str:
    with pytest.raises(SimulationFailed) as caught:
        simulate(flow, faults=FAULTS, seeds=seeds, **settings)
    return str(caught.value)


@pytest.mark.parametrize("operator", [ByTheClock, ByTheBatch, Forgets])
def test_a_fault_behind_a_join_of_two_sources_is_found_and_seen_again(operator: Any) -> None:
    text = failure_of(flows.joined(operator))
    seed = int(text.split("world of seed ")[1].split(".")[0])
    assert f"2 is exchange(card) and {operator.__name__}" in text and "1 is join(card) and Join" in text
    assert failure_of(flows.joined(operator), seeds=[seed]) == text  # type: ignore[arg-type]


def test_where_the_clock_is_read_is_said() -> None:
    assert "The clock is read at " in failure_of(flows.joined(ByTheClock), seeds=1)
    assert "The clock is read at " not in failure_of(flows.joined(ByTheBatch))


def test_what_is_kept_from_one_punctuation_to_the_next_must_be_in_the_state() -> None:
    def flow_of(operator: Any) -> flux.Dataflow:
        flow = flux.Dataflow("marks")
        events = flows.cards(flow, event_time="ts", watermark_every_ms=100)
        events.exchange("card", partitions=2).apply(operator).sink(flux.sinks.Null())
        return flow

    simulate(flow_of(flows.Tells), seeds=3)
    assert "1 is exchange(card) and ForgetsMarks" in failure_of(flow_of(ForgetsMarks))


def test_a_fault_that_shows_at_one_of_several_sinks_is_found() -> None:
    flow = flows.branches()
    flows.cards(flow).exchange("card", partitions=2).apply(ByTheBatch).sink(flux.sinks.Null())
    assert "the last" not in (text := failure_of(flow)) and "7 is sink 4" in text


def test_an_operator_that_depends_on_the_order_may_not_stand_behind_order_any() -> None:
    def flow_of(order: Any) -> flux.Dataflow:
        flow = flux.Dataflow("unordered")
        totals = flows.cards(flow).exchange("card", partitions=3).apply(flows.Running)
        totals.exchange("total", partitions=2, order=order).apply(flows.Seen).sink(flux.sinks.Null())
        return flow

    simulate(flow_of("sn"), seeds=10)
    assert "loss-free" in (text := failure_of(flow_of("any"))) or "dup-free" in text


def test_rows_of_one_place_have_an_order_behind_a_stage_that_keeps_none() -> None:
    """Those that one watermark causes in several partitions."""
    flow = flux.Dataflow("one place")
    totals = flows.cards(flow, event_time="ts", watermark_every_ms=500).exchange("card", partitions=3)
    dealt = totals.apply(flows.Totals).exchange(by="any", partitions=2, order="any").apply(flows.Doubles)
    dealt.exchange("card", partitions=2).apply(flows.Seen).sink(flux.sinks.Null())
    assert simulate(flow, faults=FAULTS, seeds=4).outputs > len(flows.CARDS)


# --- what cannot be simulated ----------------------------------------------------------------------------------------


class Begins(flux.sources.Table):
    def start(self) -> None:
        """As a source does that needs a run."""


class Endless(flux.sources.Source):
    schema = pa.schema({"card": pa.int64()})

    async def batches(self, context: Any, after: Any = None) -> AsyncIterator[flux.sources.SourceBatch]:
        yield flux.sources.SourceBatch(pa.RecordBatch.from_pylist([{"card": 1}], self.schema))
        await trio.sleep_forever()


def passed_on(source: Any) -> flux.Dataflow:
    flow = flux.Dataflow("refused")
    flow.source(source).sink(flux.sinks.Null())
    return flow


def test_a_source_that_begins_with_a_run_is_refused() -> None:
    with pytest.raises(PlanError, match=r"source Begins of 'refused' starts with a run.*Table"):
        simulate(passed_on(Begins([{"card": 1}])))


def test_a_source_that_neither_goes_on_nor_ends_is_refused_unless_it_has_given_enough(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(source_prefix, "SOURCE_TIMEOUT_S", 0.05)
    with pytest.raises(PlanError, match="source Endless gave 1 of the 60 requested rows, nothing more"):
        simulate(passed_on(Endless()))
    assert simulate(passed_on(Endless()), rows=1, seeds=2).outputs == 1


def test_an_iterator_is_used_up_and_says_so() -> None:
    flow = passed_on(flux.sources.Table(iter([pa.record_batch({"card": [1, 2]})])))
    assert simulate(flow, seeds=1).outputs == 2
    with pytest.raises(PlanError, match="was used up by an earlier run"):
        simulate(flow)


def test_there_must_be_rows_of_some_source() -> None:
    flow = flows.two_sources()
    with pytest.raises(PlanError, match="rows counts rows of each source and is at least 1, got 0"):
        simulate(flow, rows=0)
    empty = flux.Dataflow("empty")
    for _ in range(2):
        empty.source(flux.sources.Table(pa.table({"k": pa.array([], "int64")}))).sink(flux.sinks.Null())
    with pytest.raises(PlanError, match="none of the sources of 'empty' gave rows"):
        simulate(empty)


# --- output that nobody declared --------------------------------------------------------------------------------------


def undeclared(values: list[Any]) -> flux.Dataflow:
    class Told(flux.KeyedOperator):
        def on_tuple(self, key: Any, row: Any, state: Any) -> Any:
            return (state or 0) + 1, [{"v": values[row.n]}]

    flow = flux.Dataflow("undeclared")
    rows = [{"k": n % 3, "n": n} for n in range(len(values))]
    told = flow.source(flux.sources.Table(rows, batch_rows=2)).exchange("k", partitions=2).apply(Told)
    told.sink(flux.sinks.Collect())
    return flow


def test_none_in_undeclared_output_is_none_here_and_in_real_processes() -> None:
    values = [None, None, None, None, 1, None, 2, 3, None, None]
    assert simulate(undeclared(values), faults=FAULTS, seeds=4).outputs == len(values)
    expected = [repr({"v": value}) for value in values]
    assert plain(undeclared(values)) == [expected]
    assert [repr(row) for row in undeclared(values).run(sites=2).table.to_pylist()] == expected


def test_types_that_do_not_fit_are_refused_here_and_in_real_processes() -> None:
    values = [None, None, 1, 2, 3, 1.5, 2.5, 3.5]
    with pytest.raises(SimulationFailed, match=r"OperatorError: .*'v': expected int64, got"):
        simulate(undeclared(values), faults=FAULTS, seeds=1)
    with pytest.raises(flux.OperatorError, match=r"'v': expected int64, got|Declare `output`"):
        undeclared(values).run(sites=2)
