"""Every kind of process is killed at every crash point, under load: nothing is lost, repeated or reordered.

The points of all kinds of process are met in one long run (`gauntlet`), several of them at a time; it survives each and
is made whole again. Those that need a fault of their own are met in the runs behind it. Before them is a run that meets
each kind of process behind each kind of effect: that one is among the tests of every day.

The run of every day takes most of a minute: about forty deaths, one after the other.
"""

from __future__ import annotations

import os
import signal
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

import flux
from flux.driver.processes import Process
from flux.plan.plan import CONTROLLER, EGRESS, INGRESS
from flux.site.crash_points import SITE, crash_points
from flux.site.shell import FENCED

from .foreigner import Foreigner
from .ordeal import PATIENCE_S, Ordeal, Point, ordeal
from .relay import relayed

# A controller whose journal has lost its end ends the run (test_lost_tails.py): its death changes nothing.
OF_A_LOST_TAIL: set[Point] = {(CONTROLLER, "before-views-lost"), (CONTROLLER, "after-views-lost")}
# Only a run that is balanced comes to these, and only with a slow site (test_slow_sites.py).
OF_BALANCE: set[Point] = {(CONTROLLER, f"step-{what}") for what in ("copy-costs", "slow", "retire")}
EVERY: set[Point] = {(kind, point) for kind, points in crash_points().items() for point in points}
# A change of code leads to these (test_changes_and_deaths.py).
SAID_OF_CHANGES = ("ask", "rehearse", "report-change", "reconfigure", "abort-change", "attempt-overdue")
SAID_OF_CHANGES += ("checkpoint-retained", "prepared", "cannot", "bound", "past", "passed")
OF_CHANGES: set[Point] = {(k, point) for k, point in EVERY if point.endswith(tuple(f"-{s}" for s in SAID_OF_CHANGES))}
ALL = EVERY - OF_A_LOST_TAIL - OF_BALANCE - OF_CHANGES
# Points that a fault of another kind leads to.
OF_A_LOST_DONOR: set[Point] = {
    (SITE, "before-send-to-controller-copy-failed"),
    (SITE, "after-send-to-controller-copy-failed"),
    (CONTROLLER, "step-copy-failed"),
}
OF_SILENCE: Point = (CONTROLLER, "step-suspected")
OF_A_CUT: Point = (CONTROLLER, "step-link-down")
OF_A_LOSS: set[Point] = {(CONTROLLER, "before-lost"), (CONTROLLER, "after-lost")}
OF_THE_END: Point = (INGRESS, "step-end-of-source")
# A node complains of what no process of this release sends: by whom each kind of node is told such a thing.
TOLD_BY = {INGRESS: "site-1", SITE: INGRESS, EGRESS: INGRESS}
BEFORE_A_COMPLAINT: set[Point] = {(kind, "before-report-refused") for kind in TOLD_BY}
AFTER_A_COMPLAINT: set[Point] = {(kind, "after-report-refused") for kind in TOLD_BY}
OF_A_FOREIGNER = BEFORE_A_COMPLAINT | AFTER_A_COMPLAINT
ELSEWHERE = {*OF_A_LOST_DONOR, OF_SILENCE, OF_A_CUT, *OF_A_LOSS, OF_THE_END, *OF_A_FOREIGNER}
BY_ITSELF = ALL - ELSEWHERE
BEHIND_EACH_EFFECT = {(kind, point) for kind, point in BY_ITSELF if point.startswith(("after-", "sent-"))}

IN_A_ROW = 20
ROUNDS_MAX = 120
TRIES_MAX = 5  # For a fault whose parts must come together.


def is_always_met(point: str) -> bool:
    """Whether processes come to a point as long as rows flow."""
    return point.endswith(("data", "ack", "consume", "consumed"))


def needs_a_controller_that_is_new(point: str) -> bool:
    return point.endswith(("hello", "connected", "resend"))


def go_through(under: Ordeal, points: set[Point]) -> None:
    """Kill at points that the run comes to by itself or when a site is emptied; what did not count, again."""
    left = {
        kind: deque(point for point in all_points if (kind, point) in points)
        for kind, all_points in crash_points().items()
    }
    for _ in range(ROUNDS_MAX):
        ends = [kind for kind in (INGRESS, EGRESS, CONTROLLER) if left[kind]]
        for kind in ends:
            if not under.is_armed(kind):
                under.arm(kind, left[kind][0])
        if left[SITE]:
            strike_a_site(under, left[SITE][0])
        else:
            under.begin_drain()
        if any(needs_a_controller_that_is_new(left[kind][0]) for kind in ends):
            under.run.kill(CONTROLLER)
        under.settle()
        for kind, points in left.items():
            if points and (kind, points[0]) in under.met:
                points.popleft()
            else:
                points.rotate(-1)  # It waits for its next turn.
                under.disarm(kind)
        if not any(left.values()):
            return
    raise AssertionError(f"nobody came to these crash points in {ROUNDS_MAX} rounds: {left}")


def strike_a_site(under: Ordeal, point: str) -> None:
    if is_always_met(point):
        under.arm(SITE, point)  # Not one site by name: consumers may take all they need from other copies than its.
        under.watch.until(lambda: not under.is_armed(SITE), f"a site to come to {point}")
    elif needs_a_controller_that_is_new(point):
        holder = under.watch.holders()[-1]
        under.arm(holder, point)
        under.run.kill(CONTROLLER)
        under.watch.until(lambda: not under.is_armed(SITE), f"{holder} to come to {point}")
    else:
        leaving = under.begin_drain()
        under.arm(SITE, point)
        under.watch.until(lambda: leaving.gone or not under.is_armed(SITE), f"a site to come to {point}")
        under.disarm(SITE)  # Two sites at once may be too many.


@contextmanager
def a_run(tmp_path_factory: pytest.TempPathFactory, **settings: Any) -> Iterator[Ordeal]:
    with (
        pytest.MonkeyPatch.context() as patch,
        ordeal(tmp_path_factory.mktemp("ordeal"), patch, **settings) as under,
    ):
        yield under


def test_a_run_survives_a_kill_behind_each_kind_of_effect_and_a_site_that_was_stopped(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    with a_run(tmp_path_factory) as under:
        go_through(under, BEHIND_EACH_EFFECT)
        stop_and_wake(under)
        under.settle()
        under.finish()
    assert under.met == BEHIND_EACH_EFFECT
    assert under.deaths_that_counted >= IN_A_ROW


@pytest.fixture(scope="module")
def gauntlet(tmp_path_factory: pytest.TempPathFactory) -> Ordeal:
    with a_run(tmp_path_factory) as under:
        go_through(under, BY_ITSELF)
        under.finish()
    return under


@pytest.mark.gauntlet
def test_a_run_survives_a_kill_at_every_crash_point_one_after_the_other(gauntlet: Ordeal) -> None:
    assert gauntlet.met == BY_ITSELF
    assert gauntlet.deaths_that_counted >= IN_A_ROW


@pytest.fixture(scope="module")
def lost_donors(tmp_path_factory: pytest.TempPathFactory) -> Ordeal:
    """A donor dies before it has given the state; then who was to get it, or the controller, which hears of it."""
    with a_run(tmp_path_factory) as under:
        for kind, point in sorted(OF_A_LOST_DONOR):
            for _ in range(TRIES_MAX):
                if (kind, point) not in under.met:
                    lose_a_donor(under, kind, point)
        under.finish()
    return under


def lose_a_donor(under: Ordeal, kind: str, point: str) -> None:
    """Who waits for the state must hold nothing yet: what it holds might be the donor's partner."""
    holders = under.watch.holders()
    spare = [site for site in under.watch.sites() if site not in holders]
    for who in spare if kind == SITE else [kind]:
        under.arm(who, point)
    under.arm(SITE, "before-send-state")
    leaving = under.run._begin_drain(holders[0])
    under.watch.until(lambda: under.is_taken(point) or leaving.gone, f"{kind} to come to {point}")
    under.disarm(SITE)
    under.disarm(kind)
    under.bury()
    under.replace()  # Donor and spare sites are gone: what leaves the drained one needs a place to go.
    under.settle()


@pytest.mark.gauntlet
def test_a_donor_and_who_waits_for_its_state_may_die(lost_donors: Ordeal) -> None:
    assert lost_donors.met >= OF_A_LOST_DONOR


@pytest.fixture(scope="module")
def silence(tmp_path_factory: pytest.TempPathFactory) -> Ordeal:
    """Sites are stopped past the detection time and wake up; the first time the controller dies of it, too."""
    with a_run(tmp_path_factory) as under:
        under.arm(*OF_SILENCE)
        for _ in range(2):
            stop_and_wake(under)
            under.settle()
        under.finish()
    return under


def stop_and_wake(under: Ordeal) -> None:
    victim = under.process(under.watch.holders()[0])
    assert victim.pid is not None
    os.kill(victim.pid, signal.SIGSTOP)
    under.watch.until(lambda: not under.watch.view().alive(victim.node), f"{victim.node} to be taken for dead")
    os.kill(victim.pid, signal.SIGCONT)
    under.watch.until(lambda: victim.gone, f"{victim.node} to learn that it is out")
    assert victim.exited == FENCED
    assert under.counts(victim)


@pytest.mark.gauntlet
def test_a_site_that_was_stopped_too_long_ends_when_it_wakes_up(silence: Ordeal) -> None:
    assert silence.met == {OF_SILENCE}


@pytest.fixture(scope="module")
def the_end(tmp_path_factory: pytest.TempPathFactory) -> Ordeal:
    """Two sites that share no partition die at once; and the ingress, when the source has ended.

    On a busy machine the sites may have consumed nearly all when the ingress comes to the end; then it is tried again.
    """
    for _ in range(TRIES_MAX):
        with a_run(tmp_path_factory, sites=4) as under:
            victims = kill_at_once(under, "site-1", "site-3")
            under.watch.wait_whole()
            assert all(map(under.counts, victims))
            under.arm(*OF_THE_END)
            under.finish()
        if under.met:
            break
    return under


def kill_at_once(under: Ordeal, *sites: str) -> list[Process]:
    """Kill sites of a run under load; return them when they are gone."""
    under.await_load(*sites)
    victims = [under.process(site) for site in sites]
    for victim in victims:
        victim.kill()
    under.watch.until(lambda: all(victim.gone for victim in victims), f"{sites} to be gone")
    return victims


def test_two_sites_may_die_at_once_and_the_ingress_at_the_end(the_end: Ordeal) -> None:
    assert the_end.met == {OF_THE_END}
    assert the_end.deaths_that_counted == 3


@pytest.fixture(scope="module")
def loss(tmp_path_factory: pytest.TempPathFactory) -> Ordeal:
    """Both copies of a partition are lost, and the controller dies as it is about to say so, and as it has."""
    with a_run(tmp_path_factory) as under:
        for kind, point in OF_A_LOSS:
            under.arm(kind, point)
        victims = kill_at_once(under, "site-1", "site-2")
        with pytest.raises(flux.DataLost):
            under.run.wait(timeout=PATIENCE_S)
        assert all(map(under.counts, victims))
        under.look()
    return under


@pytest.mark.gauntlet
def test_data_lost_is_told_also_if_the_controller_dies_of_it(loss: Ordeal) -> None:
    assert loss.met == OF_A_LOSS


@pytest.fixture(scope="module")
def complaints(tmp_path_factory: pytest.TempPathFactory) -> set[Point]:
    """A node is told what makes no sense, and dies as it is about to complain of that, and as it has."""
    met: set[Point] = set()
    for kind, point in sorted(OF_A_FOREIGNER):
        with (
            pytest.MonkeyPatch.context() as patch,
            relayed(patch, INGRESS, EGRESS if kind == EGRESS else "site-1") as relay,
        ):
            foreigner = Foreigner(relay, back=kind == INGRESS)
            with a_run(tmp_path_factory, relay=relay) as under:
                under.arm("site-1" if kind == SITE else kind, point)
                # It is held until the view is there in which it was said. Two, so that it comes before that.
                foreigner.speak(TOLD_BY[kind], under.watch.view().number + 2)
                if (kind, point) in BEFORE_A_COMPLAINT:
                    outlive_the_complaint(under, kind)
                else:
                    end_by_the_complaint(under)
        met |= under.met
    return met


def outlive_the_complaint(under: Ordeal, kind: str) -> None:
    """Who was told dies before it has said so, and its successor knows nothing of it: the run goes on."""
    for _ in range(2):
        under.run.add_site()
    under.watch.until(lambda: not under.is_armed(kind), f"{kind} to complain")
    under.settle()
    under.finish()


def end_by_the_complaint(under: Ordeal) -> None:
    def go_on() -> None:
        for _ in range(2):
            under.run.add_site()
        under.run.wait(timeout=PATIENCE_S)

    with pytest.raises(flux.FluxError, match=r"refuses (Ack|Stopped)\(.*this is a bug or a foreign process"):
        go_on()
    under.look()


@pytest.mark.gauntlet
def test_who_complains_of_a_foreign_message_may_die_of_it(complaints: set[Point]) -> None:
    assert complaints == OF_A_FOREIGNER


@pytest.fixture(scope="module")
def cut(tmp_path_factory: pytest.TempPathFactory) -> Ordeal:
    """The connection of two sites breaks, and both live; the controller dies when it hears of it."""
    with (
        pytest.MonkeyPatch.context() as patch,
        relayed(patch, "site-1", "site-2") as relay,
        a_run(tmp_path_factory, relay=relay) as under,
    ):
        under.watch.wait_whole()
        under.arm(*OF_A_CUT)
        relay.cut_for_good()
        one_is_removed(under)
        under.settle()
        under.finish()
    return under


def one_is_removed(under: Ordeal) -> None:
    pair = [under.process(site) for site in ("site-1", "site-2")]
    under.watch.until(lambda: any(process.gone for process in pair), "one of two that cannot reach each other to end")
    [victim] = [process for process in pair if process.gone]
    assert victim.exited == FENCED
    assert under.counts(victim)


@pytest.mark.gauntlet
def test_of_two_sites_whose_connection_is_cut_one_is_removed(cut: Ordeal) -> None:
    assert cut.met == {OF_A_CUT}


@pytest.mark.gauntlet
def test_of_two_sites_whose_connection_is_a_black_hole_one_is_removed(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    with relayed(monkeypatch, "site-1", "site-2") as relay, a_run(tmp_path_factory, relay=relay) as under:
        relay.swallow()
        one_is_removed(under)
        under.settle()
        under.finish()


@pytest.mark.gauntlet
def test_every_crash_point_was_met(
    gauntlet: Ordeal,
    lost_donors: Ordeal,
    silence: Ordeal,
    the_end: Ordeal,
    loss: Ordeal,
    complaints: set[Point],
    cut: Ordeal,
) -> None:
    met = complaints.union(*(under.met for under in (gauntlet, lost_donors, silence, the_end, loss, cut)))
    print(f"{len(met)} of {len(ALL)} crash points were met")
    assert met == ALL, "a new message or effect needs a fault that leads to it"
