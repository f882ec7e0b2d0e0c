"""What sites report of their work, and what the balancer asks and answers (thesis 4.4.1, 4.4.3).

Sites report unasked, many times a second. The work of a partition is counted per position and not per second: it is
then the same in every copy, whether that copy lags or works off a backlog. Times are durations: no machine has a clock,
and `Tick` says how much time has passed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

from .messages import CopyCosts as CopyCosts
from .messages import Move as Move
from .messages import Retire as Retire
from .messages import Slow as Slow
from .messages import View


@dataclass(frozen=True, slots=True, kw_only=True)
class StageWork:
    """What a site's copies of `stage` have done in one interval.

    The oldest cohort has advanced by `positions`; the partitions `catching_up` are in younger ones. `rows` are the rows
    consumed of each partition, of all cohorts. `busy_s` is the time of the stage's steps. An operator that is called
    for one partition at a time has exact `costs_s`; the others have none, because a partition alone would cost many
    times what it costs in a step with the others. `state_bytes` are those of each partition, where they are known.
    """

    stage: int
    positions: int
    rows: tuple[tuple[int, int], ...]
    busy_s: float
    costs_s: tuple[tuple[int, float], ...] = ()
    catching_up: tuple[int, ...] = ()
    state_bytes: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What site `node` has done in an interval of `elapsed_s`: its `number`-th report, in view `view`.

    `busy_s` is wall time, preemption included, without what was spent on paging and on moving state. `lags` are those
    of its consumers: the rows that its pool keeps for each, as a part of the pool's bound. `kept` are these rows
    themselves, and how many may be kept before this producer waits: for a slow site more than for others (rule 35). An
    ingress reports too, for its lags and what it keeps.
    """

    node: str
    number: int
    view: int
    elapsed_s: float
    busy_s: float
    moving_s: float = 0.0
    paging_s: float = 0.0
    state_bytes: int = 0
    stages: tuple[StageWork, ...] = ()
    lags: tuple[tuple[str, float], ...] = ()
    kept: tuple[tuple[str, int, int], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick:
    """The time is `at_s`, in seconds since any fixed moment. It never goes back.

    What arrives after it arrived at that time: a tick comes before each message, and many times a second.
    """

    at_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteRoles:
    """Which sites get no load from a policy: `spares` until they hold a copy, and those that are `draining`."""

    spares: tuple[str, ...] = ()
    draining: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """Answers the `PlanRound` of that `number`: the moves of a round, in order, and why; none if all may stay."""

    number: int
    moves: tuple[Move, ...]
    why: str = ""
    gain_expected: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRound:
    """Ask the policy for the moves of a round; `statistics` are all that it may know. Answer `Planned`.

    An answer with another `number` is late and is dropped: a site died meanwhile (thesis 5.1.3.1).
    """

    number: int
    statistics: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """One round of balance, as the report shows it: moves that were planned together, and what became of them.

    `givers` are the sites that the moves are from, "" where there is no such copy.
    `dropped` were not begun: they were impossible, or a site died. `failed` were begun, and their copies were not
    built. It has `ended` by "done", or by "death" while moves were waiting. The gains are parts of the greatest time
    per position, as the policy expected it and as the sites' reports of the next second show it.
    """

    number: int
    why: str
    moves: tuple[Move, ...]
    givers: tuple[str, ...]
    began_s: float
    gain_expected: float
    dropped: tuple[Move, ...] = ()
    failed: tuple[Move, ...] = ()
    ended: str = ""
    ended_s: float | None = None
    gain_measured: float | None = None

    @property
    def took_s(self) -> float | None:
        """How long its moves took; None while they are under way."""
        return None if self.ended_s is None else self.ended_s - self.began_s


ToBalancer: TypeAlias = Work | Tick | View | SiteRoles | Planned
BalanceEffect: TypeAlias = PlanRound | Move | Slow | Retire
