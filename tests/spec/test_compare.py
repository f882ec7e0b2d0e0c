"""The thesis's protocol and the production machines give the same sequences; and if they did not, it would be seen.

It takes about a minute of one core: so many worlds are walked or explored.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from typing import Any

import pytest

from flux.protocols.messages import Attach, Data
from flux.spec import compare as comparison
from flux.spec.cases import case_of
from flux.spec.compare import Compared, ComparedInput, ComparedRows, compare, compare_many, first_difference, whole
from flux.spec.dataflow import END
from flux.spec.process import SimulatedProcess
from flux.spec.thesis import DATAFLOW_PAIRS, PARTITION_PAIRS, Copy, Sequences, sequences, unfired

# The first are as they come; the others are there for the rows of the models that fire rarely.
RARE = (55, 192, 199, 214, 450, 452, 584, 7046)
SEEDS = (*range(50), *RARE)


@cache
def all_compared() -> tuple[list[Compared], dict[str, Counter[tuple[str, str]]]]:
    return compare_many(SEEDS)


def test_model_and_machines_give_every_copy_and_the_egress_the_same_sequences() -> None:
    different = [str(compared) for compared in all_compared()[0] if not compared.equal]
    assert not different, "\n".join(different)


@pytest.mark.parametrize("kind", [DATAFLOW_PAIRS, PARTITION_PAIRS])
def test_every_row_of_every_model_fires_on_the_way(kind: str) -> None:
    assert unfired(kind, all_compared()[1][kind]) == []


def test_both_sides_go_through_every_crash_and_are_whole_again() -> None:
    for compared in all_compared()[0]:
        planned = {str(copy) for crash in compared.case.crashes for copy in crash.copies}
        for given in (compared.model, compared.machines):
            assert given is not None and given.crashed == planned
            assert all(len(given.live(pair)) == 2 for pair in compared.case.pairs)


def test_a_good_share_of_the_cases_crash_and_catch_up_in_the_middle_of_their_input() -> None:
    found, _ = all_compared()
    assert sum(bool(compared.case.crashes) for compared in found) > 0.7 * len(found)
    for side in ("model", "machines"):
        assert sum(getattr(compared, side).caught_up_midway for compared in found) > 0.15 * len(found)


def test_cases_are_of_all_kinds() -> None:
    cases = [compared.case for compared in all_compared()[0]]
    assert {len(case.partitions) for case in cases} == {1, 2, 3}
    assert {count for case in cases for count in case.partitions} == {1, 2, 3}
    assert {case.apart for case in cases} == {True, False}
    victims = [copy for case in cases for crash in case.crashes for copy in crash.copies]
    assert {min(copy.number, 2) for copy in victims} == {0, 1, 2}  # Primaries, secondaries, standbys.
    assert max(len(case.crashes) for case in cases) >= 3


def test_the_same_seed_is_the_same_comparison_and_tells_itself() -> None:
    compared = compare(17)
    assert compared == compare(17)
    assert str(compared).endswith("the same sequences")
    assert str(replace(compared, difference="it differs")).endswith(
        "it differs\ncompare again with: python -m flux.spec.compare 17"
    )


# --- what would be seen: a bug on either side ---------------------------------------------------------------------

Change = Callable[[tuple[Any, ...]], tuple[Any, ...]]


def lose_the_first(rows: tuple[Any, ...]) -> tuple[Any, ...]:
    return rows[1:]


def repeat_the_first(rows: tuple[Any, ...]) -> tuple[Any, ...]:
    return rows[:1] + rows


def exchange_values(rows: tuple[Any, ...]) -> tuple[Any, ...]:
    if len(rows) < 2:
        return rows
    a, b, *rest = rows
    return (a._replace(value=b.value), b._replace(value=a.value), *rest)


@pytest.mark.parametrize("change", [lose_the_first, repeat_the_first, exchange_values], ids=lambda f: f.__name__)
def test_machines_that_err_at_take_over_are_noticed(change: Change, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first frame that a lane carries after a failure is not as it should be."""
    own = SimulatedProcess.deliver
    fed: set[tuple[int, str, int]] = set()

    def deliver(process: SimulatedProcess, message: Any) -> Any:
        if isinstance(message, Data) and message.view > 1 and message.bodies[0]:
            lane = (id(process), message.sender, message.lane_id)
            rows = tuple(row for row in message.bodies[0] if row.value != END)
            if rows and lane not in fed:
                fed.add(lane)
                ends = message.bodies[0][len(rows) :]
                message = replace(message, bodies=(change(rows) + ends,))
        return own(process, message)

    monkeypatch.setattr(SimulatedProcess, "deliver", deliver)
    assert any("the machines, site" in compare(seed).difference for seed in range(20))


def test_machines_that_stall_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    own = SimulatedProcess.deliver

    def deliver(process: SimulatedProcess, message: Any) -> Any:
        is_reversal = isinstance(message, Attach) and message.view > 1
        return [] if is_reversal else own(process, message)

    monkeypatch.setattr(SimulatedProcess, "deliver", deliver)
    assert any("never gets" in compare(seed).difference for seed in range(20))


@pytest.mark.parametrize("variant", ["dangling", "ack_all", "reversal", "both_csync", "psync_pause", "swap"])
def test_a_model_without_one_of_its_measures_is_noticed(variant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comparison, "sequences", partial(sequences, variant=(variant,)))
    assert any("the model breaks its own rule" in compare(seed).difference for seed in range(120))


def test_a_model_that_gives_other_sequences_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def too_short(*arguments: Any, **options: Any) -> Sequences:
        run = sequences(*arguments, **options)
        return replace(run, egress=run.egress[:-1])

    seed = next(seed for seed in SEEDS if whole_output(seed) > 1)
    monkeypatch.setattr(comparison, "sequences", too_short)
    assert "the machines, egress" in compare(seed).difference and "not the end" in compare(seed).difference


def whole_output(seed: int) -> int:
    compared = next(compared for compared in all_compared()[0] if compared.case.seed == seed)
    assert compared.model is not None
    return len(whole(compared.model)[compared.case.egress])


# --- how sequences are compared -----------------------------------------------------------------------------------

A, B, C = (1, 0, 5), (2, 0, 7), (3, 0, 9)
CASE = case_of(0)


def given(*taken: ComparedRows, crashed: tuple[Copy, ...] = ()) -> ComparedInput:
    return ComparedInput(taken, frozenset(map(str, crashed)))


def test_what_a_pair_consumed_is_put_together_from_its_copies() -> None:
    crashed = ComparedRows("1.0A", (1, 0), (A, B), crashed=True)
    assert whole(given(ComparedRows("1.0C", (1, 0), (B, C), begins=1, state=1), crashed)) == {(1, 0): (A, B, C)}


@pytest.mark.parametrize(
    ("other", "said"),
    [
        (ComparedRows("site-1", (1, 0), (A, C)), "its tuple 1 is (3, 0, 9), not (2, 0, 7)"),
        (ComparedRows("site-1", (1, 0), (A, B, C)), "its tuple 2 is (3, 0, 9), not the end"),
        (ComparedRows("site-1", (1, 0), (A,)), "it ends after 1 tuples and never gets (2, 0, 7)"),
        (ComparedRows("site-1", (1, 0), (A,), crashed=True), "1 copies in the model, 0 in the machines"),
    ],
)
def test_the_first_difference_is_told(other: ComparedRows, said: str) -> None:
    case = replace(CASE, partitions=(1,))
    egress = ComparedRows("egress", (2, 0), ())
    model = given(ComparedRows("1.0A", (1, 0), (A, B)), egress)
    assert said in first_difference(case, model, given(other, egress))
    assert first_difference(case, model, given(ComparedRows("site-1", (1, 0), (A, B)), egress)) == ""


def test_crashes_that_only_one_side_saw_are_told() -> None:
    model, machines = given(crashed=(Copy(1, 0, 0),)), given()
    assert first_difference(CASE, model, machines) == "the model lost ['1.0A'], the machines []"
