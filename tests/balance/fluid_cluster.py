"""A fluid cluster: sites with true speeds that the balancer does not know, and the real balancer, estimates and policy.

Input is numbered. A site has consumed all positions up to its own, of all its partitions; it advances by its speed
divided by the rows per position of its copies. The pool of the source holds each row until all copies of its partition
have consumed it, and slow copies are not waited for; the source waits when it is full. Every 0.1 s a site reports.
Its speed jitters from report to report, and chance says which partitions the rows are of. A copy is in transfer for
`TRANSFER_S`, and is at its site's position then: nothing here catches up.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from flux.balance import BalancePolicy, Estimates, ask
from flux.protocols.balance_messages import Move, PlanRound, Slow, StageWork, Tick, Work
from flux.protocols.balancer import Balancer
from flux.protocols.messages import Standby, View

ROWS_PER_S = 1_000.0  # Of a site that no other program slows down.
POOL_ROWS = 2_048.0
REPORT_S = 0.1
STEP_S = 0.02
TRANSFER_S = 0.2

SpeedAt = Callable[[float, int], float]  # Of a site by its number from 0 on, as a part of `ROWS_PER_S`.


class FluidCluster:
    """Sites in a run that `policy` balances, from time 0 on; None for no balance. Equal seeds give equal runs."""

    def __init__(
        self,
        policy: BalancePolicy | None,
        speed_at: SpeedAt,
        sites: int = 4,
        partitions: int = 96,
        copies: int = 2,
        load: float | None = None,
        jitter: float = 0.03,
        seed: int = 1,
    ) -> None:
        self.names = [f"site-{n + 1}" for n in range(sites)]
        placed = tuple(tuple(self.names[(p + c) % sites] for c in range(copies)) for p in range(partitions))
        self.view = View(
            number=1,
            nodes=("ingress", *self.names, "egress"),
            dead=frozenset(),
            copies=((("ingress",),), placed, (("egress",),)),
        )
        self.policy, self.speed_at, self.jitter = policy, speed_at, jitter
        self.random = np.random.default_rng(seed)
        self.balancer = Balancer(self.view, Estimates())
        self.at_s = 0.0
        best = ROWS_PER_S * sites / copies  # Positions a second.
        self.input_max = float("inf") if load is None else load * best
        self.source = 0.0
        self.positions = [0.0] * sites
        self.noise = [1.0] * sites
        self.reported = [0.0] * sites  # The position of each site in its last report.
        self.busy_s = [0.0] * sites
        self.numbers = [0] * (sites + 1)  # Of reports; the last one is the ingress's.
        self.transfers: list[tuple[float, Move]] = []
        self.moves: list[tuple[float, Move]] = []
        self.marks: list[tuple[float, frozenset[str]]] = []
        self._place()

    @property
    def counts(self) -> list[int]:
        """How many copies each site holds."""
        return [len(held) for held in self.held]

    @property
    def consumed(self) -> float:
        """The position up to which there is output: slow sites do not hold it up."""
        return min(x for x, site in zip(self.positions, self.names, strict=True) if site not in self.view.slow)

    def sustained(self) -> float:
        """The part of the unloaded rate that the placement sustains at the true speeds of now."""
        times = [len(held) / self.speed_at(self.at_s, s) for s, held in enumerate(self.held)]
        return sum(self.counts) / len(self.held) / max(times)

    def run(self, until_s: float) -> FluidCluster:
        """Let time pass until `until_s`."""
        steps_per_turn = round(REPORT_S / STEP_S)
        step = round(self.at_s / STEP_S)
        while self.at_s < until_s - 1e-9:
            self._flow()
            step += 1
            self.at_s = step * STEP_S
            for ended in [each for each in self.transfers if each[0] <= self.at_s + 1e-9]:
                self._finish(ended)
            for s in range(len(self.names) + 1):
                if step % steps_per_turn == s % steps_per_turn:
                    self._report(s)
        return self

    def _place(self) -> None:
        partitions = self.view.copies[1]
        self.held = [[p for p, copies in enumerate(partitions) if name in copies] for name in self.names]
        self.rows = [len(held) / len(partitions) for held in self.held]  # Per position.
        groups: Counter[tuple[int, ...]] = Counter()
        for copies in partitions:
            waited_for = [name for name in copies if name not in self.view.slow] or copies
            groups[tuple(self.names.index(name) for name in waited_for)] += 1
        self.groups = [(sites, count / len(partitions)) for sites, count in groups.items()]

    def _flow(self) -> None:
        x = self.positions
        room = POOL_ROWS + sum([share * min([x[s] for s in sites]) for sites, share in self.groups])
        self.source = max(self.source, min(room, self.source + self.input_max * STEP_S))
        for s, rows in enumerate(self.rows):
            if not rows:
                self.positions[s] = self.reported[s] = self.source
                continue
            able = self.speed_at(self.at_s, s) * self.noise[s] * ROWS_PER_S / rows * STEP_S
            done = min(able, self.source - self.positions[s])
            self.positions[s] += done
            self.busy_s[s] += STEP_S * done / able

    def _report(self, s: int) -> None:
        if self.policy is None:
            return
        self.numbers[s] += 1
        if s == len(self.names):
            kept = [(self.source - x) * rows for x, rows in zip(self.positions, self.rows, strict=True)]
            lags = tuple((name, rows / POOL_ROWS) for name, rows in zip(self.names, kept, strict=True))
            message = self._work("ingress", s, lags=lags)
        else:
            positions = self.positions[s] - self.reported[s]
            drawn = self._drawn(s, positions)
            stage = StageWork(stage=1, positions=round(positions), rows=drawn, busy_s=self.busy_s[s])
            message = self._work(self.names[s], s, busy_s=self.busy_s[s], stages=(stage,) if self.held[s] else ())
            self.reported[s], self.busy_s[s] = self.positions[s], 0.0
            self.noise[s] = float(np.exp(self.random.normal(0, self.jitter)))
        self._step(Tick(at_s=self.at_s))
        self._step(message)

    def _drawn(self, s: int, positions: float) -> tuple[tuple[int, int], ...]:
        if not self.held[s]:
            return ()
        rows = round(positions * self.rows[s])
        drawn = self.random.multinomial(rows, np.full(len(self.held[s]), 1 / len(self.held[s])))
        return tuple(zip(self.held[s], drawn.tolist(), strict=True))

    def _work(self, node: str, s: int, busy_s: float = 0.0, **fields: Any) -> Work:
        number = self.numbers[s]
        return Work(node=node, number=number, view=self.view.number, elapsed_s=REPORT_S, busy_s=busy_s, **fields)

    def _step(self, message: Any) -> None:
        effects: list[Any] = list(self.balancer.step(message))
        for effect in effects:
            if isinstance(effect, PlanRound):
                assert self.policy is not None
                self._step(ask(self.policy, effect))
            elif isinstance(effect, Slow):
                self.marks.append((self.at_s, frozenset(effect.nodes)))
                self._show(slow=frozenset(effect.nodes))
            else:
                self._begin(effect)

    def _show(self, **fields: Any) -> None:
        self.view = replace(self.view, number=self.view.number + 1, **fields)
        self._place()
        self._step(self.view)

    def _begin(self, move: Move) -> None:
        copies = self.view.copies[move.stage][move.partition]
        assert move.to not in copies, "two copies on one site"
        self.moves.append((self.at_s, move))
        self.transfers.append((self.at_s + TRANSFER_S, move))
        version = self.view.versions + 1
        standby = Standby(
            version=version,
            stage=move.stage,
            partition=move.partition,
            slot=move.slot,
            node=move.to,
            donor=copies[move.slot - 1],
        )
        self._show(versions=version, standby=(*self.view.standby, standby))

    def _finish(self, ended: tuple[float, Move]) -> None:
        self.transfers.remove(ended)
        move = ended[1]
        partitions = [list(copies) for copies in self.view.copies[1]]
        partitions[move.partition][move.slot] = move.to
        placed = tuple(tuple(copies) for copies in partitions)
        left = tuple(each for each in self.view.standby if each.partition != move.partition)
        self._show(copies=(self.view.copies[0], placed, self.view.copies[2]), standby=left)


def even(at_s: float, site: int) -> float:
    """All sites are equally fast."""
    return 1.0


def loaded(site: int, share: float, from_s: float = 5.0) -> SpeedAt:
    """One site does only `share` of what it did, from a time on."""
    return lambda at_s, s: share if s == site and at_s >= from_s else 1.0


def rotating(every_s: float, sites: int = 4, from_s: float = 5.0) -> SpeedAt:
    """From a time on one site after the other is at half speed."""
    return lambda at_s, s: 0.5 if at_s >= from_s and int((at_s - from_s) / every_s) % sites == s else 1.0
