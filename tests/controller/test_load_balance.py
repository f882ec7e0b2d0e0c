"""The balance of a run in its controller: what reaches the balancer, what is carried out, and what is said of it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from flux.controller import load_balance
from flux.controller.load_balance import LoadBalance
from flux.plan import Availability, Plan, Segment
from flux.protocols.balance_messages import CopyCosts, Move, Retire, Slow, StageWork, Work
from flux.protocols.balancer import Balancer
from flux.protocols.controller import Controller
from flux.protocols.messages import CopyReady, Hello, View
from flux.wire import reports

SEGMENT = Segment(columns=("n",), partitions=4, availability="none", steps=())
PLAN = Plan(name="even", segments=(SEGMENT,), sites=2, standby=0, pool_rows=100)


@dataclass(frozen=True)
class FoundSite:
    name: str
    speed: float
    is_measured: bool = True


@dataclass(frozen=True)
class Found:
    sites: tuple[FoundSite, ...]

    def gain(self, moves: Any) -> float:
        return 0.25


@dataclass
class Guess:
    """An estimator that knows what a test says."""

    marked: set[str] = field(default_factory=set)
    speeds: tuple[FoundSite, ...] = ()

    def observe(self, work: Work, at_s: float) -> Guess:
        return self

    def relocate(self, *of_view: Any) -> Guess:
        return self

    def slow(self) -> frozenset[str]:
        return frozenset(self.marked)

    def greatest_time_s(self) -> float:
        return 1.0

    def statistics(self, facts: Any) -> Found:
        return Found(self.speeds)


@dataclass
class Calls:
    """A policy that a function stands for."""

    answer: Callable[[Any], Any]
    count: int = 0

    def plan(self, statistics: Any) -> Any:
        self.count += 1
        return self.answer(statistics)


@dataclass
class Setup:
    """A controller's machine with its balance; moves and slow marks change the view as in the process."""

    answer: Callable[[Any], Any] = lambda statistics: ()
    guess: Guess = field(default_factory=Guess)
    said: list[tuple[int, str]] = field(default_factory=list)
    reported: list[reports.Report] = field(default_factory=list)
    moves: list[Move] = field(default_factory=list)
    costs: list[CopyCosts] = field(default_factory=list)
    slows: list[Slow] = field(default_factory=list)
    numbers: dict[str, int] = field(default_factory=dict)
    availability: Availability = "none"
    retires: bool = False

    def __post_init__(self) -> None:
        segment = replace(SEGMENT, availability=self.availability)
        self.machine = Controller(replace(PLAN, segments=(segment,)).view())
        for node in self.machine.view.nodes:
            ends = {"ingress": (0,), "egress": (2,)}.get(node, ())
            self.machine.step(Hello(node=node, view=0, ends=ends))
        assert self.view.number == 1
        self.policy = Calls(self.answer)
        balancer = Balancer(self.view, self.guess, retires=self.retires)  # type: ignore[arg-type]
        self.balance = LoadBalance(
            balancer,
            self.policy,
            1,
            self.move,
            self.control,
            self.reported.append,
            lambda level, text: self.said.append((level, text)),
        )

    @property
    def view(self) -> View:
        return self.machine.view

    def move(self, move: Move) -> int | None:
        self.moves.append(move)
        before = self.view.versions
        self.machine.step(move)
        self.balance.on_view(self.view)
        return self.view.versions if self.view.versions > before else None

    def control(self, message: Slow | Retire | CopyCosts) -> None:
        if isinstance(message, CopyCosts):
            self.costs.append(message)
            return
        if isinstance(message, Slow):
            self.slows.append(message)
        before = self.view
        self.machine.step(message)
        if self.view is not before:
            self.balance.on_view(self.view)

    def work(self, node: str, **given: Any) -> None:
        self.numbers[node] = self.numbers.get(node, 0) + 1
        fields = {"elapsed_s": 0.1, "busy_s": 0.05, "view": self.view.number, "number": self.numbers[node]}
        self.balance.take(Work(node=node, **(fields | given)))

    def of(self, kind: type[Any]) -> list[Any]:
        return [report for report in self.reported if isinstance(report, kind)]

    def texts(self, level: int) -> list[str]:
        return [text for at, text in self.said if at == level]


MOVE = Move(stage=1, partition=0, slot=0, to="site-2")


def test_a_move_of_the_policy_is_carried_out_and_reported_with_its_reason() -> None:
    setup = Setup(lambda statistics: [MOVE])

    setup.work("site-1")

    assert setup.moves == [MOVE] and setup.view.standby[0].node == "site-2"
    [begun] = setup.of(reports.CopiesBegun)
    assert begun.versions == (setup.view.standby[0].version,) and begun.round is not None
    first, *_ = setup.of(reports.RoundChanged)
    assert (first.round, first.moves, first.gain_expected, first.ended) == (begun.round, 1, 0.25, "")
    [text] = setup.texts(logging.INFO)
    assert text.startswith("balance round begins: round=1 moves=1 gain_expected=25.0% why=")


def test_a_round_that_ends_between_two_ticks_took_the_time_that_passed() -> None:
    setup = Setup(lambda statistics: [MOVE])
    setup.work("site-1")

    setup.machine.step(CopyReady(node="site-2", version=setup.view.standby[0].version))
    setup.balance.on_view(setup.view)

    [only] = setup.balance.balancer.rounds
    assert only.ended == "done" and only.took_s is not None and only.took_s > 0


@pytest.mark.parametrize(
    ("took_s", "warnings"),
    [([0.2, 0.2, 0.2, 0.2, 0.2], 1), ([0.2, 0.2, 0.0, 0.2, 0.2], 0), ([0.0, 0.2, 0.2, 0.2], 1)],
)
def test_a_policy_that_takes_long_each_time_is_warned_of_once(
    took_s: list[float], warnings: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = [100.0]
    monkeypatch.setattr(load_balance.time, "monotonic", lambda: now_s[0])
    plans = iter(took_s)

    def plan(statistics: Any) -> list[Move]:
        now_s[0] += next(plans)
        return []

    setup = Setup(plan)
    for _ in took_s:
        setup.work("site-1")

    texts = setup.texts(logging.WARNING)
    assert len(texts) == warnings
    assert all(text.startswith("plans of moves hold up the controller: took_s=0.20 policy=") for text in texts)


def test_the_policy_is_not_asked_while_a_copy_is_in_transfer() -> None:
    setup = Setup(lambda statistics: [MOVE])
    setup.work("site-1")
    setup.work("site-2")
    assert setup.policy.count == 1


def test_a_policy_that_raises_is_named_once_and_the_run_is_not_balanced_any_more() -> None:
    def plan_nothing(statistics: Any) -> Any:
        raise KeyError("no such site")

    setup = Setup(plan_nothing)
    for _ in range(3):
        setup.work("site-1")

    assert setup.policy.count == 1 and not setup.balance.is_on and setup.moves == []
    [text] = setup.texts(logging.ERROR)
    assert "raised KeyError: 'no such site'" in text and "The run goes on" in text
    assert f"{__file__}:{plan_nothing.__code__.co_firstlineno + 1}" in text
    assert setup.of(reports.SiteLoads)[-1].phase == "off: the policy does not work"


@pytest.mark.parametrize("answer", [7, ["site-1"], "site-1", [None]])
def test_an_answer_that_is_not_moves_is_named_too(answer: Any) -> None:
    setup = Setup(lambda statistics: answer)
    setup.work("site-1")
    [text] = setup.texts(logging.ERROR)
    assert "PlanError" in text and "returns moves" in text and not setup.balance.is_on


def test_without_an_answer_nothing_moves() -> None:
    setup = Setup(lambda statistics: None)
    setup.work("site-1")
    assert setup.balance.is_on and setup.moves == [] and setup.said == []


def test_a_slow_mark_is_carried_out_said_and_shown() -> None:
    setup = Setup(availability="pairs")
    setup.guess.marked.add("site-2")
    setup.work("site-1", lags=(("site-1", 0.0), ("site-2", 1.0)))
    setup.work("site-2")
    assert setup.slows == [Slow(nodes=("site-2",))]
    [text] = setup.texts(logging.WARNING)
    assert text.startswith("site is slow, and no other waits for it.") and text.endswith("add a site: site=site-2")

    setup.balance._report_loads()
    loads = {load.site: load for load in setup.of(reports.SiteLoads)[-1].sites}
    assert (loads["site-2"].slow, loads["site-1"].slow) == (True, False)

    setup.guess.marked.clear()
    setup.work("site-2")
    assert setup.slows[-1] == Slow(nodes=())
    assert setup.texts(logging.INFO) == ["site is not slow any more: site=site-2"]


def test_a_policy_that_fails_leaves_no_site_slow() -> None:
    def fail(statistics: Any) -> Any:
        raise ValueError

    setup = Setup(fail, availability="pairs")
    setup.guess.marked.add("site-2")
    setup.work("site-1")
    assert setup.slows == [Slow(nodes=("site-2",)), Slow(nodes=())]


def test_loads_are_what_sites_report_and_speeds_are_relative_to_the_median() -> None:
    setup = Setup()
    setup.guess.speeds = (FoundSite("site-1", 10.0), FoundSite("site-2", 30.0), FoundSite("site-3", 1.0, False))
    stages = (StageWork(stage=1, positions=1, rows=((0, 1),), busy_s=0.01),)
    setup.work("ingress", busy_s=0.1, lags=(("site-1", 0.25), ("site-2", 0.5)))
    setup.work("site-1", busy_s=0.02, moving_s=0.03, stages=stages)
    setup.work("site-2", busy_s=0.0, stages=stages)

    setup.balance._report_loads()

    last = setup.of(reports.SiteLoads)[-1]
    assert last.phase == "collecting statistics"
    shown = {load.site: (load.utilisation, load.lag, load.speed) for load in last.sites}
    assert shown["site-1"] == pytest.approx((0.5, 0.25, 0.5))
    assert shown["site-2"] == pytest.approx((0.0, 0.5, 1.5))
    assert shown.keys() == {"site-1", "site-2"}, "the ingress holds no partitions"


def test_a_report_that_cannot_be_is_ignored_and_said_once() -> None:
    setup = Setup(lambda statistics: [MOVE])
    for _ in range(2):
        setup.work("site-1", busy_s=-1.0)
    assert setup.moves == [] and setup.balance.is_on
    [text] = setup.texts(logging.WARNING)
    assert text.startswith("balance ignores the report of site-1: ")


def test_draining_sites_and_spares_get_nothing() -> None:
    setup = Setup(lambda statistics: [MOVE])
    setup.balance.set_roles((), ("site-2",))
    setup.work("site-1")
    assert setup.moves == []
    [only] = setup.balance.balancer.rounds
    assert only.dropped == (MOVE,)


def test_the_controller_knows_what_a_copy_costs_on_each_site() -> None:
    setup = Setup(guess=Guess(speeds=(FoundSite("site-1", 2.0), FoundSite("site-2", 1.0))))
    setup.work("site-1")
    setup.work("site-1")
    [known] = setup.costs
    assert dict(known.costs) == {"site-1": 0.8, "site-2": 1.5}  # Of the median, rounded.


def kept(setup: Setup, *rows: int, rows_max: int = 400) -> None:
    """Reports of the ingress a second apart: so many rows are kept for site-2."""
    for count in rows:
        setup.balance._began_s -= 1.0
        lags = (("site-1", 0.0), ("site-2", count / 100))
        setup.work("ingress", lags=lags, kept=(("site-1", 0, 100), ("site-2", count, rows_max)))


def load_of(setup: Setup, site: str) -> reports.SiteLoad:
    setup.balance._report_loads()
    [found] = [load for load in setup.of(reports.SiteLoads)[-1].sites if load.site == site]
    return found


def test_what_is_kept_for_a_slow_site_and_the_time_left_are_said_and_shown() -> None:
    setup = Setup(availability="pairs")
    setup.work("site-2")
    kept(setup, 90, 90, rows_max=100)
    assert load_of(setup, "site-2").time_left_s is None, "it is not slow"
    setup.guess.marked.add("site-2")
    kept(setup, 100, rows_max=100)
    assert load_of(setup, "site-2").time_left_s is None, "that was its bound before it was slow"

    kept(setup, 100, 150)
    load = load_of(setup, "site-2")
    assert (load.kept_rows, load.kept_rows_max) == (150, 400)
    assert load.time_left_s == pytest.approx(5.0, rel=0.01)
    assert setup.texts(logging.INFO) == [
        "rows are kept for a slow site: site=site-2 kept_rows=150 kept_rows_max=400 time_left_s=5.0"
    ]


def test_it_is_said_when_the_source_waits_for_a_slow_site_and_when_no_longer() -> None:
    setup = Setup(availability="pairs")
    setup.guess.marked.add("site-2")
    setup.work("site-2")
    kept(setup, 300, 400)
    assert load_of(setup, "site-2").time_left_s == 0.0
    _, text = setup.texts(logging.WARNING)
    assert text.startswith("the source waits for a slow site, and rows go in at its pace.")
    assert text.endswith('slow="give-up": site=site-2 kept_rows=400 kept_rows_max=400')

    kept(setup, 390)
    assert load_of(setup, "site-2").time_left_s == 0.0, "an ack makes room for a few rows only"
    kept(setup, 300)
    assert setup.texts(logging.INFO)[-1] == "the source does not wait for the site any more: site=site-2"

    setup.guess.marked.clear()
    kept(setup, 10, rows_max=100)
    setup.guess.marked.add("site-2")
    kept(setup, 10, 400)
    assert len(setup.texts(logging.WARNING)) == 2, "each is a warning once"
    assert sum("site is slow" in text for text in setup.texts(logging.INFO)) == 1
    assert setup.texts(logging.DEBUG)[-1].startswith("the source waits for a slow site")


def test_copies_of_a_slow_site_are_given_up_said_and_reported() -> None:
    setup = Setup(availability="pairs", retires=True)
    setup.guess.marked.add("site-2")
    setup.work("site-2")
    kept(setup, 300, 400)
    assert setup.view.holders(1) == ("site-1",) and setup.view.alive("site-2")
    assert setup.of(reports.CopiesRetired) == [reports.CopiesRetired(site="site-2", copies=4)]
    _, text = setup.texts(logging.WARNING)
    assert text.startswith("the copies of a slow site are given up.") and text.endswith(": site=site-2 copies=4")
    load = load_of(setup, "site-2")
    assert load.slow and load.time_left_s is None


def test_it_is_said_that_what_follows_a_partition_with_slow_copies_only_waits() -> None:
    setup = Setup(availability="pairs", retires=True)
    setup.guess.marked |= {"site-1", "site-2"}
    setup.work("site-2")
    kept(setup, 400, 400)
    texts = setup.texts(logging.WARNING)
    assert any("4 of its partitions have no copy that is not slow: what follows them waits for it" in t for t in texts)
    assert any("because some of its partitions have no other copy that is not slow" in text for text in texts)
    assert setup.of(reports.CopiesRetired) == []


def test_a_slow_site_with_single_copies_is_warned_of_once() -> None:
    """No view lists it, because all wait for it. So only its speed and its lag showed that."""
    setup = Setup()
    setup.guess.marked.add("site-1")
    setup.work("site-1")
    setup.work("site-2")
    [said] = setup.texts(logging.WARNING)
    assert said.startswith("site is slow, and its 2 partitions have no other copy: what follows them waits for it")
    assert "add a site" in said and 'availability="pairs"' in said and said.endswith("site=site-1")
    assert setup.slows == []

    setup.guess.marked.clear()
    setup.work("site-1")
    assert "site is not slow any more, or holds nothing: site=site-1" in setup.texts(logging.INFO)
    setup.guess.marked.add("site-1")
    setup.work("site-1")
    assert len(setup.texts(logging.WARNING)) == 1 and "no other copy" in setup.texts(logging.INFO)[-1]


def test_a_policy_that_fails_says_nothing_more_of_slow_sites() -> None:
    setup = Setup(answer=lambda statistics: 1 / 0)
    setup.work("site-1")
    setup.guess.marked.add("site-1")
    setup.work("site-1")
    assert not [text for _, text in setup.said if "slow" in text]
