"""The controller: the first view, and one for each death. Reference: 3.2.3.1, 3.4.3.3."""

from __future__ import annotations

from dataclasses import replace

from flux.protocols.controller import Controller
from flux.protocols.messages import Closed, Hello, Lost, Publish

from .refusing import assert_ignored, assert_refused
from .views import FIRST, PLAN, WITHOUT_1, WITHOUT_2


def running() -> Controller:
    controller = Controller(PLAN)
    for node in PLAN.nodes:
        controller.step(Hello(node=node))
    return controller


def test_the_first_view_comes_when_everyone_is_there() -> None:
    controller = Controller(PLAN)
    for node in PLAN.nodes[:-1]:
        assert controller.step(Hello(node=node)) == []
    assert controller.step(Hello(node=PLAN.nodes[-1])) == [Publish(view=FIRST)]


def test_a_death_is_announced_once() -> None:
    controller = running()
    assert controller.step(Closed(node="site-2")) == [Publish(view=WITHOUT_2)]
    assert_ignored(controller, Closed(node="site-2"))


def test_the_dead_need_not_be_told_and_deaths_add_up() -> None:
    controller = running()
    controller.step(Closed(node="site-1"))
    assert not WITHOUT_1.alive("site-1")
    effects = controller.step(Closed(node="site-2"))
    assert effects == [Lost(partitions=((1, 0), (2, 0)))]


def test_the_ends_have_one_copy() -> None:
    assert running().step(Closed(node="ingress")) == [Lost(partitions=((0, 0),))]
    assert running().step(Closed(node="egress")) == [Lost(partitions=((3, 0),))]


def test_a_death_while_setting_up_is_seen_by_whoever_started_it() -> None:
    assert_ignored(Controller(PLAN), Closed(node="site-1"))


def test_strangers_and_second_greetings_are_refused() -> None:
    controller = Controller(PLAN)
    assert_refused(controller, Hello(node="site-9"), by="Controller")
    controller.step(Hello(node="site-1"))
    assert_refused(controller, Hello(node="site-1"), by="Controller")
    assert_refused(running(), Hello(node="site-1"), by="Controller")
    assert_refused(running(), Closed(node="site-9"), by="Controller")
    assert_refused(running(), replace(FIRST), by="Controller")
