"""Changes of code: what the controller proposes, what nodes answer, and what holds them. Reference: rules 43 to 53."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from flux.protocols.change_messages import (
    CLOSED,
    COMMITTED,
    OF_INGRESS,
    REFUSED,
    SUPERSEDED,
    AbortChange,
    Ask,
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
    Rehearse,
    Rehearsed,
    ReportChange,
    Unbind,
)
from flux.protocols.changes import closed
from flux.protocols.controller import Controller
from flux.protocols.egress import Egress
from flux.protocols.ingress import Ingress
from flux.protocols.messages import (
    Closed,
    Connected,
    Consume,
    Consumed,
    CopyReady,
    Edition,
    Effect,
    Hello,
    Install,
    Move,
    Publish,
    Pull,
    SendToController,
    Slow,
    Sourced,
    View,
)
from flux.protocols.node import Node
from flux.protocols.pooler import Pooler

from .controllers import hello, laid_out, running
from .refusing import assert_fenced, assert_ignored, assert_refused
from .views import FIRST, NO_ROWS, SPARE, consumed, data, standby, state

PLAN = laid_out(2, ["1 2"])
RECEIVERS = ("egress", "site-1", "site-2")
CHANGE = Reconfigure(number=1, stages=frozenset({1}), spec=b"code")


def asked(effects: list[Effect], kind: type[Any]) -> list[Any]:
    """What nodes are asked of a kind, each with the nodes."""
    return [(e.to, e.message) for e in effects if isinstance(e, Ask) and isinstance(e.message, kind)]


def sent(effects: list[Effect]) -> list[Any]:
    return [effect.message for effect in effects if isinstance(effect, SendToController)]


def views(effects: list[Effect]) -> list[View]:
    return [effect.view for effect in effects if isinstance(effect, Publish)]


def outcomes(effects: list[Effect]) -> list[tuple[int, str]]:
    return [(effect.number, effect.outcome) for effect in effects if isinstance(effect, ReportChange)]


def prepared(controller: Controller, number: int = 1) -> list[Effect]:
    """All nodes say that they can make the change; what the last answer leads to."""
    last: list[Effect] = []
    for node in controller.view.nodes:
        if controller.view.alive(node):
            last = controller.step(Prepared(node=node, number=number))
    return last


def attempting(change: Reconfigure = CHANGE, plan: View = PLAN) -> Controller:
    controller = running(plan)
    controller.step(change)
    prepared(controller, change.number)
    return controller


def bound(node: str, position: int = 0, view: int = 1, number: int = 1) -> Bound:
    return Bound(node=node, view=view, number=number, position=position)


def past(node: str, reached: int, position: int = 0, view: int = 1, step: int = 1) -> Past:
    return Past(node=node, view=view, number=1, position=position, reached=reached, step=step)


def committed(controller: Controller, position: int = 0) -> list[Effect]:
    """All receivers are bound; what the last answer leads to."""
    effects: list[Effect] = []
    for node in RECEIVERS:
        effects = controller.step(bound(node, position, controller.number))
    return effects


# --- the controller ---------------------------------------------------------------------------------


def test_every_node_prepares_a_change_before_a_position_is_proposed() -> None:
    controller = running(PLAN)
    [(to, prepare)] = asked(controller.step(CHANGE), Prepare)
    assert (set(to), prepare) == (set(PLAN.nodes), Prepare(number=1, stages=CHANGE.stages, spec=b"code"))
    *others, last = PLAN.nodes
    for node in others:
        assert controller.step(Prepared(node=node, number=1)) == []
    bind = Bind(view=1, number=1, stages=CHANGE.stages, position=0)
    assert asked(controller.step(Prepared(node=last, number=1)), Bind) == [(RECEIVERS, bind)]


def test_a_node_that_cannot_make_a_change_is_named_and_the_next_request_is_taken() -> None:
    controller = running(PLAN)
    controller.step(CHANGE)
    controller.step(replace(CHANGE, number=2))
    effects = controller.step(Cannot(node="site-1", number=1, reason="no module m"))
    assert [e.reason for e in effects if isinstance(e, ReportChange)] == ["site-1: no module m"]
    assert [message.number for _, message in asked(effects, Prepare)] == [2]


def test_when_all_receivers_are_bound_the_next_view_has_the_edition() -> None:
    controller = attempting()
    controller.step(bound("egress"))
    controller.step(bound("egress"))  # Said twice, it counts once.
    controller.step(bound("site-1"))
    effects = controller.step(bound("site-2"))
    [view] = views(effects)
    assert (view.number, view.editions) == (2, (Edition(number=1, stages=CHANGE.stages, position=0, spec=b"code"),))
    assert outcomes(effects) == [(1, COMMITTED)]
    assert isinstance(effects[0], Publish)  # It is in the journal before any node or the program gets it.


def test_when_one_is_past_the_others_are_freed_and_a_later_position_is_proposed() -> None:
    controller = attempting()
    controller.step(bound("egress"))
    controller.step(bound("site-1"))
    effects = controller.step(past("site-2", 7, step=3))
    assert asked(effects, Unbind) == [(("egress", "site-1"), Unbind(view=1, number=1, position=0))]
    # Two of the longest steps after the furthest; twice as many after the next refusal.
    assert [message.position for _, message in asked(effects, Bind)] == [7 + 6]
    for node in RECEIVERS:
        effects = controller.step(past(node, 20, position=13, step=3))
    assert [message.position for _, message in asked(effects, Bind)] == [20 + 12]


def test_the_fourth_proposal_binds_the_ingress_first_and_takes_its_position() -> None:
    controller = attempting()
    for _ in range(3):
        at = controller.changes.attempt
        assert at is not None
        for node in RECEIVERS:
            effects = controller.step(past(node, at.position + 1, at.position))
    [(to, bind)] = asked(effects, Bind)
    assert to == ("ingress",)
    assert controller.step(bound("ingress", bind.position - 1)) != []  # Before what was proposed: it is freed.
    [(to, again)] = asked(controller.step(bound("ingress", bind.position + 5)), Bind)
    assert (to, again.position) == (RECEIVERS, bind.position + 5)
    assert views(committed(controller, again.position))[0].editions[0].position == again.position


def test_an_epoch_is_the_position_of_the_ingress() -> None:
    controller = attempting(replace(CHANGE, scheduler=OF_INGRESS))
    [(to, _)] = asked(controller.step(bound("ingress", 9)), Bind)
    assert to == RECEIVERS and controller.changes.attempt is not None and controller.changes.attempt.position == 9


def test_a_view_ends_an_attempt_and_the_next_one_is_of_that_view() -> None:
    controller = attempting(plan=replace(laid_out(3, ["1 2"])))
    controller.step(bound("site-1"))
    effects = controller.step(Closed(node="site-2"))
    [view] = views(effects)
    [(to, bind)] = asked(effects, Bind)
    assert (bind.view, bind.position) == (view.number, 0) and "site-3" in to  # A copy is in transfer to it.
    assert controller.step(bound("site-1")) == [Ask(to=("site-1",), message=Unbind(view=1, number=1, position=0))]


def test_without_a_live_egress_no_position_is_proposed() -> None:
    controller = attempting()
    assert asked(controller.step(Closed(node="egress")), Bind) == []
    again = Hello(node="egress.2", ends=(2,), incarnation=2)
    assert [to for to, _ in asked(controller.step(again), Prepare)] == [("egress.2",)]
    [(to, _)] = asked(controller.step(Prepared(node="egress.2", number=1)), Bind)
    assert to == ("egress.2", "site-1", "site-2")


def test_moves_and_marks_wait_for_the_end_of_an_attempt() -> None:
    move = Move(stage=1, partition=0, slot=0, to="site-3")
    controller = attempting(plan=laid_out(3, ["1 2"]))
    for message in (move, move, Slow(nodes=("site-1",))):
        assert controller.step(message) == []
    published = views(committed(controller))
    assert [view.editions != () for view in published] == [True, True, True]
    assert [len(view.standby) for view in published] == [0, 1, 1]
    assert controller.view.slow == {"site-1"}


def test_an_attempt_that_keeps_others_waiting_for_a_second_is_given_up_first() -> None:
    controller = attempting(plan=laid_out(3, ["1 2"]))
    assert_ignored(controller, AttemptOverdue(number=1))  # Nothing waits.
    controller.step(Move(stage=1, partition=0, slot=0, to="site-3"))
    assert_ignored(controller, AttemptOverdue(number=2))
    effects = controller.step(AttemptOverdue(number=1))
    assert asked(effects, Unbind) and [len(view.standby) for view in views(effects)] == [1]
    assert [bind.view for _, bind in asked(effects, Bind)] == [2]


def test_a_position_is_proposed_once_in_a_view() -> None:
    controller = attempting(plan=laid_out(3, ["1 2"]))
    controller.step(Move(stage=1, partition=0, slot=0, to="site-3"))
    controller.waiting = (Move(stage=1, partition=0, slot=0, to="site-9"),)  # It makes no view.
    [(_, bind)] = asked(controller.step(AttemptOverdue(number=1)), Bind)
    assert (bind.view, bind.position) == (1, 1)


def test_a_report_of_the_dead_that_waited_is_dropped() -> None:
    controller = attempting(plan=laid_out(3, ["1 2"]))
    effects = controller.step(Closed(node="site-2"))
    [view] = views(effects)
    assert controller.step(CopyReady(node="site-3", version=view.versions)) == []
    [view] = views(controller.step(Closed(node="site-3")))
    assert view.copies[1][0] == ("site-1", "site-2") and not controller.waiting


def test_a_change_may_be_aborted_until_it_is_committed() -> None:
    controller = attempting()
    controller.step(replace(CHANGE, number=2))
    controller.step(bound("site-1"))
    assert outcomes(controller.step(AbortChange(number=2))) == [(2, REFUSED)]
    effects = controller.step(AbortChange(number=1))
    assert outcomes(effects) == [(1, REFUSED)]
    assert asked(effects, Unbind) == [(RECEIVERS, Unbind(view=1, number=1, position=0))]
    assert_ignored(controller, AbortChange(number=1))


def test_a_request_is_known_by_its_number() -> None:
    controller = attempting()
    assert_ignored(controller, CHANGE)
    committed(controller)
    assert outcomes(controller.step(CHANGE)) == [(1, COMMITTED)]
    controller.step(replace(CHANGE, number=3))
    assert outcomes(controller.step(replace(CHANGE, number=2))) == [(2, SUPERSEDED)]


def test_an_edition_is_closed_when_all_its_members_have_passed_in_one_view() -> None:
    controller = attempting()
    committed(controller)
    assert controller.step(Passed(node="site-1", view=2, number=1)) == []
    assert controller.step(Passed(node="ingress", view=2, number=1)) == []  # It has no copy of the stage.
    controller.step(Slow(nodes=("site-2",)))  # A view: what was passed is stated anew.
    assert controller.step(Passed(node="site-2", view=2, number=1)) == []
    assert controller.step(Passed(node="site-2", view=3, number=1)) == []
    assert controller.step(Passed(node="egress", view=3, number=1)) == []  # What the sink takes may change there.
    effects = controller.step(Passed(node="site-1", view=3, number=1))
    assert outcomes(effects) == [(1, CLOSED)] and [e.closed for e in views(effects)[0].editions] == [True]
    assert outcomes(controller.step(CHANGE)) == [(1, CLOSED)]


def test_an_edition_stays_open_while_the_process_of_a_sink_is_dead() -> None:
    controller = attempting()
    committed(controller)
    controller.step(Closed(node="egress"))
    view = controller.view.number
    for node in ("site-1", "site-2"):
        assert outcomes(controller.step(Passed(node=node, view=view, number=1))) == []
    assert [edition.closed for edition in controller.view.editions] == [False]


def test_an_edition_stays_open_while_copies_may_go_back_before_it() -> None:
    controller = attempting()
    for node in RECEIVERS:
        controller.step(past(node, 4))
    at = controller.changes.attempt
    assert at is not None
    committed(controller, at.position)
    controller.step(CheckpointRetained(position=at.position - 1))
    for node in ("site-1", "site-2", "egress"):
        assert controller.step(Passed(node=node, view=2, number=1)) == []
    assert outcomes(controller.step(CheckpointRetained(position=at.position))) == [(1, CLOSED)]


def test_a_position_is_not_before_that_of_an_earlier_change_of_the_stage() -> None:
    plan = laid_out(2, ["1 2"], ["1 2"])
    view = replace(plan, number=4, editions=(Edition(number=1, stages=frozenset({1}), position=50),))
    for stages, position in (({1, 2}, 50), ({2}, 0)):
        controller = Controller(view)
        for node in view.nodes:
            controller.step(hello(view, node, 4))
        controller.step(Reconfigure(number=2, stages=frozenset(stages)))
        assert [bind.position for _, bind in asked(prepared(controller, 2), Bind)] == [position]


def test_a_closed_edition_goes_when_later_closed_ones_have_all_its_stages() -> None:
    def edition(number: int, *stages: int, is_closed: bool = True) -> Edition:
        return Edition(number=number, stages=frozenset(stages), position=number, closed=is_closed)

    last = edition(3, 2, is_closed=False)
    assert closed((edition(1, 1, 2), edition(2, 1), last), 2) == (edition(1, 1, 2), edition(2, 1), last)
    assert closed((edition(1, 1, 2), edition(2, 1), last), 3) == (edition(2, 1), replace(last, closed=True))


def test_a_restarted_controller_frees_what_the_last_one_has_bound() -> None:
    view = replace(PLAN, number=3)
    controller = Controller(view)
    assert_ignored(controller, bound("site-1", 5, view=3))  # It says so again after its hello.
    controller.step(hello(view, "site-1", 3))
    unbind = Unbind(view=3, number=1, position=5)
    assert controller.step(bound("site-1", 5, view=3)) == [Ask(to=("site-1",), message=unbind)]


@pytest.mark.parametrize(
    "message",
    [
        Prepared(node="site-2", number=1),
        Cannot(node="site-2", number=1, reason="no module m"),
        bound("site-2"),
        past("site-2", 1),
        Passed(node="site-2", view=1, number=1),
    ],
    ids=lambda message: type(message).__name__,
)
def test_what_the_dead_say_of_changes_is_fenced(message: Any) -> None:
    controller = running(PLAN)
    controller.step(Closed(node="site-2"))
    assert_fenced(controller, message, view=2)


# --- nodes ------------------------------------------------------------------------------------------


def site(view: View = FIRST, *later: View) -> Node:
    node = Node("site-1", [Pooler("site-1", stage, 99, step=4) for stage in (1, 2)])
    for each in (view, *later):
        node.step(each)
    return node


def bind(position: int, *stages: int, view: int = 1) -> Bind:
    return Bind(view=view, number=1, stages=frozenset(stages or (1,)), position=position)


def work(effects: list[Effect]) -> list[tuple[int, int, int]]:
    return [(e.after, e.upto, e.edition) for e in effects if isinstance(e, Consume)]


def test_a_bound_node_takes_nothing_after_the_position_and_goes_on_when_it_is_freed() -> None:
    node = site()
    assert sent(node.step(bind(3))) == [bound("site-1", 3)]
    assert work(node.step(data("ingress", 0, 1, 0, 8))) == [(0, 3, 0)]
    assert work(node.step(consumed(1, 3))) == []
    assert_ignored(node, Unbind(view=1, number=1, position=2))  # It is bound to another one.
    assert work(node.step(Unbind(view=1, number=1, position=3))) == [(3, 7, 0)]
    assert_ignored(node, Unbind(view=1, number=1, position=3))


def test_a_view_frees_a_node_and_no_step_goes_across_a_change() -> None:
    node = site()
    node.step(bind(3))
    node.step(data("ingress", 0, 1, 0, 8))
    node.step(consumed(1, 3))
    changed = replace(FIRST, number=2, editions=(Edition(number=1, stages=frozenset({1}), position=5),))
    assert work(node.step(changed)) == [(3, 5, 0)]
    assert work(node.step(consumed(1, 5))) == [(5, 8, 1)]


@pytest.mark.parametrize("stage", [1, 2])
def test_what_has_begun_or_was_received_from_a_target_counts(stage: int) -> None:
    node = site()
    node.step(data("ingress", 0, 1, 0, 8))  # Stage 1 is at work up to 4.
    node.step(data("site-1", 1, 1, 0, 2))  # Stage 2 has received up to 2.
    [answer] = sent(node.step(bind(0, stage)))
    assert (answer.reached, answer.step) == ((4, 4) if stage == 1 else (2, 2))
    assert not node.is_bound
    assert sent(node.step(bind(answer.reached, stage))) == [bound("site-1", answer.reached)]


def test_a_connected_node_repeats_what_it_is_bound_to_and_has_passed() -> None:
    editions = (Edition(number=1, stages=frozenset({1}), position=2),)
    node = site(replace(FIRST, editions=editions))
    node.step(data("ingress", 0, 1, 0, 8))
    assert sent(node.step(consumed(1, 2))) == []  # At the position, the state is still of the edition before.
    assert sent(node.step(consumed(1, 6))) == [Passed(node="site-1", view=1, number=1)]
    node.step(bind(9, 2))
    assert sent(node.step(Connected()))[1:] == [bound("site-1", 9), Passed(node="site-1", view=1, number=1)]


def test_a_sink_is_not_given_rows_of_both_editions_at_once_and_says_when_it_has_passed() -> None:
    stage, edge = len(FIRST.copies) - 1, len(FIRST.edges) - 1
    editions = (Edition(number=1, stages=frozenset({stage - 1}), position=2),)
    node = Node("egress", [Egress("egress", stage)])
    node.step(replace(FIRST, editions=editions))
    feeders = [FIRST.live_copies(stage - 1, p)[0] for p in range(len(FIRST.copies[stage - 1]))]
    for feeder in sorted(set(feeders)):
        effects = list(node.step(data(feeder, edge, 1, 0, 8)))
    [work] = [effect for effect in effects if isinstance(effect, Consume)]
    assert (work.after, work.upto, work.edition) == (0, 2, 0)
    effects = list(node.step(Consumed(stage=stage, cohort=0, upto=2, rows=0, body=None)))
    [work] = [effect for effect in effects if isinstance(effect, Consume)]
    assert (work.after, work.upto, work.edition) == (2, 8, 1) and sent(effects) == []
    effects = node.step(Consumed(stage=stage, cohort=0, upto=8, rows=0, body=None))
    assert sent(effects) == [Passed(node="egress", view=1, number=1)]


def test_a_node_states_anew_in_each_view_what_it_has_passed_but_not_while_a_copy_is_in_transfer_to_it() -> None:
    editions = (Edition(number=1, stages=frozenset({1}), position=2),)
    first = replace(SPARE, copies=(SPARE.copies[0], (("site-1",), ("site-2",)), *SPARE.copies[2:]), editions=editions)
    node = site(first)
    node.step(data("ingress", 0, 1, 0, 2))
    node.step(consumed(1, 2))
    node.step(data("ingress", 0, 1, 2, 3))
    assert sent(node.step(consumed(1, 3))) == [Passed(node="site-1", view=1, number=1)]
    assert sent(node.step(replace(first, number=2))) == [Passed(node="site-1", view=2, number=1)]
    moving = replace(first, number=3, standby=(standby(1, 1, 1, 0, "site-1", "site-2"),), versions=1)
    assert sent(node.step(moving)) == []
    # The copy comes from before the change: its state is of the edition before.
    effects = node.step(state("site-2", 1, 1, 2, view=3))
    assert [e.edition for e in effects if isinstance(e, Install)] == [0]
    assert [type(message) for message in sent(effects)] == [type(sent(effects)[0])]


def test_a_state_that_has_passed_the_change_is_of_its_edition() -> None:
    editions = (Edition(number=1, stages=frozenset({1}), position=2),)
    first = replace(SPARE, copies=(SPARE.copies[0], (("site-2",), ("site-2",)), *SPARE.copies[2:]), editions=editions)
    moving = replace(first, number=2, standby=(standby(1, 1, 1, 0, "site-1", "site-2"),), versions=1)
    effects = site(first, moving).step(state("site-2", 1, 1, 3, view=2))
    assert [e.edition for e in effects if isinstance(e, Install)] == [1]
    assert sent(effects)[-1] == Passed(node="site-1", view=2, number=1)


def test_a_state_that_waits_for_the_operator_counts_as_received() -> None:
    plan = replace(SPARE, copies=(SPARE.copies[0], (("site-1",), ("site-2",)), *SPARE.copies[2:]))
    away = replace(plan, number=2, copies=(SPARE.copies[0], (("site-3",), ("site-2",)), *SPARE.copies[2:]))
    node = site(plan)
    node.step(data("ingress", 0, 1, 0, 2))  # At work on a partition that leaves.
    moving = replace(away, standby=(standby(1, 1, 1, 0, "site-1", "site-2"),), versions=1)
    node.step(moving)
    node.step(state("site-2", 1, 1, 7, view=2))
    [answer] = sent(node.step(bind(3, view=2)))
    assert isinstance(answer, Past) and answer.reached == 7


def test_a_copy_that_is_installed_after_the_position_is_not_held() -> None:
    plan = replace(SPARE, copies=(SPARE.copies[0], (("site-2",), ("site-2",)), *SPARE.copies[2:]))
    moving = replace(plan, number=2, standby=(standby(1, 1, 1, 0, "site-1", "site-2"),), versions=1)
    node = site(plan, moving)
    assert sent(node.step(bind(3, view=2))) == [bound("site-1", 3, view=2)]
    node.step(state("site-2", 1, 1, 7, view=2))
    assert work(node.step(data("ingress", 0, 1, 7, 9, view=2))) == [(7, 9, 0)]


def test_a_node_has_its_shell_prepare_a_change_and_reports_what_comes_of_it() -> None:
    node = site()
    assert node.step(Prepare(number=1, stages=frozenset({1}), spec=b"code")) == [
        Rehearse(number=1, stages=frozenset({1}), spec=b"code")
    ]
    assert sent(node.step(Rehearsed(number=1))) == [Prepared(node="site-1", number=1)]
    cannot = Cannot(node="site-1", number=1, reason="no module m")
    assert sent(node.step(Rehearsed(number=1, problem="no module m"))) == [cannot]


def test_a_bound_ingress_keeps_what_its_source_gives_until_it_is_freed() -> None:
    node = Node("ingress", [Ingress("ingress", 99)])
    [pull] = node.step(FIRST)
    assert pull == Pull(after=0)
    node.step(Sourced(after=0, upto=4, rows=1, body=NO_ROWS))
    assert sent(node.step(bind(2))) == [bound("ingress", 4)]  # It has numbered up to 4.
    assert node.step(Sourced(after=4, upto=6, rows=1, body=NO_ROWS)) == []
    assert_refused(node, Sourced(after=4, upto=6, rows=1, body=NO_ROWS), by="Ingress ingress")
    [pull] = node.step(Unbind(view=1, number=1, position=4))
    assert pull == Pull(after=6)
    node.step(bind(9))
    assert node.step(Sourced(after=6, upto=9, rows=1, body=NO_ROWS)) == [Pull(after=9)]  # Up to the position.
    node.step(Sourced(after=9, upto=12, rows=1, body=NO_ROWS))
    assert node.step(replace(FIRST, number=2)) == [Pull(after=12)]
