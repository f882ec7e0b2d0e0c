"""The pooler: when the operator runs. Reference: 3.4, fig. 3.10."""

from __future__ import annotations

from flux.protocols.messages import Ack, Consume, Data, Send
from flux.protocols.pooler import Pooler

from .refusing import assert_refused
from .views import FIRST, WITHOUT_2, ack, attach, consumed, data

TITLE = "Pooler of stage 1 on site-1"


def pooler(bound_rows: int = 1) -> Pooler:
    made = Pooler("site-1", 1, bound_rows)
    made.step(FIRST)
    return made


def test_the_operator_runs_when_the_frontier_moves() -> None:
    (work,) = pooler().step(data("ingress", 0, 1, 0, 2))
    assert isinstance(work, Consume) and (work.stage, work.after, work.upto) == (1, 0, 2)


def test_the_operator_does_one_thing_at_a_time() -> None:
    made = pooler(bound_rows=9)
    made.step(data("ingress", 0, 1, 0, 2))
    assert made.step(data("ingress", 0, 1, 2, 5)) == []
    (*_, work) = made.step(consumed(1, 2))
    assert isinstance(work, Consume) and (work.after, work.upto) == (2, 5)


def test_output_is_fed_before_its_input_is_acknowledged() -> None:
    made = pooler()
    made.step(attach("site-1", 1, 1, 0))
    made.step(data("ingress", 0, 1, 0, 2))
    kinds = [type(e.message) for e in made.step(consumed(1, 2)) if isinstance(e, Send)]
    assert kinds == [Data, Ack]


def test_a_full_pool_holds_the_operator_and_an_ack_lets_it_go() -> None:
    made = pooler(bound_rows=1)
    made.step(data("ingress", 0, 1, 0, 1))
    made.step(consumed(1, 1))
    assert made.step(data("ingress", 0, 1, 1, 2)) == []
    assert made.step(ack("site-1", 1, 1)) == []
    (work,) = made.step(ack("site-2", 1, 1))
    assert isinstance(work, Consume) and work.upto == 2


def test_the_death_of_a_consumer_makes_room_too() -> None:
    made = pooler(bound_rows=1)
    made.step(data("ingress", 0, 1, 0, 1))
    made.step(consumed(1, 1))
    made.step(data("ingress", 0, 1, 1, 2))
    made.step(ack("site-1", 1, 1))
    (work,) = made.step(WITHOUT_2)
    assert isinstance(work, Consume) and work.upto == 2


def test_the_operator_answers_what_it_was_given() -> None:
    made = pooler()
    assert_refused(made, consumed(1, 1), by=TITLE)
    made.step(data("ingress", 0, 1, 0, 2))
    assert_refused(made, consumed(1, 1), by=TITLE)
