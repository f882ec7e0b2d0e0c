"""Load balance: feeds the balancer with what sites report, asks the policy, and has the controller carry out its moves.

The balancer decides nothing that safety rests on. What comes from it reaches the controller's machine as the messages
`Move`, `Slow` and `Retire`, and is recorded with the others. A controller that was started again has a new balancer.

A policy may be code of the user. If it raises, or returns anything but moves, that is logged with its place, and this
run is not balanced any more; the run itself goes on.
"""

from __future__ import annotations

import logging
import math
import time
from collections import deque
from collections.abc import Callable, Iterable
from statistics import median
from typing import Any

import trio

from ..balance import BalancePolicy, Estimates, KeptRows, ask
from ..model.error_location import locate
from ..plan import Plan
from ..protocols.balance_messages import (
    BalanceEffect,
    CopyCosts,
    Move,
    PlanRound,
    Retire,
    Round,
    SiteRoles,
    Slow,
    Tick,
    ToBalancer,
    Work,
)
from ..protocols.balancer import Balancer
from ..protocols.machine import Refused
from ..protocols.messages import View
from ..types.errors import RAISED
from ..wire import reports
from .slow_site_log import SlowSiteLog, is_retired

TICK_EVERY_S = 0.1
LOADS_EVERY_S = 0.5
_PLAN_SLOW_S = 0.1
_SLOW_PLANS_MIN = 3  # In a row: a single one may have waited for a processor of a busy machine.


class LoadBalance:
    """The balance of one run, under a controller that is the `incarnation`-th.

    `move` and `control` step the controller's machine; `move` returns the version of the copy that is built, or None if
    the machine ignored it.
    """

    def __init__(
        self,
        balancer: Balancer,
        policy: BalancePolicy,
        incarnation: int,
        move: Callable[[Move], int | None],
        control: Callable[[Slow | Retire | CopyCosts], None],
        report: Callable[[reports.Report], None],
        note: Callable[[int, str], None],
    ) -> None:
        self.balancer = balancer
        self.policy = policy
        self.is_on = True
        self._incarnation = incarnation
        self._move = move
        self._control = control
        self._report = report
        self._note = note
        self._began_s = time.monotonic()
        self._inbox: deque[ToBalancer] = deque()
        self._is_stepping = False
        self._last: dict[str, Work] = {}  # The last report of each node.
        self._speeds: dict[str, float] = {}  # As multiples of the median.
        self._costs: tuple[tuple[str, float], ...] = ()  # Of a copy on each site, as the controller knows them.
        self._learned_s = -math.inf
        self._slow = balancer.view.slow
        self._versions = balancer.view.versions
        self._slow_log = SlowSiteLog(balancer.view, balancer.retires, note)
        self._kept = KeptRows()
        self._rounds: dict[int, Round] = {}  # As they were reported to the driver.
        self._refused: set[str] = set()  # Nodes with a report that was refused: each is logged once.
        self._slow_plans = 0  # In a row.

    async def run(self) -> None:
        """Let time pass for the balancer, and report the loads of sites to the driver."""
        looked_s = 0.0
        while True:
            await trio.sleep(TICK_EVERY_S)
            now_s = time.monotonic()
            self._feed(self._tick())
            if now_s - looked_s >= LOADS_EVERY_S:
                looked_s = now_s
                self._report_loads()

    def take(self, work: Work) -> None:
        """Take a node's report of its work."""
        self._last[work.node] = work
        tick = self._tick()
        self._kept = self._kept.observe(work, tick.at_s)
        self._feed(tick, work)
        self._slow_log.follow_kept(self._kept)
        self._slow_log.follow_alone(self.balancer.slow_alone if self.is_on else frozenset())

    def on_view(self, view: View) -> None:
        """Follow the controller's view."""
        self._kept = self._kept.without(node for node in self._last if not view.alive(node))
        self._last = {node: work for node, work in self._last.items() if view.alive(node)}
        self._slow = view.slow
        for site, copies in self._slow_log.follow_view(view).items():
            self._report(reports.CopiesRetired(site=site, copies=copies))
        rebuilt = [s for s in view.standby if s.version > self._versions and is_retired(view, s)]
        self._versions = view.versions
        if rebuilt:
            versions = tuple(standby.version for standby in rebuilt)
            self._report(reports.CopiesBegun(versions=versions, why="a copy was given up", round=None))
        self._feed(self._tick(), view)

    def set_roles(self, spares: Iterable[str], draining: Iterable[str]) -> None:
        """Say which sites get no load from the policy."""
        self._feed(self._tick(), SiteRoles(spares=tuple(sorted(spares)), draining=tuple(sorted(draining))))

    def _tick(self) -> Tick:
        return Tick(at_s=time.monotonic() - self._began_s)

    def _feed(self, *messages: ToBalancer) -> None:
        """Step the balancer for each message, and for those that its effects cause, one after the other."""
        self._inbox.extend(messages)
        if self._is_stepping:
            return
        self._is_stepping = True
        try:
            while self._inbox and self.is_on:
                self._step(self._inbox.popleft())
            self._report_rounds()
        finally:
            self._is_stepping = False

    def _step(self, message: ToBalancer) -> None:
        try:
            effects: list[BalanceEffect] = list(self.balancer.step(message))  # type: ignore[arg-type]
        except Refused as refused:
            if isinstance(message, Work) and message.node not in self._refused:
                self._refused.add(message.node)
                self._note(logging.WARNING, f"balance ignores the report of {message.node}: {refused}")
            return
        for effect in effects:
            if isinstance(effect, PlanRound):
                self._ask(effect)
            elif isinstance(effect, Move):
                self._begin(effect)
            else:
                self._control(effect)

    # The policy.

    def _ask(self, wanted: PlanRound) -> None:
        if time.monotonic() - self._learned_s >= LOADS_EVERY_S:
            self._learned_s = time.monotonic()
            self._learn(wanted.statistics)
        began_s = time.monotonic()
        try:
            answer = ask(self.policy, wanted)
        except RAISED as error:
            self._turn_off(error.__cause__ or error)
            return
        self._watch_plan(time.monotonic() - began_s)
        self._inbox.extend((self._tick(), answer))

    def _watch_plan(self, took_s: float) -> None:
        """Warn once of a policy that takes long each time."""
        if self._slow_plans >= _SLOW_PLANS_MIN:
            return
        self._slow_plans = self._slow_plans + 1 if took_s > _PLAN_SLOW_S else 0
        if self._slow_plans == _SLOW_PLANS_MIN:
            where = locate(self.policy.plan)
            self._note(logging.WARNING, f"plans of moves hold up the controller: took_s={took_s:.2f} policy={where}")

    def _turn_off(self, error: BaseException) -> None:
        """Balance this run no longer: its policy does not work."""
        self.is_on = False
        where = locate(self.policy.plan, error)
        self._note(
            logging.ERROR,
            f"balance is off for the rest of this run: {where} raised {type(error).__name__}: {error}. The run goes on "
            "with partitions where they are",
        )
        if self._slow:
            self._control(Slow(nodes=()))
        self._report_loads()

    # What the controller carries out.

    def _begin(self, move: Move) -> None:
        version = self._move(move)
        if version is not None and self.balancer.rounds:
            last = self.balancer.rounds[-1]
            self._report_rounds()  # The driver knows a round before its copies.
            self._report(reports.CopiesBegun(versions=(version,), why=last.why, round=self._id(last)))

    # What is shown.

    def _learn(self, statistics: Any) -> None:
        speeds = {site.name: site.speed for site in statistics.sites if site.is_measured}
        usual = median(speeds.values()) if speeds else 0.0
        self._speeds = {name: speed / usual for name, speed in speeds.items()} if usual > 0 else {}
        costs = tuple((name, round(1 / speed, 1)) for name, speed in sorted(self._speeds.items()) if speed > 0)
        if costs != self._costs:
            self._costs = costs
            self._control(CopyCosts(costs=costs))

    def _report_loads(self) -> None:
        lags: dict[str, float] = {}
        for work in self._last.values():
            for site, lag in work.lags:
                lags[site] = max(lags.get(site, 0.0), lag)
        nodes = [node for node, work in sorted(self._last.items()) if node in lags or work.stages or node in self._slow]
        loads = tuple(self._load_of(node, lags.get(node, 0.0)) for node in nodes)
        self._report(reports.SiteLoads(sites=loads, phase=self._phase()))

    def _load_of(self, node: str, lag: float) -> reports.SiteLoad:
        work, kept, kept_slow = self._last[node], self._kept.of(node), self._slow_log.kept_for(node, self._kept)
        return reports.SiteLoad(
            site=node,
            utilisation=min(1.0, (work.busy_s + work.moving_s + work.paging_s) / work.elapsed_s),
            lag=lag,
            speed=self._speeds.get(node),
            slow=node in self._slow,
            kept_rows=kept.rows if kept else 0,
            kept_rows_max=kept.rows_max if kept else 0,
            time_left_s=kept_slow.time_left_s if kept_slow else None,
        )

    def _phase(self) -> str:
        if not self.is_on:
            return "off: the policy does not work"
        if not self.balancer.is_round_open:
            return "collecting statistics"
        last = self.balancer.rounds[-1]
        left = len(self.balancer.queue) + len(self.balancer.begun)
        return f"round {last.number}: {left} of {len(last.moves)} moves left"

    def _id(self, each: Round) -> reports.RoundId:
        return reports.RoundId(controller=self._incarnation, number=each.number)

    def _report_rounds(self) -> None:
        """Report the rounds that have changed, to the driver and in the log."""
        for each in self.balancer.rounds[-2:]:
            before = self._rounds.get(each.number)
            if each == before:
                continue
            self._rounds = {number: kept for number, kept in self._rounds.items() if number > each.number - 4}
            self._rounds[each.number] = each
            if before is None:
                text = f"balance round begins: round={each.number} moves={len(each.moves)}"
                self._note(logging.INFO, f"{text} gain_expected={each.gain_expected:.1%} why={each.why!r}")
            if each.ended and (before is None or not before.ended):
                took_s = each.took_s or 0.0
                text = f"balance round ends: round={each.number} by={each.ended} took_s={took_s:.2f}"
                self._note(logging.INFO, f"{text} dropped={len(each.dropped)} failed={len(each.failed)}")
            self._report(
                reports.RoundChanged(
                    round=self._id(each),
                    age_s=time.monotonic() - self._began_s - each.began_s,
                    why=each.why,
                    moves=len(each.moves),
                    dropped=len(each.dropped),
                    failed=len(each.failed),
                    ended=each.ended,
                    took_s=each.took_s,
                    gain_expected=each.gain_expected,
                    gain_measured=each.gain_measured,
                )
            )


def new_balancer(plan: Plan, view: View) -> Balancer:
    """Return a balancer that knows nothing of the load yet."""
    gives_up = plan.policy.slow == "give-up"
    return Balancer(view, Estimates(), plan.pinned_stages, frozenset(plan.spares), retires=gives_up)
