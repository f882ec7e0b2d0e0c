"""The ends of a dataflow: the ingress and the egress. Reference: 3.2.1.2."""

from __future__ import annotations

from flux.protocols.egress import Egress
from flux.protocols.ingress import Ingress
from flux.protocols.messages import (
    Consume,
    Data,
    Effect,
    Frame,
    Pull,
    Released,
    Send,
    Sourced,
    SourceEnded,
)

from .refusing import assert_refused
from .views import FIRST, NO_ROWS, WITHOUT_1, ack, attach, consumed, data


def sourced(after: int, upto: int, rows: int = 1) -> Sourced:
    return Sourced(after=after, upto=upto, rows=rows, body=NO_ROWS)


def started(bound_rows: int = 1) -> Ingress:
    ingress = Ingress("ingress", bound_rows)
    assert ingress.step(FIRST) == [Pull(after=0)]
    return ingress


def ranges(effects: list[Effect]) -> list[tuple[str, int, int]]:
    return [
        (effect.to, effect.message.after, effect.message.upto)
        for effect in effects
        if isinstance(effect, Send) and isinstance(effect.message, Data)
    ]


def test_the_source_is_pulled_once_at_a_time() -> None:
    ingress = started(bound_rows=5)
    assert ingress.step(attach("site-1", 0, 1, 0)) == []
    assert ingress.step(sourced(0, 2))[-1] == Pull(after=2)


def test_rows_go_to_both_copies() -> None:
    ingress = started()
    ingress.step(attach("site-1", 0, 1, 0))
    ingress.step(attach("site-2", 0, 1, 0))
    assert ranges(ingress.step(sourced(0, 2))) == [("site-1", 0, 2), ("site-2", 0, 2)]


def test_a_full_pool_stops_the_source_until_every_copy_is_through() -> None:
    ingress = started(bound_rows=1)
    assert ingress.step(sourced(0, 1)) == []
    assert ingress.step(ack("site-1", 0, 1)) == []
    assert ingress.step(ack("site-2", 0, 1)) == [Released(upto=1), Pull(after=1)]


def test_a_failed_copy_is_waited_for_no_longer() -> None:
    ingress = started(bound_rows=1)
    ingress.step(sourced(0, 1))
    ingress.step(ack("site-2", 0, 1))
    assert ingress.step(WITHOUT_1) == [Released(upto=1), Pull(after=1)]


def test_an_ended_source_is_not_pulled_again() -> None:
    ingress = started()
    assert ingress.step(SourceEnded()) == []
    assert ingress.step(attach("site-1", 0, 1, 0)) == []
    assert_refused(ingress, SourceEnded(), by="Ingress")
    assert_refused(ingress, sourced(0, 1), by="Ingress")


def test_rows_that_do_not_follow_the_pull_are_refused() -> None:
    ingress = started()
    assert_refused(ingress, sourced(1, 2), by="Ingress")
    assert_refused(ingress, sourced(0, 0), by="Ingress")


def test_rows_nobody_asked_for_are_refused() -> None:
    assert_refused(Ingress("ingress", 1), sourced(0, 1), by="Ingress")
    assert_refused(Ingress("ingress", 1), SourceEnded(), by="Ingress")


def test_the_egress_gives_the_sink_what_is_certain_and_acknowledges_what_is_durable() -> None:
    egress = Egress("egress", 3)
    egress.step(FIRST)
    frame = Frame(after=0, upto=2, body=NO_ROWS)
    assert egress.step(data("site-1", 2, 1, 0, 2)) == [Consume(stage=3, after=0, upto=2, frames=(frame,))]
    # While the sink is busy, more may come; it is given when the sink is through.
    assert egress.step(data("site-1", 2, 1, 2, 3)) == []
    effects = egress.step(consumed(3, 2))
    assert [effect.to for effect in effects if isinstance(effect, Send)] == ["site-1", "site-2"]
    assert isinstance(effects[-1], Consume) and (effects[-1].after, effects[-1].upto) == (2, 3)


def test_the_sink_answers_what_it_was_given() -> None:
    egress = Egress("egress", 3)
    egress.step(FIRST)
    assert_refused(egress, consumed(3, 0), by="Egress")
    egress.step(data("site-1", 2, 1, 0, 2))
    assert_refused(egress, consumed(3, 1), by="Egress")
    egress.step(consumed(3, 2))
    assert_refused(egress, consumed(3, 2), by="Egress")
