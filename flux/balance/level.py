"""`Level`: wait until moves are worth it, then bring all sites to the same time per position in one round.

Moves are for the case that one site holds up the others: it lags, and another has nothing to do. While pools have room
nothing is lost, and short slowness is left to them. So the same site must be the slowest, and lag by more than half its
pool, for `persist_s` without a break. A site that takes over 2.5 times as long as the others needs 0.3 s and no lag.
One that is marked as slow needs no lag either: the others go on without it, and rows are kept for it meanwhile. A site
that was added takes its share at once.

Single copies move earlier, at a lag of 0.15. Their site is their donor, and must work off its backlog before they go,
while the pools go on filling. At a part v of the usual speed, a lag of v is worked off just when the pools are full.

Load that goes from site to site makes speeds volatile, and then sites are known by their averages. The placement goes
back to what the averages say, once: by them a gain of a twentieth at least must be due for `persist_s`. Any site may
hold up the others meanwhile, and need not do so all the time, because that site changes as the load goes on. A lesser
gain is chance: an average of half a minute depends on where the load was.

What is not known well is not acted on: a gain must exceed three standard errors of the speeds it rests on.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from ..protocols.balance_messages import Round
from ..protocols.messages import Move
from ..types.errors import PlanError
from .balance_policy import Proposal
from .level_moves import level_moves
from .slow_marks import SLOW_AFTER_S, SLOW_RATIO
from .statistics import Moment, Statistics

GAIN_MIN = 0.005
GAIN_VOLATILE_MIN = 0.05  # By averages of sites that are volatile.
SIGMAS = 3.0
SAMPLES_MIN = 4
LAG_MIN = 0.5
LAG_SINGLE_MIN = 0.15
LAG_IDLE_MAX = 0.1
UTILISATION_IDLE_MAX = 0.8
REVERSAL_S = 120.0
PERSIST_MAX_S = 64.0


@dataclass(frozen=True, kw_only=True)
class Level:
    """The policy of `balance="auto"`: few rounds, each to within `tolerance` of the best placement.

    >>> Level(tolerance=0.02).plan(Statistics(at_s=0.0, sites=(), partitions=()))
    ()
    """

    tolerance: float = 0.01
    persist_s: float = 0.5

    def __post_init__(self) -> None:
        if not (0 < self.tolerance < 1 and 0 <= self.persist_s <= PERSIST_MAX_S):
            raise PlanError(
                f"Level needs a tolerance between 0 and 1 and a persist_s from 0 to {PERSIST_MAX_S:g}, "
                f"got {self.tolerance!r} and {self.persist_s!r}"
            )

    def plan(self, statistics: Statistics) -> Proposal:
        """Return the moves of a round, or none."""
        reason = self._reason(statistics)
        if not reason:
            return Proposal()
        moves = level_moves(statistics, self.tolerance)
        gain = statistics.gain(moves)
        is_volatile = statistics.moments[-1].is_volatile
        least = GAIN_VOLATILE_MIN if is_volatile else max(GAIN_MIN, SIGMAS * _doubt(statistics, moves))
        if not moves or gain <= least:
            return Proposal()
        return Proposal(moves, why=reason, gain_expected=gain)

    def _reason(self, statistics: Statistics) -> str:
        """Why moves are due now; empty if they are not."""
        if not statistics.moments:
            return ""
        now = statistics.moments[-1]
        if now.at_s <= statistics.asked_s or not self._is_worth(now):
            return ""  # A moment is judged once: reports come many times as often, and a plan is dear.
        persist_s = _persist_s(statistics.rounds, self.persist_s)
        if now.has_new_site:
            return "a site without copies was added"
        needed_s = persist_s
        if now.is_volatile:
            since_s = self._volatile_since_s(statistics)
        elif _is_severe(now):
            needed_s = SLOW_AFTER_S if persist_s == self.persist_s else persist_s
            since_s = self._since_s(statistics, _is_severe)
        else:
            since_s = self._since_s(statistics, _is_pressed)
        if statistics.at_s - since_s < needed_s - 1e-9:
            return ""
        return f"{now.top} takes {now.time_s / now.ideal_s:.2f} times the time per position of perfect balance"

    def _since_s(self, statistics: Statistics, due: Callable[[Moment], bool]) -> float:
        """Since when without a break moves have been due, for the same site: of several, chance picks the top."""
        since_s, top = math.inf, statistics.moments[-1].top
        for moment in reversed(statistics.moments):
            is_after = moment.at_s > statistics.round_ended_s or not statistics.rounds
            is_same = moment.top == top or top in moment.slow
            if not (is_after and is_same and due(moment) and self._is_worth(moment)):
                break
            since_s = moment.at_s
        return since_s

    def _volatile_since_s(self, statistics: Statistics) -> float:
        """Since when without a break averages have differed enough, if any site has held up the others meanwhile."""
        since_s, is_pressed = math.inf, False
        for moment in reversed(statistics.moments):
            is_after = moment.at_s > statistics.round_ended_s or not statistics.rounds
            if not (is_after and moment.is_volatile and self._is_worth(moment)):
                break
            since_s, is_pressed = moment.at_s, is_pressed or _is_pressed(moment)
        return since_s if is_pressed else math.inf

    def _is_worth(self, moment: Moment) -> bool:
        if moment.is_volatile:
            return moment.gain_most > GAIN_VOLATILE_MIN
        return moment.samples >= SAMPLES_MIN and moment.gain_most > max(GAIN_MIN, SIGMAS * moment.speed_error)


def _is_severe(moment: Moment) -> bool:
    return moment.median_s > 0 and moment.time_s > SLOW_RATIO * moment.median_s


def _is_pressed(moment: Moment) -> bool:
    lag_min = LAG_SINGLE_MIN if moment.is_single else LAG_MIN
    # A consumer that waits for a slow producer has nothing to do either, though the others' rows are kept for it.
    is_other_idle = moment.lag_least < LAG_IDLE_MAX or moment.utilisation_least < UTILISATION_IDLE_MAX
    return _is_severe(moment) or moment.is_left or (moment.lag > lag_min and is_other_idle)


def _doubt(statistics: Statistics, moves: Iterable[Move]) -> float:
    """The standard error of a gain: that of the greatest giver and of the least known taker together."""
    errors = {site.name: site.speed_error for site in statistics.sites}
    top = max(statistics.sites, key=lambda site: site.time_s)
    takers = [errors[move.to] for move in moves if math.isfinite(errors[move.to])]
    return math.hypot(errors[top.name], max(takers, default=0.0))


def _persist_s(rounds: Iterable[Round], first_s: float) -> float:
    """How long moves must have been due: longer after rounds that took back what others did before."""
    persist_s, last_s = first_s, -math.inf
    turned: dict[str, tuple[float, int]] = {}  # When a site gave (-1) or took (1) last.
    for each in rounds:
        net = _net(each)
        large = max(1, len(each.moves) // 8)
        back_s = [
            each.began_s - turned[site][0]
            for site, count in net.items()
            if abs(count) > large and site in turned and turned[site][1] * count < 0
        ]
        if back_s and min(back_s) < REVERSAL_S:
            persist_s = min(PERSIST_MAX_S, max(2 * persist_s, 1.5 * min(back_s)))
        elif each.began_s - last_s > REVERSAL_S:
            persist_s = max(first_s, persist_s / 2)
        last_s = each.began_s
        turned.update({site: (each.began_s, 1 if count > 0 else -1) for site, count in net.items() if count})
    return persist_s


def _net(each: Round) -> Counter[str]:
    """Copies that each site took in a round, less those it gave."""
    net: Counter[str] = Counter()
    for move, giver in zip(each.moves, each.givers, strict=True):
        net[move.to] += 1
        net[giver] -= 1
    return net
