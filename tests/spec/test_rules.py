"""Every rule of the protocol and every row of every machine is needed: without it, a world fails.

`flux spec rules` tells the stories; here it is enough that there is one.

It takes about a minute: for each rule and each row, worlds are walked until one fails.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from flux.commands.main import main
from flux.protocols.change_messages import (
    AbortChange,
    AttemptOverdue,
    Bind,
    Bound,
    Cannot,
    CheckpointRetained,
    Passed,
    Past,
    Prepare,
    Prepared,
    Reconfigure,
    Rehearsed,
    Unbind,
)
from flux.protocols.controller import Controller
from flux.protocols.egress import Egress
from flux.protocols.fh_cons import FhCons
from flux.protocols.fh_prod import FhProd
from flux.protocols.ingress import Ingress
from flux.protocols.machine import Machine, Refused, Rule
from flux.protocols.messages import (
    Ack,
    Attach,
    CopyFailed,
    CopyReady,
    Data,
    Hello,
    HighestPosition,
    LinkDown,
    Merge,
    Merged,
    Move,
    RequestState,
    Retire,
    Slow,
    Sourced,
    State,
    Stop,
    Stopped,
    Suspected,
    View,
)
from flux.protocols.node import Node
from flux.protocols.pooler import Pooler
from flux.protocols.state_mover import StateMover
from flux.spec.rules import RULES, Removal, counterexample
from flux.spec.rules.patch import Patch
from flux.spec.rules.rules_report import report
from flux.spec.scenario_walk import WORLDS, wander
from flux.spec.walk import Walked, walk

WANDERINGS, WALKS = 8, 20  # Seeds of each world, and of random ones.
RARE_MAX = 300  # Seeds tried for a row that is rarely needed.
LINES_MAX = 40

# --- the rules of the protocol ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "removal",
    [pytest.param(removal, id=f"{rule.number}-{removal.name}") for rule in RULES for removal in rule.removals],
)
def test_without_the_rule_a_world_fails(removal: Removal) -> None:
    assert counterexample(removal) is not None


@pytest.mark.parametrize(
    "take_out", [take_out for rule in RULES for take_out in rule.spare], ids=lambda take_out: take_out.__name__
)
@pytest.mark.long
def test_without_what_is_argued_to_be_spare_no_world_fails(take_out: Callable[[Patch], None]) -> None:
    with Patch() as patch:
        take_out(patch)
        assert next(violations(), None) is None


def test_every_rule_is_needed_or_argued() -> None:
    assert [rule.number for rule in RULES] == list(range(1, 55))
    assert all(rule.removals or rule.argument for rule in RULES)
    assert all(rule.argument for rule in RULES if rule.spare)


def test_what_is_taken_out_is_put_back() -> None:
    tables = {machine: machine.RULES for machine in MACHINES}
    methods = {machine: dict(vars(machine)) for machine in MACHINES}
    for rule in RULES:
        for removal in rule.removals:
            with Patch() as patch:
                removal.take_out(patch)
    assert {machine: machine.RULES for machine in MACHINES} == tables
    assert {machine: dict(vars(machine)) for machine in MACHINES} == methods


def test_a_story_is_short_and_ends_with_the_claim() -> None:
    for rule in report([12, 14, 24]):
        assert rule.is_settled
        for removal in rule.removals:
            lines = removal.story.splitlines()
            assert len(lines) < LINES_MAX
            assert lines[-1] == f"=> {removal.claim}"


def test_the_command_prints_a_rule_and_its_story(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["spec", "rules", "25", "18"]) == 0
    printed = capsys.readouterr()
    assert "Rule 25. Journal, then publish" in printed.out
    assert "controller is started again" in printed.out
    assert "Not needed: Frames are cut only between sequence numbers" in printed.out
    assert "rule 25" in printed.err


def test_the_command_prints_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["spec", "rules", "25", "--json"]) == 0
    [rule] = json.loads(capsys.readouterr().out)
    assert rule["number"] == 25
    assert rule["removals"][0]["story"].endswith(rule["removals"][0]["claim"])


def test_an_unknown_number_is_said_to_be(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["spec", "rules", "99"]) == 2
    assert "no rule has the number 99" in capsys.readouterr().err


# --- the worlds -------------------------------------------------------------------------------------------


@pytest.mark.long  # The quick check walks the same worlds by the same seeds.
@pytest.mark.parametrize("name", WORLDS)
def test_with_all_rules_the_worlds_obey_the_invariants(name: str) -> None:
    for seed in range(WANDERINGS):
        violation = wander(WORLDS[name], seed).violation
        assert violation is None, f"seed {seed}: {violation}"


def violations() -> Iterator[Walked]:
    """Whatever goes wrong in small worlds and in random ones."""
    for seed in range(WANDERINGS):
        for scenario in WORLDS.values():
            if (wandered := wander(scenario, seed)).violation is not None:
                yield wandered
    for seed in range(WALKS):
        if (walked := walk(seed)).violation is not None:
            yield walked


# --- the rows of the tables -------------------------------------------------------------------------------

MACHINES = (Controller, Egress, FhCons, FhProd, Ingress, Node, Pooler, StateMover)
Row = tuple[type[Machine], type[Any], str]
# Rows that no world needs, each with the reason; tests/protocols has a test of every one.
NOT_IN_A_WORLD: dict[Row, str] = {
    (Controller, Suspected, "can_be_spared"): "a suspicion is a wish: nothing is wrong if it is ignored",
    (Controller, LinkDown, "can_do_without_one"): "the same; in a world the link comes back then",
    (Controller, Move, "is_possible"): "a move is a wish as well",
    (Controller, Slow, "changes_what_is_slow"): "a mark is a wish as well: without it a slow site is waited for",
    (
        Controller,
        CopyFailed,
        "is_from_the_dead",
    ): "its greeting was refused before, and a copy whose donor died is rare",
    **{
        (Controller, kind, "is_of_an_open_attempt"): "it saves attempts: each alone leaves enough (rule 48)"
        for kind in (CopyReady, Move, Slow, Retire)
    },
    **{
        (Controller, kind, "is_from_the_dead"): "the same as of a copy that has failed"
        for kind in (Prepared, Cannot, Bound, Past, Passed)
    },
    (Controller, AttemptOverdue, "keeps_others_waiting"): "the same: in a world each attempt ends by itself",
    (Egress, Merged, "always"): "it has one cohort, and never asks for a merge",
    (
        Controller,
        Hello,
        "has_seen_a_lost_view",
    ): "without it the message is refused: the run ends, with no reason",
    (Node, View, "follows_another"): "the same",
    (FhProd, Attach, "asks_for_what_was_acknowledged"): "the same; most have stated their position before",
}
RANDOM = "random"  # The world is that of the seed.
# Rows that worlds need rarely, and where to begin to look.
RARE: dict[Row, tuple[str, int]] = {
    (FhProd, Ack, "takes_an_acknowledgement_back"): ("lost sinks", 121),
    (Controller, Reconfigure, "is_sound"): ("a change", 0),
    (Controller, Reconfigure, "is_committed"): ("changes that are requested twice", 0),
    (Controller, Reconfigure, "is_pending"): ("changes that are requested twice", 0),
    (Controller, AbortChange, "is_pending"): ("a change that is never prepared", 0),
    (Controller, Bound, "is_not_connected"): ("a change, restarts and a crash", 2),
    (Node, Unbind, "is_what_it_is_bound_to"): ("a change that is aborted, restarts", 0),
    (Controller, Reconfigure, "is_over_or_late"): ("changes and restarts", 0),
    (Controller, AbortChange, "always"): ("a change that is aborted", 0),
    (Controller, AttemptOverdue, "always"): ("a change while a move is always wanted", 0),
    (Controller, CheckpointRetained, "always"): ("a change and checkpoints", 0),
    (Controller, Prepared, "is_about_the_first_change"): ("a change", 0),
    (Controller, Prepared, "is_from_a_node"): ("a change that two sites cannot make", 0),
    (Controller, Cannot, "is_about_the_first_change"): ("a change that two sites cannot make", 0),
    (Controller, Cannot, "is_from_a_node"): ("a change that two sites cannot make", 0),
    (Controller, Bound, "is_bound_to_what_is_proposed"): ("a change", 0),
    (Controller, Bound, "is_from_a_node"): ("a change, restarts and a crash", 0),
    (Controller, Past, "refuses_what_is_proposed"): ("a change", 0),
    (Controller, Past, "is_from_a_node"): ("a change, restarts and a crash", 0),
    (Controller, Passed, "is_of_a_member_now"): ("a change", 0),
    (Controller, Passed, "is_from_a_node"): ("a change and a crash", 0),
    (Node, Prepare, "always"): ("a change", 0),
    (Node, Rehearsed, "always"): ("a change", 0),
    (Node, Bind, "is_of_this_view"): ("a change", 0),
    (Node, Unbind, "is_over"): ("a change that is aborted", 0),
    (Ingress, Sourced, "goes_too_far"): ("a change of slow readers", 0),
    (Controller, Hello, "is_late"): ("two restarts", 2956),
    (Controller, Hello, "is_from_the_dead"): ("a forgotten site", 5),
    (Controller, CopyReady, "is_from_the_dead"): ("a forgotten site", 92),
    (Controller, CopyReady, "is_over"): ("restarts and a spare", 362),
    (Controller, CopyFailed, "is_over"): ("a storm", 2),
    (Controller, Suspected, "is_known"): ("a suspicion", 3),
    (FhCons, Merged, "is_of_a_lane_given_up"): ("everything moves", 56),
    (FhCons, Stopped, "is_of_a_lane_given_up"): ("joining", 1),
    (FhProd, Ack, "is_of_an_earlier_time_here"): ("joining", 2),
    (FhProd, Attach, "is_of_an_earlier_time_here"): ("joining", 2),
    (FhProd, Stop, "is_of_an_earlier_time_here"): ("joining", 2),
    (FhProd, Merge, "is_of_an_earlier_time_here"): ("everything moves", 49),
    (Node, Stopped, "is_of_a_later_view"): ("everything moves", 6),
    (Node, Merge, "is_of_a_later_view"): ("joining", 5),
    (Node, Merged, "is_of_a_later_view"): ("everything moves", 6),
    (Node, HighestPosition, "is_from_the_dead"): (RANDOM, 33),
    (Node, Data, "is_from_the_dead"): ("any order, restarts", 3),
    (Node, Attach, "is_from_the_dead"): ("a suspicion", 1),
    (Node, Stop, "is_from_the_dead"): ("a storm", 123),
    (Node, Stopped, "is_from_the_dead"): (RANDOM, 151),
    (Node, Merge, "is_from_the_dead"): (RANDOM, 45),
    (Node, Merged, "is_from_the_dead"): (RANDOM, 16),
    (Node, RequestState, "is_from_the_dead"): ("a suspicion", 17),
    (Node, State, "is_from_the_dead"): ("a storm", 107),
}


def key(machine: type[Machine], rule: Rule[Any, Any]) -> Row:
    return machine, rule.on, rule.guard.__name__


ROWS = [
    pytest.param(machine, rule, id="-".join((machine.__name__, rule.on.__name__, rule.guard.__name__)))
    for machine in MACHINES
    for rule in machine.RULES
    if key(machine, rule) not in NOT_IN_A_WORLD
]


@pytest.mark.parametrize(("machine", "rule"), ROWS)
def test_without_the_row_a_world_fails(machine: type[Machine], rule: Rule[Any, Any]) -> None:
    with Patch() as patch:
        patch.put(machine, "RULES", tuple(kept for kept in machine.RULES if kept is not rule))
        assert a_world_fails(RARE.get(key(machine, rule)))


def a_world_fails(rare: tuple[str, int] | None) -> bool:
    try:
        return next(violations() if rare is None else rare_violations(*rare), None) is not None
    except Refused:
        return True  # Already the first greeting is refused, before there is a world.


def rare_violations(world: str, first: int) -> Iterator[Walked]:
    for seed in range(first, first + RARE_MAX):
        walked = walk(seed) if world == RANDOM else wander(WORLDS[world], seed)
        if walked.violation is not None:
            yield walked


def test_the_rows_named_here_exist() -> None:
    rows = {key(machine, rule) for machine in MACHINES for rule in machine.RULES}
    assert rows >= NOT_IN_A_WORLD.keys() | RARE.keys()
