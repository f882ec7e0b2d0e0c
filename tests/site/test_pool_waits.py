"""For how long a process waits because a pool is full, and for which edge."""

from __future__ import annotations

from unittest.mock import patch

import pytest

from flux.protocols.fh_cons import LaneIn
from flux.protocols.ingress import Ingress
from flux.protocols.inspection import blocking_edges
from flux.protocols.messages import Block, OutputRun
from flux.protocols.node import Node
from flux.protocols.pooler import Pooler
from flux.site.pool_waits import PoolWaits
from tests.site.test_work_meter import COHORT, plan_of

POOL_ROWS = 10
TO_SLOW, TO_FAST = (2, "site-2"), (1, "egress")


def fill(machine: Pooler | Ingress, rows: int = POOL_ROWS) -> None:
    """Put rows into its pool, of which one consumer has a part."""
    buffer = machine.prod.buffer
    for dest in (TO_FAST, TO_SLOW):
        buffer.entitle(dest)
    for position in range(1, rows + 1):
        buffer.put(OutputRun(after=position - 1, upto=position, rows=1, body=None))
    buffer.ack(TO_FAST, min(3, rows))


def site() -> tuple[Node, Pooler]:
    """A site whose only stage has consumed all that it has received."""
    pooler = Pooler("site-1", 1, POOL_ROWS)
    pooler.cons.view = plan_of().view()
    list(pooler.cons.add_cohort(0, COHORT, 0))
    return Node("site-1", [pooler]), pooler


def receive(pooler: Pooler) -> None:
    """Give it input up to position 5."""
    channels = (Block(producers=(0,), consumers=tuple(COHORT)),)
    pooler.cons.lanes = {1: LaneIn(edge=0, cohort=0, sender="ingress", channels=channels, upto=5)}


def test_a_stage_is_blocked_by_the_edge_whose_consumer_needs_most_of_a_full_pool() -> None:
    node, pooler = site()
    fill(pooler)
    assert blocking_edges(node) == (), "it has no input"
    receive(pooler)
    assert blocking_edges(node) == ((1, 2),)
    pooler.prod.buffer.ack(TO_SLOW, 5)
    assert blocking_edges(node) == (), "there is room"


def test_an_ingress_is_blocked_when_it_may_not_pull() -> None:
    ingress = Ingress("ingress", POOL_ROWS)
    node = Node("ingress", [ingress])
    assert blocking_edges(node) == ()
    fill(ingress)
    assert blocking_edges(node) == ((0, 2),)
    ingress.ended = True
    assert blocking_edges(node) == (), "the source has ended"


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_waits_are_counted_while_they_last_and_only_while_the_loop_has_nothing_to_do(clock: Clock) -> None:
    node, pooler = site()
    fill(pooler)
    receive(pooler)
    waits = PoolWaits()
    with patch("time.monotonic", clock):
        waits.begin(node)
        clock.now_s += 2
        assert waits.totals() == ((1, 2, 2.0),), "a report in the middle of a wait has the time up to now"
        clock.now_s += 1
        waits.end()
        clock.now_s += 10
        assert waits.totals() == ((1, 2, 3.0),)


def test_an_ingress_waits_only_while_it_has_rows_of_a_source(clock: Clock) -> None:
    ingress = Ingress("ingress", POOL_ROWS)
    fill(ingress)
    node, waits = Node("ingress", [ingress]), PoolWaits()
    with patch("time.monotonic", clock):
        waits.begin(node)
        clock.now_s += 5
        with waits.source_rows_at_hand():
            clock.now_s += 2
        clock.now_s += 5
        waits.end()
    assert waits.totals() == ((0, 2, 2.0),)
