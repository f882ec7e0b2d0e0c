"""Each invariant catches a bug planted in the machines, on its own and in a crowd."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from flux.protocols import controller as controller_module
from flux.protocols.buffer import Buffer
from flux.protocols.controller import Controller
from flux.protocols.fh_cons import NOBODY, FhCons
from flux.protocols.machine import Rule
from flux.protocols.messages import Attach, Block, Data, View
from flux.protocols.node import Node
from flux.protocols.pooler import Pooler
from flux.spec.dataflow import Row, Scenario
from flux.spec.explore import Explorer
from flux.spec.invariants import (
    CHECKERS,
    BuffersDrain,
    Checker,
    DupFree,
    InOrder,
    LossFree,
    NoDeadlock,
    OneCopyPerSite,
    OneSender,
    RecoveryEnds,
    ReplicasIdentical,
    Violated,
)
from flux.spec.walk import replay, story, walk
from flux.spec.world import World

from . import small_worlds

Plant = Callable[[pytest.MonkeyPatch], None]
_attach, _acknowledge, _take = FhCons._attach, FhCons.acknowledge, FhCons.take


def _view(cons: FhCons) -> int:
    assert cons.view is not None
    return cons.view.number


def skip_a_row_at_take_over(patch: pytest.MonkeyPatch) -> None:
    def attach(cons: FhCons, cohort: int, sender: str, channels: Any, position: int) -> Iterator[Any]:
        return _attach(cons, cohort, sender, channels, position + (_view(cons) > 1))

    patch.setattr(FhCons, "_attach", attach)


def go_back_a_row_at_take_over(patch: pytest.MonkeyPatch) -> None:
    def attach(cons: FhCons, cohort: int, sender: str, channels: Any, position: int) -> Iterator[Any]:
        return _attach(cons, cohort, sender, channels, max(cons.consumed, position - (_view(cons) > 1)))

    patch.setattr(FhCons, "_attach", attach)


def merge_up_to_the_fastest_lane(patch: pytest.MonkeyPatch) -> None:
    def frontier(cons: FhCons, cohort: int) -> int:
        return max((lane.upto for lane in cons.lanes.values()), default=cons.consumed)

    patch.setattr(FhCons, "frontier", frontier)


def drop_a_frame_on_the_second_site(patch: pytest.MonkeyPatch) -> None:
    def take(cons: FhCons, cohort: int, upto: int) -> Any:
        return _take(cons, cohort, upto)[cons.name == "site-2" :]

    patch.setattr(FhCons, "take", take)


def acknowledge_to_one_producer_only(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(FhCons, "acknowledge", lambda cons: list(_acknowledge(cons))[:1])


def forget_to_reverse(patch: pytest.MonkeyPatch) -> None:
    senders = FhCons._senders

    def no_survivors(cons: FhCons, producers: Any, slot: int, now: str = NOBODY) -> dict[str, tuple[int, ...]]:
        return senders(cons, producers, slot, now) if _view(cons) == 1 else {NOBODY: tuple(producers)}

    patch.setattr(FhCons, "_senders", no_survivors)


def never_work_with_rows_in_the_pool(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Buffer, "_release", lambda buffer: None)


def attach_to_every_copy(patch: pytest.MonkeyPatch) -> None:
    def senders(cons: FhCons, producers: Any, slot: int, now: str = NOBODY) -> dict[str, tuple[int, ...]]:
        view = cons.view
        assert view is not None
        copies = {p: view.live_copies(cons.edge, p) for p in producers}
        nodes = sorted({node for live in copies.values() for node in live})
        return {node: tuple(p for p, live in copies.items() if node in live) for node in nodes}

    patch.setattr(FhCons, "_senders", senders)


def rebuild_a_copy_where_the_other_one_is(patch: pytest.MonkeyPatch) -> None:
    def place(view: View, stage: int, partition: int) -> str:
        return view.live_copies(stage, partition)[0]

    patch.setattr(controller_module, "_best_place", place)


def never_rebuild(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Controller, "_with_recovery", lambda controller, view: view)


def never_say_that_a_copy_is_built(patch: pytest.MonkeyPatch) -> None:
    install = Pooler._install
    patch.setattr(Pooler, "_install", lambda pooler, state: list(install(pooler, state))[:-1])


@dataclass(frozen=True)
class Case:
    """A planted bug, the checker that must catch it alone, and a world in which it shows."""

    plant: Plant
    checker: type[Checker]
    scenario: Scenario


CASES = (
    Case(skip_a_row_at_take_over, LossFree, small_worlds.PAIRS_ONE_BATCH),
    Case(go_back_a_row_at_take_over, DupFree, small_worlds.MERGE),
    Case(merge_up_to_the_fastest_lane, InOrder, small_worlds.MERGE_TWO_BATCHES),
    Case(drop_a_frame_on_the_second_site, ReplicasIdentical, small_worlds.PAIRS_ONE_BATCH),
    Case(acknowledge_to_one_producer_only, BuffersDrain, small_worlds.PAIRS_ONE_BATCH),
    Case(forget_to_reverse, NoDeadlock, small_worlds.PAIRS_ONE_BATCH),
    Case(never_work_with_rows_in_the_pool, NoDeadlock, small_worlds.PAIRS_TIGHT),
    Case(attach_to_every_copy, OneSender, small_worlds.PAIRS_ONE_BATCH),
    Case(rebuild_a_copy_where_the_other_one_is, OneCopyPerSite, small_worlds.SPARE),
    Case(never_rebuild, RecoveryEnds, small_worlds.SPARE),
    Case(never_say_that_a_copy_is_built, RecoveryEnds, small_worlds.SPARE),
)


def _name(case: Case) -> str:
    return case.plant.__name__


@pytest.mark.parametrize("case", CASES, ids=_name)
def test_the_checker_alone_catches_its_planted_bug(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    case.plant(monkeypatch)
    explored = Explorer(case.scenario, [case.checker()]).run()
    assert explored.violation is not None
    assert str(explored.violation).startswith(case.checker.claim)


@pytest.mark.parametrize("case", CASES, ids=_name)
def test_the_path_of_the_explorer_replays_in_a_world(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    case.plant(monkeypatch)
    explored = Explorer(case.scenario, [case.checker()]).run()
    _, violation = replay(case.scenario, explored.path, [case.checker()])
    assert violation is not None
    assert str(violation).startswith(case.checker.claim)
    assert story(case.scenario, explored.path, [case.checker()]).endswith(f"=> {violation}")


@pytest.mark.parametrize("case", CASES, ids=_name)
def test_random_worlds_catch_every_planted_bug(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    case.plant(monkeypatch)
    assert any(walk(seed).violation for seed in range(200))


def test_every_checker_has_a_planted_bug() -> None:
    assert {case.checker for case in CASES} == set(CHECKERS)


@pytest.mark.parametrize("action", ["ignore", "hold"])
def test_views_decide_who_is_heard(action: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # Without "dead nodes are mute" (rules 12, 20) or "hold, do not refuse" (rule 11) a message is refused.
    kept: tuple[Rule[Any, Any], ...] = tuple(r for r in Node.RULES if r.action.__name__ != action)
    assert len(kept) == len(Node.RULES) - 9
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
    stray = Data(sender="site-2", view=1, edge=1, stint=1, after=3, upto=4, bodies=((Row(4, 0, 0, 0, 1),),))
    with pytest.raises(Violated, match="one sender"):
        process.deliver(stray)


def test_an_attach_names_live_copies_only() -> None:
    world = World(small_worlds.PAIRS_ONE_BATCH)
    world.finish()
    channels = (Block(producers=(0,), consumers=(0,)),)
    attach = Attach(sender="egress", view=1, edge=1, stint=9, position=0, channels=channels)
    with pytest.raises(Violated, match="no live copy"):
        OneSender().attached(world.processes["egress"], "ingress", attach)
