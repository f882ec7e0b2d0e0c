"""Dataflows that branch and join: a stage with several edges into it, or out of it. Reference: 3.4.1; rules 2, 7."""

from __future__ import annotations

from dataclasses import replace

from flux.protocols.egress import Egress
from flux.protocols.fh_cons import FhCons
from flux.protocols.fh_prod import FhProd
from flux.protocols.ingress import Ingress
from flux.protocols.messages import Attach, Block, Consume, Data, Effect, Pull, Released, Send, Sourced, View
from flux.protocols.node import Node
from flux.protocols.pooler import Pooler

from .refusing import assert_refused
from .views import DIAMOND, NO_ROWS, PAIR, ack, attach, consumed, data, merge, merged, standby

SPLIT, JOIN = 1, 3  # Stages of the diamond: SPLIT has two edges out of it, JOIN two into it.
LEFT, RIGHT, AUDIT = 2, 3, 5  # Edges: from stages 1 and 2 to JOIN, from SPLIT to the second egress.
WITHOUT_AUDIT = replace(DIAMOND, number=2, dead=frozenset({"audit"}))
AUDIT_AGAIN = replace(
    WITHOUT_AUDIT, number=3, nodes=(*DIAMOND.nodes, "audit-2"), copies=(*DIAMOND.copies[:5], (("audit-2",),))
)


def joining(view: View = DIAMOND) -> FhCons:
    """JOIN on site-1."""
    cons = FhCons("site-1", JOIN)
    cons.step(view)
    list(cons.add_cohort(0, view.held(JOIN, "site-1"), 0))
    return cons


def lane(cons: FhCons, edge: int, cohort: int = 0) -> int:
    """The stint of a cohort's lane on an edge."""
    [lane_id] = [lane_id for lane_id, lane in cons.lanes.items() if (lane.edge, lane.cohort) == (edge, cohort)]
    return lane_id


def receive(cons: FhCons, edge: int, upto: int, cohort: int = 0) -> None:
    lane_id = lane(cons, edge, cohort)
    cons.step(data(cons.lanes[lane_id].sender, edge, lane_id, cons.lanes[lane_id].upto, upto))


def sent(effects: list[Effect], kind: type) -> list[tuple[str, int]]:
    """To whom messages of a kind go, and on which edge."""
    return [(e.to, e.message.edge) for e in effects if isinstance(e, Send) and isinstance(e.message, kind)]


# Two edges into a stage.


def test_a_consumer_is_fed_on_each_edge_in_a_lane_of_its_own() -> None:
    cons = joining()
    assert {lane.edge: lane.sender for lane in cons.lanes.values()} == {LEFT: "site-1", RIGHT: "site-1"}
    assert len(cons.lanes) == 2


def test_the_frontier_is_the_least_over_all_edges() -> None:
    cons = joining()
    receive(cons, LEFT, 4)
    assert cons.frontier(0) == 0
    receive(cons, RIGHT, 3)
    assert cons.frontier(0) == 3


def test_what_is_consumed_in_one_step_says_of_which_edge_it_came() -> None:
    cons = joining()
    receive(cons, LEFT, 4)
    receive(cons, RIGHT, 3)
    assert [(frame.edge, frame.upto) for frame in cons.take(0, 3)] == [(LEFT, 4), (RIGHT, 3)]
    assert [(frame.edge, frame.upto) for frame in cons.pending[0]] == [(LEFT, 4)]


def test_a_frame_in_a_lane_of_another_edge_is_refused() -> None:
    cons = joining()
    assert_refused(cons, data("site-1", RIGHT, lane(cons, LEFT), 0, 2), by="FH-Cons of stage 3 on site-1")


def test_what_was_consumed_is_acknowledged_on_every_edge_to_every_copy() -> None:
    cons = joining()
    receive(cons, LEFT, 3)
    receive(cons, RIGHT, 3)
    cons.take(0, 3)
    cons.finish(0)
    told = list(cons.acknowledge())
    assert [(e.to, e.message) for e in told if isinstance(e, Send)] == [
        (site, ack("site-1", edge, 3)) for edge in (LEFT, RIGHT) for site in ("site-1", "site-2")
    ]


def test_take_over_attaches_each_edge_at_its_own_position() -> None:
    crossed = (("site-2", "site-1"),)
    view = replace(DIAMOND, copies=(DIAMOND.copies[0], crossed, crossed, *DIAMOND.copies[3:]))
    cons = joining(view)
    receive(cons, LEFT, 4)
    receive(cons, RIGHT, 3)
    asked = cons.step(replace(view, number=2, dead=frozenset({"site-2"})))
    attaches = [(e.to, e.message.edge, e.message.position) for e in asked if isinstance(e, Send)]
    assert attaches == [("site-1", LEFT, 4), ("site-1", RIGHT, 3)]
    assert cons.frontier(0) == 3


def test_the_death_of_the_producers_of_one_edge_holds_the_frontier_back() -> None:
    elsewhere = replace(
        DIAMOND,
        nodes=(*DIAMOND.nodes, "site-3", "site-4"),
        copies=(*DIAMOND.copies[:2], (("site-3", "site-4"),), *DIAMOND.copies[3:]),
    )
    cons = joining(elsewhere)
    receive(cons, RIGHT, 2)
    assert cons.step(replace(elsewhere, number=2, dead=frozenset({"site-3", "site-4"}))) == []
    receive(cons, LEFT, 9)
    assert cons.frontier(0) == 2


# A site gets a second partition of JOIN.

TWO_PARTITIONS = replace(
    DIAMOND,
    nodes=(*DIAMOND.nodes, "site-3"),
    copies=(*DIAMOND.copies[:3], (*PAIR, ("site-3", "site-2")), *DIAMOND.copies[4:]),
    standby=(standby(7, JOIN, 1, 0, "site-1", "site-2"),),
)


def fused() -> tuple[FhCons, list[Effect]]:
    cons = joining(TWO_PARTITIONS)
    list(cons.add_cohort(7, frozenset({1}), 0))
    return cons, list(cons.fuse(7, 0))


def test_lanes_are_merged_edge_by_edge() -> None:
    cons, merges = fused()
    assert [e.message for e in merges if isinstance(e, Send)] == [
        merge("site-1", LEFT, 3, 1),
        merge("site-1", RIGHT, 4, 2),
    ]
    assert [cons.lanes[lane_id].edge for lane_id in (1, 2, 3, 4)] == [LEFT, RIGHT, LEFT, RIGHT]
    assert cons.step(merged("site-1", LEFT, 3, 1)) == []
    assert sorted(cons.lanes) == [1, 2, 4]


def test_lanes_of_two_edges_are_never_merged() -> None:
    cons, _ = fused()
    assert_refused(cons, merged("site-1", LEFT, 3, 2), by="FH-Cons of stage 3 on site-1")


# Two edges out of a stage.


def splitting(bound_rows: int = 10) -> FhProd:
    """SPLIT on site-1."""
    prod = FhProd("site-1", SPLIT, bound_rows)
    prod.step(DIAMOND)
    prod.add_cohort(0, frozenset({0}), 0)
    return prod


def test_output_is_kept_until_the_consumers_of_every_edge_have_it() -> None:
    prod = splitting()
    assert set(prod.buffer.floors) == {(LEFT, "site-1"), (LEFT, "site-2"), (AUDIT, "audit")}
    prod.step(consumed(SPLIT, 2))
    for site in ("site-1", "site-2"):
        prod.step(ack(site, LEFT, 2))
    assert prod.buffer.rows == 1
    prod.step(ack("audit", AUDIT, 2))
    assert prod.buffer.rows == 0


def test_an_ack_on_one_edge_says_nothing_of_another() -> None:
    # The ingress has site-1 as a consumer on two edges.
    ingress = Ingress("ingress", 9)
    ingress.step(DIAMOND)
    ingress.step(Sourced(after=0, upto=1, rows=1, body=NO_ROWS))
    for site in ("site-1", "site-2"):
        assert ingress.step(ack(site, 0, 1)) == []
    assert ingress.step(ack("site-1", 1, 1)) == []
    assert ingress.step(ack("site-2", 1, 1)) == [Released(upto=1)]


def test_lanes_of_two_edges_may_have_the_same_stint() -> None:
    # Consumers number their attaches each for himself: a site that serves two stages does so twice.
    prod = splitting()
    prod.step(attach("site-2", LEFT, 1, 0))
    prod.step(attach("audit", AUDIT, 1, 0))
    assert sent(prod.step(consumed(SPLIT, 2)), Data) == [("site-2", LEFT), ("audit", AUDIT)]


def test_a_dead_egress_keeps_its_floor_and_loses_its_lanes_while_others_go_on() -> None:
    prod = splitting()
    prod.step(attach("site-2", LEFT, 1, 0))
    prod.step(attach("audit", AUDIT, 1, 0))
    prod.step(consumed(SPLIT, 2))
    prod.step(ack("audit", AUDIT, 1))
    assert prod.step(WITHOUT_AUDIT) == []
    # The others are fed, and nothing that the next audit needs is let go.
    assert sent(prod.step(consumed(SPLIT, 3)), Data) == [("site-2", LEFT)]
    for site in ("site-1", "site-2"):
        prod.step(ack(site, LEFT, 3, view=2))
    assert (prod.buffer.dropped, prod.buffer.rows) == (1, 2)


def test_the_egress_started_again_is_fed_what_was_kept_for_it() -> None:
    prod = splitting()
    prod.step(consumed(SPLIT, 2))
    prod.step(ack("audit", AUDIT, 1))
    prod.step(WITHOUT_AUDIT)
    prod.step(consumed(SPLIT, 3))
    prod.step(AUDIT_AGAIN)
    assert (AUDIT, "audit") not in prod.buffer.floors
    prod.step(ack("audit-2", AUDIT, 1, view=3))
    [fed] = prod.step(attach("audit-2", AUDIT, 1, 1, view=3))
    assert isinstance(fed, Send) and (fed.to, fed.message.after, fed.message.upto) == ("audit-2", 1, 3)


def test_an_egress_that_stays_away_holds_the_operator_when_the_pool_is_full() -> None:
    made = Pooler("site-1", SPLIT, 1)
    made.step(DIAMOND)
    made.step(data("ingress", 0, 1, 0, 1))
    made.step(consumed(SPLIT, 1))
    made.step(WITHOUT_AUDIT)
    for site in ("site-1", "site-2"):
        made.step(ack(site, LEFT, 1, view=2))
    assert made.step(data("ingress", 0, 1, 1, 2, view=2)) == []
    made.step(AUDIT_AGAIN)
    [work] = made.step(ack("audit-2", AUDIT, 1, view=3))
    assert isinstance(work, Consume) and work.upto == 2


# Whole nodes.


def test_a_node_hands_each_message_to_the_stage_at_its_end_of_the_edge() -> None:
    node = Node("site-1", [Pooler("site-1", stage, 9) for stage in (1, 2, 3)])
    asked = node.step(DIAMOND)
    assert sent(asked, Attach) == [("ingress", 0), ("ingress", 1), ("site-1", LEFT), ("site-1", RIGHT)]
    for effect in asked[2:]:
        assert node.step(effect.message) == []
    # JOIN takes a step when both stages before it have taken theirs.
    for edge, stage in ((0, 1), (1, 2)):
        [work] = node.step(data("ingress", edge, 1, 0, 2))
        assert isinstance(work, Consume) and work.stage == stage
    fed = [e.message for stage in (1, 2) for e in node.step(consumed(stage, 2)) if sent([e], Data)]
    assert [message.edge for message in fed] == [LEFT, RIGHT]
    assert node.step(replace(fed[0], bodies=(NO_ROWS,))) == []
    [work] = node.step(replace(fed[1], bodies=(NO_ROWS,)))
    assert isinstance(work, Consume) and (work.stage, work.upto) == (JOIN, 2)


def test_the_second_egress_is_an_egress_like_any_other() -> None:
    audit = Egress("audit", 5)
    [asked] = audit.step(DIAMOND)
    assert isinstance(asked, Send) and (asked.to, asked.message) == (
        "site-1",
        attach("audit", AUDIT, 1, 0, channels=(Block(producers=(0,), consumers=(0,)),)),
    )
    [work] = audit.step(data("site-1", AUDIT, 1, 0, 2))
    assert isinstance(work, Consume) and work.frames[0].edge == AUDIT


def test_the_ingress_feeds_every_edge_out_of_it() -> None:
    ingress = Ingress("ingress", 9)
    assert ingress.step(DIAMOND) == [Pull(after=0)]
    for edge in (0, 1):
        ingress.step(attach("site-1", edge, 1, 0))
    effects = ingress.step(Sourced(after=0, upto=1, rows=1, body=NO_ROWS))
    assert sent(effects, Data) == [("site-1", 0), ("site-1", 1)]
