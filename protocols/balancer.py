"""Balancer: the rounds of balance, beside the controller (thesis 4.4.3, 5.1.3.1).

Sites report their work unasked. While no copy is lost and none is in transfer, every report makes the balancer ask the
policy for moves. Its answer is a round: the moves begin a few at a time, so that no site is busy with transfers alone,
and the round ends with the last one. *When* to move is the policy's decision. The balancer keeps what no policy may
break: never two copies on one site, nothing to spares, nothing of pinned stages or of partitions that catch up.

Recovery comes first: a death ends the round and drops the moves that have not begun. One that has begun is not taken
back: the controller builds its copy as it builds lost ones. Nothing here is needed for safety, and nothing is in a
journal: a balancer that starts with the current view goes on from there.

A slow site for which no more rows can be kept holds up the source. If the user prefers fewer copies to that, its copies
are retired as soon as that is possible (rule 42).

It has no clock; a `Tick` says what time it is. The arithmetic of reports is in the `Estimator` that is handed in.

Departure: the thesis's controller asks for statistics and waits for them. Here silence shows, and a slow site delays
no decision.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from .balance_messages import BalanceEffect, Move, Planned, PlanRound, Retire, Round, SiteRoles, Slow, Tick, Work
from .machine import Machine, Rule, always, ignore
from .messages import View

MOVES_TO_A_SITE_MAX = 2
MOVES_FROM_A_SITE_MAX = 4
# A single copy is its own donor (rule 34), and is cut when its site has ended the step that it is in. Moves that begin
# together wait for that once. So do those of partitions with slow donors only, and moves from others do not wait for
# them.
MOVES_OF_SINGLE_COPIES_MAX = 64
MOVE_SEEN_AFTER_S = 5.0  # A move that is in no view by then was ignored by the controller.
GAIN_MEASURED_AFTER_S = 1.0
ROUNDS_KEPT_MAX = 200


class Estimator(Protocol):
    """Makes estimates from reports. It is a value: a method returns another one, or an answer, and changes nothing."""

    def observe(self, work: Work, at_s: float) -> Estimator:
        """Add a report that arrived at `at_s`."""

    def relocate(self, view: View, reserved: frozenset[str], at_s: float) -> Estimator:
        """Follow the placement of a new view, in which the `reserved` sites get no load."""

    def slow(self) -> frozenset[str]:
        """The sites that hold up the others (rule 35)."""

    def greatest_time_s(self) -> float:
        """The greatest busy time per position of any site, as the last reports show it; 0 if there are none."""

    def statistics(self, facts: RoundFacts) -> Any:
        """All that a policy may know."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundFacts:
    """What the balancer knows and no report says, for the statistics of a `PlanRound`."""

    at_s: float
    view: View
    asked_s: float
    rounds: tuple[Round, ...]
    pinned_stages: frozenset[int]
    reserved: frozenset[str]
    catching_up: frozenset[tuple[int, int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveBegun:
    """A move that the controller was asked for; `is_seen` in a view or not yet."""

    move: Move
    giver: str
    since_s: float
    is_seen: bool = False


class Balancer(Machine):
    """Rounds of balance for the dataflow of `view`; at a restart of the controller, that of its last view.

    `spares` get no load until they hold a copy, sites that are draining get none at all, and copies of `pinned_stages`
    stay where they are. If it `retires`, copies of slow sites are retired rather than waited for.
    """

    def __init__(
        self,
        view: View,
        estimator: Estimator,
        pinned_stages: frozenset[int] = frozenset(),
        spares: frozenset[str] = frozenset(),
        retires: bool = False,
    ) -> None:
        self.view = view
        self.retires = retires
        self.pinned_stages = pinned_stages
        self.roles = SiteRoles(spares=tuple(sorted(spares)))
        self.estimator = estimator.relocate(view, self._reserved(), 0.0)
        self.at_s = 0.0
        self.asked_s = 0.0  # When the policy was asked last.
        self.plans = 0  # How often it was asked.
        self.awaited = 0  # The number of the plan that has no answer yet.
        self.reports: dict[str, int] = {}  # The number of the last report of each node.
        self.catching: dict[str, frozenset[tuple[int, int]]] = {}  # Partitions in younger cohorts, by node.
        self.queue: tuple[Move, ...] = ()
        self.begun: tuple[MoveBegun, ...] = ()
        self.rounds: tuple[Round, ...] = ()
        self.time_before_s = 0.0  # The greatest time per position when the last round began.
        self.slow = view.slow
        self.slow_since = dict.fromkeys(view.slow, view.number)  # The view that first listed each of them.

    @property
    def title(self) -> str:
        return "Balancer"

    @property
    def is_round_open(self) -> bool:
        """Whether moves of the last round are waiting or under way."""
        return bool(self.rounds) and self.rounds[-1].ended_s is None

    @property
    def slow_alone(self) -> frozenset[str]:
        """The slow sites that are not marked, because no other site has another copy of what they hold."""
        return frozenset(n for n in self.estimator.slow() if self.view.alive(n) and not self._may_be_left(n))

    # Guards.

    def is_stale(self, message: Work) -> bool:
        return message.number <= self.reports.get(message.node, 0)

    def is_of_no_member(self, message: Work) -> bool:
        return not self.view.alive(message.node) or self.view.number == 0

    def is_early(self, message: Work) -> bool:
        return message.view > self.view.number

    def is_sound(self, message: Work) -> bool:
        times = (message.elapsed_s, message.busy_s, message.moving_s, message.paging_s)
        shares = [share for _, share in message.lags]
        kept = [amount for _, rows, rows_max in message.kept for amount in (rows, rows_max)]
        is_possible = (
            _are_amounts((*times, *shares, *kept, message.state_bytes, message.view)) and message.elapsed_s > 0
        )
        stages = {work.stage for work in message.stages}
        return is_possible and len(stages) == len(message.stages) and all(map(self._is_sound_stage, message.stages))

    def is_later(self, message: Tick) -> bool:
        return _is_amount(message.at_s) and message.at_s >= self.at_s

    def is_news(self, message: View) -> bool:
        return message.number > self.view.number

    def is_awaited(self, message: Planned) -> bool:
        return 0 < message.number == self.awaited

    def is_overtaken(self, message: Planned) -> bool:
        return 0 < message.number <= self.plans

    # Actions.

    def collect(self, message: Work) -> Iterator[BalanceEffect]:
        self.reports[message.node] = message.number
        self.catching[message.node] = frozenset((s.stage, p) for s in message.stages for p in s.catching_up)
        self.estimator = self.estimator.observe(message, self.at_s)
        self._measure_gain()
        yield from self._mark_slow()
        yield from self._retire(message)
        yield from self._ask()

    def pass_time(self, message: Tick) -> Iterator[BalanceEffect]:
        self.at_s = message.at_s
        overdue = [b for b in self.begun if not b.is_seen and self.at_s - b.since_s > MOVE_SEEN_AFTER_S]
        if overdue:
            self._fail(overdue)
            yield from self._advance()

    def change(self, message: View) -> Iterator[BalanceEffect]:
        died = {node for node in _sites(self.view) if not message.alive(node)}
        self.view = message
        self.slow_since = {node: self.slow_since.get(node, message.number) for node in message.slow}
        self.estimator = self.estimator.relocate(message, self._reserved(), self.at_s)
        for node in died:
            self.reports.pop(node, None)
            self.catching.pop(node, None)
        self._follow_moves()
        if died:
            self.awaited = 0
            self._drop(self.queue)
            self._end_round("death")
        yield from self._mark_slow()
        yield from self._advance()

    def assign(self, message: SiteRoles) -> Iterator[BalanceEffect]:
        self.roles = message
        self.estimator = self.estimator.relocate(self.view, self._reserved(), self.at_s)
        self._drop([move for move in self.queue if not self._may_receive(move.to)])
        yield from self._advance()

    def begin_round(self, message: Planned) -> Iterator[BalanceEffect]:
        self.awaited = 0
        if not message.moves:
            return
        self.time_before_s = self.estimator.greatest_time_s()
        begun = Round(
            number=self.rounds[-1].number + 1 if self.rounds else 1,
            why=message.why,
            moves=message.moves,
            givers=tuple(map(self._giver, message.moves)),
            began_s=self.at_s,
            gain_expected=message.gain_expected,
        )
        self.queue, doubles = _split_doubles(message.moves)
        self.rounds = (*self.rounds, replace(begun, dropped=doubles))[-ROUNDS_KEPT_MAX:]
        self._drop([move for move in self.queue if not self._is_allowed(move)])
        yield from self._advance()

    # How it is done.

    def _is_sound_stage(self, work: Any) -> bool:
        view = self.view
        if not 0 <= work.stage < len(view.copies) or view.is_end(work.stage):
            return False
        count = len(view.copies[work.stage])
        pairs = [tuple(zip(*each, strict=True)) for each in (work.rows, work.costs_s, work.state_bytes) if each]
        partitions = [work.catching_up, *(numbers for numbers, _ in pairs)]
        amounts = [(work.positions, work.busy_s), *(of_partitions for _, of_partitions in pairs)]
        is_known = all(min(numbers) >= 0 and max(numbers) < count for numbers in partitions if numbers)
        return is_known and all(map(_are_amounts, amounts))

    def _ask(self) -> Iterator[BalanceEffect]:
        if self.awaited or self.is_round_open or self.begun or self.view.standby or _vacant(self.view):
            return
        self.plans += 1
        self.awaited = self.plans
        facts = RoundFacts(
            at_s=self.at_s,
            view=self.view,
            asked_s=self.asked_s,
            rounds=self.rounds,
            pinned_stages=self.pinned_stages,
            reserved=self._reserved(),
            catching_up=self._catching_up(),
        )
        self.asked_s = self.at_s
        yield PlanRound(number=self.plans, statistics=self.estimator.statistics(facts))

    def _mark_slow(self) -> Iterator[BalanceEffect]:
        slow = frozenset(node for node in self.estimator.slow() if self._may_be_left(node))
        if slow != self.slow:
            self.slow = slow
            yield Slow(nodes=tuple(sorted(slow)))

    def _may_be_left(self, node: str) -> bool:
        """Whether others can go on without `node`: it has no copies, or one that has another one elsewhere.

        Rows kept for single copies would only put off the moment at which these can leave.
        """
        stages = [partitions for stage, partitions in enumerate(self.view.copies) if not self.view.is_end(stage)]
        held = [copies for partitions in stages for copies in partitions if node in copies]
        others = {other for copies in held for other in copies if other != node}
        return self.view.alive(node) and (not held or any(map(self.view.alive, others)))

    def _retire(self, work: Work) -> Iterator[BalanceEffect]:
        """Retire the copies of slow sites for which the producer that reports `work` can keep no more.

        A report of a time when the site was not slow has a lower bound, and does not count.
        """
        if self.retires:
            for node, rows, rows_max in work.kept:
                is_full = rows >= rows_max and work.view >= self.slow_since.get(node, work.view + 1)
                if is_full and self.view.can_retire(node):
                    yield Retire(node=node)

    def _advance(self) -> Iterator[BalanceEffect]:
        """Begin the moves that may begin now; end the round when none is left."""
        if not self.is_round_open:
            return
        for move in self.queue:
            if self._is_possible(move) and self._has_room(move):
                self.begun = (*self.begun, MoveBegun(move=move, giver=self._giver(move), since_s=self.at_s))
                self.queue = tuple(other for other in self.queue if other != move)
                yield move
        if self.queue and not self.begun and not self.view.standby:
            self._drop(self.queue)  # No move is under way that could make one of them possible.
        if not self.queue and not self.begun:
            self._end_round("done")

    def _follow_moves(self) -> None:
        """Compare the moves under way with the view: those that are done or have failed are not any more."""
        building = {(s.stage, s.partition, s.node) for s in self.view.standby}
        left, failed = [], []
        for begun in self.begun:
            move = begun.move
            copies = self.view.copies[move.stage][move.partition]
            if (move.stage, move.partition, move.to) in building:
                left.append(replace(begun, is_seen=True))
            elif move.to in copies and self.view.alive(move.to):
                continue
            elif begun.is_seen or not self.view.alive(move.to):
                failed.append(begun)
            else:
                left.append(begun)
        self.begun = (*left, *failed)
        self._fail(failed)

    def _fail(self, failed: Iterable[MoveBegun]) -> None:
        lost = tuple(failed)
        self.begun = tuple(begun for begun in self.begun if begun not in lost)
        if lost and self.rounds:
            moves = tuple(begun.move for begun in lost)
            self._record(failed=(*self.rounds[-1].failed, *moves))

    def _drop(self, moves: Iterable[Move]) -> None:
        dropped = tuple(moves)
        if dropped:
            self.queue = tuple(move for move in self.queue if move not in dropped)
            self._record(dropped=(*self.rounds[-1].dropped, *dropped))

    def _end_round(self, how: str) -> None:
        if self.is_round_open:
            self._record(ended=how, ended_s=self.at_s)

    def _measure_gain(self) -> None:
        """Compare the greatest time per position with that before the last round, a second after the round."""
        if not self.rounds or self.rounds[-1].ended != "done" or self.rounds[-1].gain_measured is not None:
            return
        ended_s = self.rounds[-1].ended_s
        if ended_s is not None and self.at_s - ended_s >= GAIN_MEASURED_AFTER_S and self.time_before_s > 0:
            self._record(gain_measured=1 - self.estimator.greatest_time_s() / self.time_before_s)

    def _record(self, **fields: Any) -> None:
        self.rounds = (*self.rounds[:-1], replace(self.rounds[-1], **fields))

    def _reserved(self) -> frozenset[str]:
        """Sites that get no load: draining ones, and spares without a copy. One with a copy is a spare no longer."""
        stages = range(len(self.view.copies))
        spares = {s for s in self.roles.spares if not any(self.view.held(stage, s) for stage in stages)}
        return frozenset({*spares, *self.roles.draining})

    def _catching_up(self) -> frozenset[tuple[int, int]]:
        return frozenset().union(*self.catching.values())

    def _may_receive(self, node: str) -> bool:
        return node in _sites(self.view) and node not in self._reserved()

    def _is_allowed(self, move: Move) -> bool:
        """Whether a policy may ask for the move: it names a copy that may leave and a site that may receive it."""
        copies = self.view.copies
        if not 0 <= move.stage < len(copies) or self.view.is_end(move.stage) or move.stage in self.pinned_stages:
            return False
        if not 0 <= move.partition < len(copies[move.stage]) or not self._may_receive(move.to):
            return False
        is_copy = 0 <= move.slot < len(copies[move.stage][move.partition])
        return is_copy and (move.stage, move.partition) not in self._catching_up()

    def _giver(self, move: Move) -> str:
        """The site of the copy that is to move; "" if there is no such copy."""
        for stage, partitions in enumerate(self.view.copies):
            if stage == move.stage and 0 <= move.partition < len(partitions):
                copies = partitions[move.partition]
                return copies[move.slot] if 0 <= move.slot < len(copies) else ""
        return ""

    def _is_possible(self, move: Move) -> bool:
        """Whether the controller can begin the move in this view."""
        copies = self.view.copies[move.stage][move.partition]
        place = (move.stage, move.partition)
        in_transfer = any((s.stage, s.partition) == place for s in self.view.standby)
        is_begun = any((b.move.stage, b.move.partition) == place for b in self.begun)
        is_free = self.view.alive(copies[move.slot]) and self.view.alive(move.to) and move.to not in copies
        return is_free and not in_transfer and not is_begun

    def _has_room(self, move: Move) -> bool:
        begun = [begun for begun in self.begun if self._has_slow_donor(begun.move) == self._has_slow_donor(move)]
        givers = Counter(each.giver for each in begun)
        takers = Counter(each.move.to for each in begun)
        if self._has_slow_donor(move):
            return givers[self._giver(move)] < MOVES_OF_SINGLE_COPIES_MAX
        is_single = len(self.view.copies[move.stage][move.partition]) == 1
        from_max = MOVES_OF_SINGLE_COPIES_MAX if is_single else MOVES_FROM_A_SITE_MAX
        return givers[self._giver(move)] < from_max and takers[move.to] < MOVES_TO_A_SITE_MAX

    def _has_slow_donor(self, move: Move) -> bool:
        """Whether all copies of a partition are on slow sites: its donor cuts late, and the taker waits meanwhile."""
        return self.view.slow.issuperset(self.view.live_copies(move.stage, move.partition))


def _is_amount(number: float) -> bool:
    return math.isfinite(number) and number >= 0


def _are_amounts(numbers: Sequence[float]) -> bool:
    """Whether each is an amount; their sum is none if one is not finite."""
    return not numbers or (min(numbers) >= 0 and math.isfinite(sum(numbers)))


def _sites(view: View) -> list[str]:
    """The live nodes that may hold copies: all but the ingress and the egresses."""
    ends = {node for stage, copies in enumerate(view.copies) if view.is_end(stage) for node in copies[0]}
    return [node for node in view.nodes if view.alive(node) and node not in ends]


def _vacant(view: View) -> bool:
    """Whether a copy of an operator is lost: recovery comes first."""
    if not view.dead:
        return False
    stages = [partitions for stage, partitions in enumerate(view.copies) if not view.is_end(stage)]
    return any(node in view.dead for partitions in stages for copies in partitions for node in copies)


def _split_doubles(moves: Iterable[Move]) -> tuple[tuple[Move, ...], tuple[Move, ...]]:
    """The first move of each copy in a plan, and the others."""
    first: dict[tuple[int, int, int], Move] = {}
    doubles = []
    for move in moves:
        copy = (move.stage, move.partition, move.slot)
        if copy in first:
            doubles.append(move)
        else:
            first[copy] = move
    return tuple(first.values()), tuple(doubles)


Balancer.RULES = (
    Rule(on=Work, guard=Balancer.is_of_no_member, action=ignore, cites="in flight when its node died, or not yet in"),
    Rule(on=Work, guard=Balancer.is_stale, action=ignore, cites="it was counted already"),
    Rule(on=Work, guard=Balancer.is_early, action=ignore, cites="its placement is not known here yet"),
    Rule(on=Work, guard=Balancer.is_sound, action=Balancer.collect, cites="4.4.3: statistics collection"),
    Rule(on=Tick, guard=Balancer.is_later, action=Balancer.pass_time, cites="no machine has a clock"),
    Rule(on=View, guard=Balancer.is_news, action=Balancer.change, cites="5.1.3.1: a failure ends the round"),
    Rule(on=View, guard=always, action=ignore, cites="it is known already"),
    Rule(on=SiteRoles, guard=always, action=Balancer.assign, cites="spares and draining sites get no load"),
    Rule(on=Planned, guard=Balancer.is_awaited, action=Balancer.begin_round, cites="4.4.3: partition movement"),
    Rule(on=Planned, guard=Balancer.is_overtaken, action=ignore, cites="5.1.3.1: answers of an earlier round"),
)
