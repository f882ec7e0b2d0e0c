"""The thesis's own cluster: its Exchange and Flux-LB with moves that hold a partition (thesis 4.3, 4.4.1 to 4.4.3).

The baseline of fig. 4.8. The production machines build a third copy and process the partition meanwhile, so bad moves
cost them nothing, and no policy can thrash on them. Here a partition that moves is processed by no site:

1. Its rows in the connections of the donor are processed; the pools keep the others (pause, quiesce).
2. The donor cuts the state, the links carry it, and the receiver installs it. Both processors are busy with that.
3. The receiver gets what the pools have kept (restart). The round ends with its last move.

Rows kept for a partition that is held take up room in the pools. When these are full, all sites wait.

Processors, links, keys and pools are those of `ClusterSetting`, and the policy is handed in. Time passes in ticks, and
pools hold counts per partition. Each connection holds two packets of 1 KB (thesis 4.2). The producers are alike: their
pools are one. Bandwidth for state is shared alike by all transfers under way.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from flux.balance import (
    BalancePolicy,
    HillClimbing,
    PartitionStatistics,
    ReceivedWork,
    Round,
    SiteStatistics,
    Statistics,
)
from flux.balance.hill_climbing import CollectedWork
from flux.balance.statistics import LazySequence
from flux.protocols.balance_messages import StageWork, Work
from flux.protocols.messages import Move
from flux.spec.timed import ClusterOutcome, ClusterSample, ClusterSetting

TICK_S = 0.002
PACKET_BYTES = 1_024
PACKETS = 2  # In each connection.
ROWS_DRAWN = 500_000  # At a time.
Counts = npt.NDArray[np.int64]


class PrintedHillClimbing(HillClimbing):
    """The thesis's policy with U'_r as it is printed: U_r (1 + N_p / T_d), and not T_r as derived above it.

    A partition with most of its donor's rows is then predicted to make any receiver at most twice as busy.
    """

    def at_receiver(self, donor: CollectedWork, receiver: CollectedWork, count: int) -> float:
        """U'_r as printed."""
        return receiver.utilisation * (1 + count / donor.total)


@dataclass(slots=True, kw_only=True)
class HeldPartition:
    """A partition that moves. `drain_rows` of its donor come first; `state_bytes` are still to be sent."""

    partition: int
    donor: int
    receiver: int
    drain_rows: int
    state_bytes: float
    is_cut: bool = False


class ThesisCluster:
    """A cluster of `setting` that the thesis's Flux-LB balances by `policy`; without one it is static."""

    def __init__(self, setting: ClusterSetting, policy: BalancePolicy | None = None) -> None:
        self.setting = setting
        self.policy = policy
        self.tick = 0
        self.site_of = np.arange(setting.partitions) % setting.sites
        self.pool = np.zeros(setting.partitions, np.int64)
        self.is_held = np.zeros(setting.partitions, bool)
        self.lines = [np.zeros(0, np.int64) for _ in setting.names]  # The rows in each site's connections, in order.
        self.line_rows = PACKETS * PACKET_BYTES // setting.row_bytes * setting.sites
        self.credit_s = np.zeros(setting.sites)  # Of the processor: below 0 while a site is busy with state or a row.
        self.busy_s = np.zeros(setting.sites)
        self.consumed = np.zeros(setting.partitions, np.int64)  # In this collection phase.
        self.moves: list[HeldPartition] = []
        self.rounds: list[Round] = []
        self.collected_s = 0.0  # When this collection phase began.
        self.asked_s = 0.0
        self.total = 0
        self.moved_s: list[float] = []
        self.samples: list[ClusterSample] = []
        self._chance = np.random.default_rng((setting.seed, 4))
        self._shares = np.array(setting.known_shares)
        self._limits = np.cumsum(self._shares)
        self._drawn = self._draw()
        self._used = 0

    @property
    def now_s(self) -> float:
        """The time: whole ticks."""
        return self.tick * TICK_S

    def run(self, until_s: float) -> ClusterOutcome:
        """Let time pass up to `until_s`, and return what has happened until then."""
        ticks_each_sample = round(self.setting.sample_s / TICK_S)
        while self.now_s < until_s - TICK_S / 2:
            self._pass_tick()
            if self.tick % ticks_each_sample == 0:
                self._sample()
        return ClusterOutcome(
            samples=tuple(self.samples), rounds=tuple(self.rounds), moved_s=tuple(self.moved_s), messages=0
        )

    def _sample(self) -> None:
        setting = self.setting
        work_s = np.bincount(self.site_of, self._shares, setting.sites) * setting.consumed_row_s
        speeds = np.array([setting.speed(name, self.now_s) for name in setting.names])
        sustained = float(1 / (work_s / speeds).max())
        sample = ClusterSample(at_s=self.now_s, rows=self.total, sustained_rate=sustained, moves=len(self.moved_s))
        self.samples.append(sample)

    def _pass_tick(self) -> None:
        self._produce()
        self._send()
        self.tick += 1
        self._process()
        self._move()
        self._balance()

    # Rows.

    def _draw(self) -> Counts:
        drawn = np.searchsorted(self._limits, self._chance.random(ROWS_DRAWN) * self._limits[-1], side="right")
        partitions: Counts = np.minimum(drawn, len(self._limits) - 1)
        return partitions

    def _produce(self) -> None:
        """Fill the pools: producers are faster than all else, and what they cost is charged to consumed rows."""
        room = self.setting.producer_pool_rows - int(self.pool.sum())
        while room > 0:
            some = self._drawn[self._used : self._used + room]
            self.pool += np.bincount(some, minlength=len(self.pool))
            self._used += len(some)
            room -= len(some)
            if self._used == len(self._drawn):
                self._drawn, self._used = self._draw(), 0

    def _send(self) -> None:
        """Fill the connections: each gets of its partitions in proportion to what there is, none of those held."""
        sites = self.setting.sites
        ready = np.where(self.is_held, 0, self.pool)
        there = np.bincount(self.site_of, weights=ready, minlength=sites)
        room = np.maximum(self.line_rows - np.array([len(line) for line in self.lines]), 0)
        part = np.minimum(1.0, room / np.maximum(there, 1))[self.site_of]
        taken = np.floor(ready * part + self._chance.random(len(ready))).astype(np.int64)
        taken = np.minimum(np.where(part < 1.0, taken, ready), ready)
        self.pool -= taken
        some = np.flatnonzero(taken)
        rows = self._chance.permutation(np.repeat(some, taken[some]))
        places = self.site_of[rows]
        rows = rows[np.argsort(places, kind="stable")]
        begin = 0
        for site, count in enumerate(np.bincount(places, minlength=sites).tolist()):
            if count:
                self.lines[site] = np.concatenate([self.lines[site], rows[begin : begin + count]])
                begin += count

    def _process(self) -> None:
        """Let each processor work for a tick; what a site has no rows for is idle time, and is not kept."""
        setting, now_s = self.setting, self.now_s
        has_s = TICK_S * np.array([setting.speed(name, now_s) for name in setting.names])
        self.credit_s += has_s
        lengths = np.array([len(line) for line in self.lines])
        counts = np.minimum(lengths, np.maximum(self.credit_s / setting.consumed_row_s, 0.0).astype(np.int64))
        noise_s = self._chance.normal(size=len(counts)) * setting.row_deviation_s * np.sqrt(counts)
        self.credit_s -= counts * setting.consumed_row_s + noise_s
        sizes = counts.tolist()
        done = np.concatenate([line[:count] for line, count in zip(self.lines, sizes, strict=True)])
        self.lines = [line[count:] for line, count in zip(self.lines, sizes, strict=True)]
        self.consumed += np.bincount(done, minlength=len(self.consumed))
        self.total += len(done)
        idle_s = np.where(counts == lengths, np.clip(self.credit_s, 0.0, has_s), 0.0)
        self.credit_s -= idle_s
        self.busy_s += TICK_S * (1 - idle_s / has_s)
        for move in self.moves:
            move.drain_rows -= sizes[move.donor]

    # Moves.

    def _move(self) -> None:
        """Let the moves of the round go on by a tick."""
        setting = self.setting
        sending = [move for move in self.moves if move.is_cut]
        share = min(1.0, setting.state_transfers_at_once / max(1, len(sending)))
        for move in sending:
            move.state_bytes -= share * setting.state_bytes_per_s * TICK_S
            if move.state_bytes <= 0:
                self.credit_s[move.receiver] -= setting.state_cost_s
                self.site_of[move.partition] = move.receiver
                self.is_held[move.partition] = False
                self.moves.remove(move)
        for move in self.moves:
            if not move.is_cut and move.drain_rows <= 0:
                self.credit_s[move.donor] -= setting.state_cost_s
                move.is_cut = True

    def _hold(self, move: Move) -> HeldPartition:
        setting, partition = self.setting, move.partition
        self.is_held[partition] = True
        donor = int(self.site_of[partition])
        receiver = setting.names.index(move.to)
        rows = len(self.lines[donor])
        return HeldPartition(
            partition=partition, donor=donor, receiver=receiver, drain_rows=rows, state_bytes=setting.state_bytes
        )

    def _balance(self) -> None:
        """End the round with its last move; else ask the policy, which knows when a collection phase has ended."""
        if self.policy is None:
            return
        if self.rounds and self.rounds[-1].ended_s is None:
            if not self.moves:
                self._end_round()
            return
        moves = self.policy.plan(self._statistics())
        self.asked_s = self.now_s
        if moves:
            givers = tuple(self.setting.names[self.site_of[move.partition]] for move in moves)
            begun = Round(
                number=len(self.rounds) + 1,
                why="",
                moves=tuple(moves),
                givers=givers,
                began_s=self.now_s,
                gain_expected=0.0,
            )
            self.rounds.append(begun)
            self.moves = [self._hold(move) for move in moves]
            self.moved_s += [self.now_s] * len(moves)

    def _end_round(self) -> None:
        self.rounds[-1] = replace(self.rounds[-1], ended="done", ended_s=self.now_s)
        self.asked_s = self.now_s
        self._collect_anew()

    # Statistics.

    def _statistics(self) -> Statistics:
        names = self.setting.names
        return Statistics(
            at_s=self.now_s,
            asked_s=self.asked_s,
            sites=LazySequence(lambda: [SiteStatistics(name=name, speed=1.0, time_s=0.0) for name in names]),
            partitions=LazySequence(self._partitions),
            rounds=tuple(self.rounds[-1:]),
            reports=LazySequence(self._reports),
        )

    def _partitions(self) -> Sequence[PartitionStatistics]:
        stage, names = self.setting.consuming, self.setting.names
        return [
            PartitionStatistics(stage=stage, partition=partition, work=1.0, copies=(names[site],))
            for partition, site in enumerate(self.site_of.tolist())
        ]

    def _reports(self) -> Sequence[ReceivedWork]:
        """What each site did in the collection phase that ends now, and nothing of the time before it."""
        elapsed_s = max(self.now_s - self.collected_s, TICK_S)
        rows: list[list[tuple[int, int]]] = [[] for _ in self.setting.names]
        for partition in np.flatnonzero(self.consumed).tolist():
            rows[self.site_of[partition]].append((partition, int(self.consumed[partition])))
        reports = []
        for site, name in enumerate(self.setting.names):
            busy_s = min(float(self.busy_s[site]), elapsed_s)
            stage = StageWork(stage=self.setting.consuming, positions=0, rows=tuple(rows[site]), busy_s=busy_s)
            work = Work(node=name, number=1, view=0, elapsed_s=elapsed_s, busy_s=busy_s, stages=(stage,))
            reports.append(ReceivedWork(at_s=self.now_s, work=work))
        self._collect_anew()
        return reports

    def _collect_anew(self) -> None:
        self.collected_s = self.now_s
        self.busy_s[:] = 0.0
        self.consumed[:] = 0
