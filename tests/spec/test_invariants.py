"""Each invariant catches bugs planted in the machines: some that others see too, and one that only it sees."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

import pytest

from flux.protocols.buffer import Buffer
from flux.protocols.machine import Rule
from flux.protocols.messages import Attach, Block, Data
from flux.protocols.node import Node
from flux.spec.dataflow import Row
from flux.spec.explore import Explorer
from flux.spec.invariants import CHECKERS, Checker, OneSender, Violated
from flux.spec.recovery import OneCopyPerSite, RecoveryEnds
from flux.spec.scenario_walk import WORLDS, wander
from flux.spec.walk import replay, story, walk
from flux.spec.world import Choice, World

from . import small_worlds
from .planted_bugs import CASES, Case


def _name(case: Case) -> str:
    return case.plant.__name__


def _run(case: Case, checkers: Sequence[Checker]) -> tuple[Violated | None, tuple[Choice, ...]]:
    """What is violated in the world of a case, and how it came to that. The plain run is made anew, with the bug."""
    scenario = replace(case.scenario)
    if case.tale:
        return replay(scenario, case.tale, checkers)[1], case.tale
    explored = Explorer(scenario, checkers).run()
    return explored.violation, explored.path


@pytest.mark.parametrize("case", CASES, ids=_name)
def test_the_checker_alone_catches_its_planted_bug(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    case.plant(monkeypatch)
    violation, _ = _run(case, [case.checker()])
    assert violation is not None
    assert str(violation).startswith(case.checker.claim)


@pytest.mark.long
@pytest.mark.parametrize("case", [case for case in CASES if case.only], ids=_name)
def test_no_other_checker_catches_it(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    case.plant(monkeypatch)
    violation, _ = _run(case, [checker() for checker in CHECKERS if checker is not case.checker])
    assert violation is None


@pytest.mark.long
@pytest.mark.parametrize("case", CASES, ids=_name)
def test_the_path_to_a_violation_replays_in_a_world(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    case.plant(monkeypatch)
    _, path = _run(case, [case.checker()])
    scenario = replace(case.scenario)
    _, violation = replay(scenario, path, [case.checker()])
    assert violation is not None
    assert str(violation).startswith(case.checker.claim)
    assert story(scenario, path, [case.checker()]).endswith(f"=> {violation}")


@pytest.mark.long
@pytest.mark.parametrize("case", CASES, ids=_name)
def test_random_worlds_catch_every_planted_bug(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    case.plant(monkeypatch)
    small = (wander(WORLDS["ahead"], seed) for seed in range(90, 100))  # In large ones it is rare.
    assert any(walked.violation for walked in chain(map(walk, range(200)), small))


def test_every_checker_has_a_planted_bug_that_only_it_catches() -> None:
    assert {case.checker for case in CASES if case.only} == set(CHECKERS)


def test_a_world_that_goes_on_for_ever_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    assert walk(0).violation is None
    monkeypatch.setattr("flux.spec.world.STEPS_MAX", 10)  # This one goes on for longer than worlds may.
    assert "all comes to rest: 10 steps" in str(walk(0).violation)


@pytest.mark.parametrize("action", ["fence", "hold"])
def test_views_decide_who_is_heard(action: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # Without "dead nodes are mute" (rules 12, 20) or "hold, do not refuse" (rule 11) a message is refused.
    kept: tuple[Rule[Any, Any], ...] = tuple(r for r in Node.RULES if r.action.__name__ != action)
    assert len(kept) == len(Node.RULES) - 10
    monkeypatch.setattr(Node, "RULES", kept)
    explored = Explorer(small_worlds.PAIRS_ONE_BATCH).run()
    assert "no refusal" in str(explored.violation)


def test_a_row_dropped_before_all_have_it_is_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    # Rule 2: a producer that drops what only one consumer copy has acknowledged cannot take over.
    def release(buffer: Buffer) -> None:
        buffer.dropped = max(buffer.floors.values(), default=buffer.dropped)
        buffer.runs = [run for run in buffer.runs if run.upto > buffer.dropped]
        buffer.rows = sum(run.rows for run in buffer.runs)

    monkeypatch.setattr(Buffer, "_release", release)
    explored = Explorer(small_worlds.PAIRS_ONE_BATCH).run()
    assert explored.violation is not None


def test_a_copy_that_is_installed_twice_is_seen() -> None:
    world = World(small_worlds.SPARE)
    with pytest.raises(Violated, match="never two copies on one site: site-1 has a copy"):
        OneCopyPerSite().installed(world.processes["site-1"], (1, 0))


def test_a_live_copy_without_state_is_seen() -> None:
    world = World(small_worlds.SPARE)
    world.finish()
    del world.processes["site-1"].states[1, 0]
    with pytest.raises(Violated, match="recovery ends: site-1 has no state"):
        RecoveryEnds().at_rest(world.scenario, world.live(), world.controller.view)


def test_a_second_sender_is_seen_on_delivery_as_well() -> None:
    world = World(small_worlds.PAIRS_ONE_BATCH)
    world.finish()
    process = world.processes["site-1"]
    stray = Data(sender="site-2", view=1, edge=1, lane_id=1, after=3, upto=4, bodies=((Row(4, 0, 1, 0, 0, 1),),))
    with pytest.raises(Violated, match="one sender"):
        process.deliver(stray)


def test_an_attach_names_live_copies_only() -> None:
    world = World(small_worlds.PAIRS_ONE_BATCH)
    world.finish()
    channels = (Block(producers=(0,), consumers=(0,)),)
    attach = Attach(sender="egress", view=1, edge=1, lane_id=9, position=0, channels=channels)
    with pytest.raises(Violated, match="no live copy"):
        OneSender().attached(world.processes["egress"], "ingress", attach)
