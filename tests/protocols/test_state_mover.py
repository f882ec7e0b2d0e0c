"""The state mover: what is asked for, what has come, and what is said of it. Reference: 3.2.4, 3.4.3.1; rules 3, 17."""

from __future__ import annotations

from dataclasses import replace

import pytest

from flux.protocols.messages import CopyFailed, CopyReady, Effect, Send, SendToController, State
from flux.protocols.state_mover import StateMover

from .refusing import assert_refused
from .views import SPARE, standby, state, want

TITLE = "State mover of stage 1 on site-3"
# Partitions 0 and 1 of stage 1 come to site-3 from two donors; something of stage 2 does too.
COMING = replace(
    SPARE,
    number=2,
    standby=(
        standby(4, 1, 0, 0, "site-3", "site-2"),
        standby(5, 1, 1, 0, "site-3", "site-1"),
        standby(6, 2, 0, 0, "site-3", "site-1"),
    ),
    versions=6,
)
WITHOUT_2 = replace(COMING, number=3, dead=frozenset({"site-2"}))
NOTHING_COMING = replace(SPARE, number=3, versions=6)
NONE_INSTALLED: tuple[int, ...] = ()


def asking() -> tuple[StateMover, list[Effect]]:
    """site-3 when it learns of the copies it is to hold, and what it asks for."""
    mover = StateMover("site-3", 1)
    assert mover.step(COMING) == []
    return mover, list(mover.ask(NONE_INSTALLED))


def came(version: int = 4, donor: str = "site-2", position: int = 7) -> State:
    return state(donor, 1, version, position, view=2)


# The site that is to hold the copies.


def test_each_copy_of_the_stage_is_asked_of_its_donor_once() -> None:
    mover, asked = asking()
    assert asked == [
        Send(to="site-2", message=want("site-3", 1, 4, view=2)),
        Send(to="site-1", message=want("site-3", 1, 5, view=2)),
    ]
    assert list(mover.ask(NONE_INSTALLED)) == []


def test_copies_on_their_way_elsewhere_are_not_asked_for() -> None:
    mover = StateMover("site-1", 1)
    mover.step(COMING)
    assert list(mover.ask(NONE_INSTALLED)) == []


def test_while_nothing_is_on_its_way_the_site_is_not_receiving() -> None:
    assert not StateMover("site-3", 1).is_receiving


def test_the_site_is_receiving_until_every_state_that_it_asked_for_is_taken_from_here() -> None:
    mover, _ = asking()
    assert mover.is_receiving
    mover.step(came(4, position=9))
    mover.step(came(5, donor="site-1", position=8))
    assert (mover.is_receiving, sorted(mover.arrived), mover.awaited) == (True, [4, 5], frozenset())
    mover.arrived.clear()
    assert not mover.is_receiving


def test_a_state_of_any_position_is_taken() -> None:
    # The donor may lag far: it need not work off its backlog first.
    mover, _ = asking()
    mover.step(came(4, position=0))
    assert mover.arrived[4].position == 0


def test_a_state_that_has_come_is_not_asked_for_again() -> None:
    mover, _ = asking()
    mover.step(came())
    mover.step(replace(COMING, number=3))
    assert list(mover.ask(NONE_INSTALLED)) == []


def test_a_state_that_is_installed_is_not_asked_for_again() -> None:
    mover = StateMover("site-3", 1)
    mover.step(COMING)
    assert [e.message.version for e in mover.ask((4,)) if isinstance(e, Send)] == [5]


def test_what_is_not_wanted_any_more_is_forgotten_and_refused_if_it_comes() -> None:
    mover, _ = asking()
    mover.step(NOTHING_COMING)
    assert not mover.awaited and not mover.is_receiving
    assert_refused(mover, came(5, donor="site-1"), by=TITLE)


@pytest.mark.parametrize(
    "message",
    [came(position=-1), came(donor="site-1"), state("site-2", 1, 5, 6, view=2)],
    ids=["of no position", "of another donor", "of the other's donor"],
)
def test_a_state_that_was_not_asked_for_like_this_is_refused(message: State) -> None:
    mover, _ = asking()
    assert_refused(mover, message, by=TITLE)


def test_a_state_that_comes_twice_is_refused() -> None:
    mover, _ = asking()
    mover.step(came())
    assert_refused(mover, came(), by=TITLE)


def test_a_state_for_another_site_is_refused() -> None:
    mover = StateMover("site-1", 1)
    mover.step(COMING)
    assert_refused(mover, came(), by="State mover of stage 1 on site-1")


# The donor dies (rule 17).


def test_a_copy_whose_donor_died_is_reported_and_the_others_are_waited_for() -> None:
    mover, _ = asking()
    mover.step(WITHOUT_2)
    assert list(mover.ask(NONE_INSTALLED)) == [SendToController(message=CopyFailed(node="site-3", version=4))]
    assert mover.is_receiving


def test_a_copy_whose_donor_died_before_it_was_asked_for_is_reported_and_not_asked_for() -> None:
    mover = StateMover("site-3", 1)
    mover.step(WITHOUT_2)
    failed, asked = mover.ask(NONE_INSTALLED)
    assert failed == SendToController(message=CopyFailed(node="site-3", version=4))
    assert isinstance(asked, Send) and asked.to == "site-1"


@pytest.mark.parametrize("installed", [(), (4,)], ids=["arrived", "installed"])
def test_a_copy_whose_state_came_before_its_donor_died_has_not_failed(installed: tuple[int, ...]) -> None:
    mover, _ = asking()
    mover.step(came())
    if installed:
        mover.arrived.clear()
    mover.step(WITHOUT_2)
    assert list(mover.ask(installed)) == []
    assert SendToController(message=CopyFailed(node="site-3", version=4)) not in list(mover.report(installed))


# A controller that was started again.


def test_a_controller_started_again_is_told_what_is_done_and_what_failed() -> None:
    mover, _ = asking()
    mover.step(WITHOUT_2)
    assert list(mover.report((5,))) == [
        SendToController(message=CopyReady(node="site-3", version=5)),
        SendToController(message=CopyFailed(node="site-3", version=4)),
    ]


def test_a_controller_started_again_is_told_nothing_of_what_is_still_on_its_way() -> None:
    mover, _ = asking()
    mover.step(came())
    assert list(mover.report(NONE_INSTALLED)) == []


def test_a_copy_that_is_live_is_not_reported() -> None:
    mover, _ = asking()
    mover.step(NOTHING_COMING)
    assert list(mover.report((4, 5))) == []


# The donor.


def donor() -> StateMover:
    mover = StateMover("site-2", 1)
    mover.step(COMING)
    return mover


def test_the_donor_notes_what_it_is_asked_for_until_it_is_not_wanted_any_more() -> None:
    mover = donor()
    assert mover.step(want("site-3", 1, 4, view=2)) == []
    assert list(mover.wanted) == [4]
    mover.step(NOTHING_COMING)
    assert not mover.wanted and not mover.given
    assert_refused(mover, want("site-3", 1, 4, view=2), by="State mover of stage 1 on site-2")


def test_the_donor_is_asked_for_a_copy_once() -> None:
    mover, asked = donor(), want("site-3", 1, 4, view=2)
    mover.step(asked)
    assert_refused(mover, asked, by="State mover of stage 1 on site-2")
    mover.wanted.clear()  # The pooler has cut it.
    assert_refused(mover, asked, by="State mover of stage 1 on site-2")
    mover.step(replace(COMING, number=3))
    assert_refused(mover, replace(asked, view=3), by="State mover of stage 1 on site-2")


@pytest.mark.parametrize("version", [7, 0, -1])
def test_a_version_that_was_never_begun_is_refused(version: int) -> None:
    assert_refused(donor(), want("site-3", 1, version, view=2), by="State mover of stage 1 on site-2")
    mover, _ = asking()
    assert_refused(mover, came(version), by=TITLE)


@pytest.mark.parametrize(
    "message",
    [want("site-1", 1, 4, view=2), want("site-3", 1, 5, view=2)],
    ids=["for another site", "of another donor"],
)
def test_the_donor_gives_what_is_its_own_to_the_site_it_is_for(message: object) -> None:
    assert_refused(donor(), message, by="State mover of stage 1 on site-2")
