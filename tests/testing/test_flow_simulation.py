"""simulate runs real operators in the simulated world: sound ones give what a plain run gives, others are found."""

from __future__ import annotations

import re
from typing import Any

import pyarrow as pa
import pytest

import flux
from flux.testing import SimulationFailed, simulate
from flux.testing.flow_simulation import make_small_plan
from flux.types.errors import PlanError
from tests.testing import faulty

WORDS = ("to", "be", "or", "not", "to", "be", "that", "is", "the", "question", "whether", "tis", "nobler")
ROWS = [{"word": word, "value": 10.0 * i} for i, word in enumerate(sorted(WORDS * 2))]


class Lengths(flux.KeyedOperator):
    """A second step: by the length of the total."""

    output = {"digits": "int64", "n": "int64"}  # noqa: RUF012

    def on_tuple(self, key: Any, row: Any, state: Any) -> Any:
        n = (state or 0) + 1
        return n, [{"digits": len(str(row.total)), "n": n}] * (n % 3)


def flow_of(*operators: Any) -> flux.Dataflow:
    flow = flux.Dataflow("words")
    stream: Any = flow.source(flux.sources.Table(ROWS, batch_rows=7)).exchange("word", partitions=3).apply(operators[0])
    for operator in operators[1:]:
        stream = stream.exchange("word", partitions=3).apply(operator)
    stream.sink(flux.sinks.Collect())
    return flow


def test_a_sound_flow_gives_in_every_world_what_a_plain_run_gives() -> None:
    found = simulate(flow_of(faulty.Totals, Lengths), seeds=6)
    assert (found.seeds, found.lost) == (6, 0)
    assert found.events > 500
    report = flow_of(faulty.Totals, Lengths).run(sites=2)
    assert found.outputs == report.outputs


def test_every_kind_of_fault_may_be_asked_for() -> None:
    faults = {"crashes": 2, "restarts": 2, "moves": 3, "suspicions": 1, "cuts": 1, "arrivals": 1}
    assert simulate(flow_of(faulty.Totals), faults=faults, seeds=[3, 5, 8], sites=4).seeds == 3


@pytest.mark.parametrize("operator", [faulty.Batchy, faulty.Forgetful, faulty.Lucky])
def test_an_operator_with_a_fault_is_found_with_the_seed_and_how_to_see_it_again(operator: Any) -> None:
    with pytest.raises(SimulationFailed) as caught:
        simulate(flow_of(operator, Lengths), seeds=30, rows=12)
    text = str(caught.value)
    assert text.startswith("dataflow 'words' fails in the simulated world of seed ")
    assert "flux.testing.simulate(flow, seeds=[" in text and "check_operator" in text
    seed = int(text.split("world of seed ")[1].split(".")[0])
    if operator is not faulty.Lucky:
        with pytest.raises(SimulationFailed) as again:
            simulate(flow_of(operator, Lengths), seeds=[seed], rows=12)
        assert str(again.value) == text


def test_an_operator_that_raises_is_told_with_the_seed() -> None:
    with pytest.raises(SimulationFailed, match=r"world of seed 0\.\n\nOperatorError: .*too large"):
        simulate(flow_of(faulty.Raising), seeds=1, rows=60)


def test_what_happened_can_be_printed(capsys: pytest.CaptureFixture[str]) -> None:
    simulate(flow_of(faulty.Totals), seeds=[1], rows=5, tell=True)
    printed = capsys.readouterr().out
    assert "site-1 takes attach" in printed and "=> all invariants hold" in printed


def test_worlds_are_small() -> None:
    plan = make_small_plan(flow_of(faulty.Totals, Lengths), 3, 1, 2)
    assert [segment.partitions for segment in plan.segments] == [2, 2]
    assert all(step.partitions == 2 for segment in plan.segments for step in segment.steps)


@pytest.mark.parametrize(
    ("said", "says"),
    [
        ({"faults": {"earthquakes": 1}}, "unknown kinds of faults: earthquakes; expected crashes, restarts"),
        ({"faults": -1}, "faults counts crashes, 0 or more; got -1"),
        ({"faults": {"moves": "many"}}, "faults counts moves, 0 or more; got 'many'"),
        ({"seeds": 0}, "seeds is the number of worlds, at least 1, or a list of seeds; got 0"),
        ({"seeds": -1}, "seeds is the number of worlds, at least 1, or a list of seeds; got -1"),
        ({"seeds": []}, r"seeds is the number of worlds, at least 1, or a list of seeds; got \[\]"),
        ({"seeds": "17"}, "seeds is the number of worlds, at least 1, or a list of seeds; got '17'"),
        ({"partitions": 0}, "partitions is at least 1; got 0"),
        ({"flow": faulty.Totals}, "the first argument is a flux.Dataflow; got <class"),
    ],
)
def test_what_cannot_be_simulated_is_a_plan_error(said: dict[str, Any], says: str) -> None:
    with pytest.raises(PlanError, match=says):
        simulate(**({"flow": flow_of(faulty.Totals)} | said))


def test_what_depends_on_how_much_time_goes_by_is_found() -> None:
    with pytest.raises(SimulationFailed, match=r"The clock is read at .*faulty.py:\d+ \(time.monotonic\)"):
        simulate(flow_of(faulty.Expiring), seeds=5)


def test_state_that_cannot_be_made_again_is_told_with_the_seed() -> None:
    with pytest.raises(SimulationFailed, match="world of seed 0"):
        simulate(flow_of(faulty.Undecodable), seeds=1)


def test_what_came_is_told_beside_what_was_expected() -> None:
    with pytest.raises(SimulationFailed) as caught:
        simulate(flow_of(faulty.Batchy), seeds=30, rows=12)
    assert re.search(r"\n    expected: .*'total': .*\n    got:      .*'total': ", str(caught.value)), str(caught.value)


def test_a_source_without_rows_is_a_plan_error() -> None:
    flow = flux.Dataflow("nothing")
    empty = flux.sources.Table(pa.table({"word": pa.array([], "string")}))
    flow.source(empty).exchange("word", partitions=2).apply(Lengths).sink(flux.sinks.Null())
    with pytest.raises(PlanError, match="the source gave no rows"):
        simulate(flow)
