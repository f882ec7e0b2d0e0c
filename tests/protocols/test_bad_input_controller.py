"""Bad input to the controller: who is not let in, and what is refused of those who are. Reference: rules 12, 17, 19."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, get_args

import pytest

from flux.protocols.change_messages import (
    AbortChange,
    AttemptOverdue,
    Bound,
    Cannot,
    CheckpointRetained,
    Passed,
    Past,
    Prepared,
    Reconfigure,
)
from flux.protocols.controller import Controller
from flux.protocols.machine import Refused
from flux.protocols.messages import (
    VERSION,
    Closed,
    CopyCosts,
    CopyFailed,
    CopyReady,
    Hello,
    LinkDown,
    Message,
    Move,
    Retire,
    Slow,
    Suspected,
    ToController,
)

from .controllers import hello
from .refusing import assert_fenced, assert_ignored, assert_refused
from .views import SPARE, ack, consumed, data, standby

# site-2 is dead, ingress-2 serves in the place of the first one, and site-3 builds version 4. All are there but site-3
# and the egress, which are still to come to a controller that was started again.
VIEW = replace(
    SPARE,
    number=3,
    nodes=(*SPARE.nodes, "ingress-2"),
    dead=frozenset({"site-2", "ingress"}),
    copies=((("ingress-2",),), *SPARE.copies[1:]),
    standby=(standby(4, 1, 0, 1, "site-3", "site-1"),),
    versions=4,
    incarnations=((0, 2),),
)
INGRESS = Hello(node="ingress-2", view=3, ends=(0,), incarnation=2)
EXPECTED, EXPECTED_END = hello(VIEW, "site-3", 3), hello(VIEW, "egress", 3)
NEW, NEW_END = Hello(node="site-9"), Hello(node="ingress-3", ends=(0,), incarnation=3)
DONE, FAILED = CopyReady(node="site-3", version=4), CopyFailed(node="site-3", version=4)
GOOD: list[Any] = [
    EXPECTED,
    EXPECTED_END,
    NEW,
    NEW_END,
    Closed(node="site-3"),
    Suspected(node="site-3"),
    LinkDown(a="site-3", b="site-1"),
    DONE,
    FAILED,
    Move(stage=2, partition=0, slot=0, to="site-3"),
    Slow(nodes=("site-1",)),
    CopyCosts(costs=(("site-1", 2.0),)),
    Reconfigure(number=1, stages=frozenset({1, 2})),
    CheckpointRetained(position=1),
]
# Those are taken in other states, or ignored here: `test_changes` has the good ones.
OF_CHANGES = {AbortChange, AttemptOverdue, Prepared, Cannot, Bound, Past, Passed}


def controller() -> Controller:
    made = Controller(VIEW)
    assert made.step(hello(VIEW, "site-1", 3)) == []
    assert made.step(INGRESS) == []
    return made


def case(message: Any, **changes: Any) -> Any:
    shown = ",".join(f"{field}={value}" for field, value in changes.items())
    return pytest.param(replace(message, **changes), id=f"{type(message).__name__}-{shown}")


def test_every_kind_of_message_to_the_controller_is_tried() -> None:
    # In this view no copy may be retired; `test_slow_sites` has the good ones.
    assert {Retire, *OF_CHANGES, *(type(message) for message in GOOD)} == set(get_args(ToController))


@pytest.mark.parametrize("message", GOOD, ids=lambda message: type(message).__name__)
def test_what_is_going_to_be_spoiled_is_good(message: Message) -> None:
    made = controller()
    before = made.key()
    assert made.step(message) or made.key() != before


# Refused.

GREETINGS = [
    case(EXPECTED, version=VERSION - 1),
    case(EXPECTED_END, version=VERSION + 1),
    case(NEW, version=0),
    case(NEW_END, version=-1),
    case(EXPECTED, view=4),  # It has seen what the journal has not.
    case(EXPECTED, view=-1),
    case(NEW, view=1),  # A stranger that has seen views of this dataflow, or of another.
    case(NEW_END, view=4),
    case(NEW_END, ends=(1,)),  # An operator.
    case(NEW_END, ends=(9,)),
    case(NEW_END, ends=(-1,)),
    case(NEW_END, ends=(0, 9)),
    case(EXPECTED, node="site-1"),  # It is here already.
    case(INGRESS, view=3),  # So is this end, which is not late either.
    case(NEW, node=""),  # The name of nobody, from whom FH-Cons is not fed.
    case(NEW_END, node=""),
    case(EXPECTED, ends=(0,)),  # In the view they serve other ends, or none.
    case(EXPECTED, ends=(9,)),
    case(EXPECTED_END, ends=()),
    case(EXPECTED_END, ends=(0,)),
    case(EXPECTED_END, ends=(0, 3)),
]
REPORTS = [
    report
    for message in (DONE, FAILED)
    for report in (
        *(case(message, version=version) for version in (9, 0, -1)),  # Never begun.
        case(message, node="site-1"),  # Another site builds it.
        case(message, node="site-9"),
        case(message, node="site-9", version=3),  # Over, and it was not a stranger's.
    )
]
CHANGE = Reconfigure(number=1, stages=frozenset({1, 2}))
CHANGES = [
    case(CHANGE, number=0),
    case(CHANGE, number=-1),
    case(CHANGE, stages=frozenset()),
    case(CHANGE, stages=frozenset({0})),  # The ingress.
    case(CHANGE, stages=frozenset({1, 3})),  # The egress.
    case(CHANGE, stages=frozenset({-1})),
    case(CHANGE, stages=frozenset({9})),
    case(CHANGE, scheduler="fastest"),
    *(
        case(message, node="site-9")
        for message in (
            Prepared(node="", number=1),
            Cannot(node="", number=1, reason="no such module"),
            Bound(node="", view=9, number=1, position=0),
            Past(node="", view=9, number=1, position=0, reached=1, step=1),
            Passed(node="", view=9, number=1),
        )
    ),
]
UNKNOWN = [
    case(Suspected(node="site-3"), node="site-9"),
    case(LinkDown(a="site-3", b="site-1"), a="site-9"),
    case(LinkDown(a="site-3", b="site-1"), b="site-9"),
]
NOT_FOR_IT = [
    case(VIEW, number=4),
    case(consumed(1, 1), upto=2),
    case(ack("site-1", 1, 1)),
    case(data("site-1", 1, 1, 0, 1)),
]


@pytest.mark.parametrize("message", [*GREETINGS, *REPORTS, *CHANGES, *UNKNOWN, *NOT_FOR_IT])
def test_a_message_that_is_spoiled_in_one_place_is_refused(message: Message) -> None:
    assert_refused(controller(), message, by="Controller")


@pytest.mark.parametrize("seen", [0, 1, 9])
@pytest.mark.parametrize("node", ["site-2", "ingress"])
def test_the_dead_are_fenced_whatever_they_have_seen(node: str, seen: int) -> None:
    ends = (0,) if node == "ingress" else ()
    assert_fenced(controller(), Hello(node=node, view=seen, ends=ends), view=3)


# Ignored for a reason: these may come late, or from whoever does not know better.


@pytest.mark.parametrize(
    "message",
    [
        Closed(node="site-2"),
        Closed(node="site-9"),
        Suspected(node="site-2"),
        LinkDown(a="site-2", b="site-1"),
        CopyReady(node="site-3", version=3),
        CopyFailed(node="site-3", version=3),
        replace(NEW_END, incarnation=1),
        *(Retire(node=node) for node in ("site-1", "site-2", "site-3", "site-9", "egress", "retired", "")),
        AbortChange(number=1),
        AttemptOverdue(number=1),
        Prepared(node="site-1", number=1),
        Cannot(node="site-1", number=1, reason="no such module"),
        Bound(node="site-3", view=3, number=1, position=0),  # It has not connected to this controller yet.
        Past(node="site-1", view=3, number=1, position=0, reached=1, step=1),
        Passed(node="site-1", view=3, number=1),
        Move(stage=9, partition=0, slot=0, to="site-3"),
        Move(stage=-1, partition=0, slot=0, to="site-3"),
        Move(stage=2, partition=-1, slot=0, to="site-3"),
        Move(stage=2, partition=0, slot=-1, to="site-3"),
    ],
    ids=repr,
)
def test_what_comes_too_late_is_ignored(message: Message) -> None:
    assert_ignored(controller(), message)


# What is known of the dead, and of processes before.


@pytest.mark.parametrize("message", [DONE, FAILED], ids=["CopyReady", "CopyFailed"])
def test_reports_of_the_dead_are_fenced(message: CopyReady | CopyFailed) -> None:
    assert_fenced(controller(), replace(message, node="site-2"), view=3)


def test_an_earlier_process_for_an_end_is_late_for_a_controller_started_again_too() -> None:
    # Given a journal in which the third ingress serves, and a controller that it has not come to yet,
    third = replace(
        VIEW,
        nodes=(*VIEW.nodes, "ingress-3"),
        dead=VIEW.dead | {"ingress-2"},
        copies=((("ingress-3",),), *VIEW.copies[1:]),
        incarnations=((0, 3),),
    )
    made = Controller(third)
    # when a process that was started before it, and never joined, comes first, then it does not take its place.
    assert_ignored(made, Hello(node="ingress-2b", ends=(0,), incarnation=2))


def test_the_error_names_the_view_in_which_it_was_refused() -> None:
    with pytest.raises(Refused, match=r"in state view=3\b"):
        controller().step(replace(NEW, view=1))


# What is taken or ignored today, and should be refused.


@pytest.mark.parametrize("ends", [(1,), (9,), (0, 9)], ids=repr)
def test_an_early_incarnation_of_no_end_is_refused(ends: tuple[int, ...]) -> None:
    assert_refused(controller(), replace(NEW_END, ends=ends, incarnation=1), by="Controller")


@pytest.mark.parametrize("incarnation", [0, 2])
def test_an_end_that_is_expected_as_another_incarnation_is_refused(incarnation: int) -> None:
    assert_refused(controller(), replace(EXPECTED_END, incarnation=incarnation), by="Controller")
