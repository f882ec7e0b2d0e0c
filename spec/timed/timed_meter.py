"""What a process of a simulated cluster reports of its work, as the work meter of a site does."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from ...protocols.balance_messages import StageWork, Work
from ...protocols.inspection import kept_rows, oldest_cohort, younger_partitions
from ...protocols.messages import Consume
from ...protocols.node import Node
from ...protocols.pooler import Pooler
from ..dataflow import EGRESS


@dataclass(slots=True)
class StageSums:
    """What the copies of one stage have done since the last report."""

    positions: int = 0
    rows: Counter[int] = field(default_factory=Counter)
    busy_s: float = 0.0
    catching_up: frozenset[int] = frozenset()


class TimedMeter:
    """The work of one process since its last report."""

    def __init__(self) -> None:
        self._number = 0
        self._since_s = 0.0
        self._busy_s = 0.0
        self._moving_s = 0.0
        self._stages: dict[int, StageSums] = {}

    def note_moving(self, took_s: float) -> None:
        """Count the time of state that was cut or installed."""
        self._moving_s += took_s

    def note_step(self, node: Node, job: Consume, rows: Counter[int], took_s: float) -> None:
        """Count a step that has ended."""
        sums = self._stages.setdefault(job.stage, StageSums())
        self._busy_s += took_s
        sums.busy_s += took_s
        sums.rows.update(rows)
        if job.cohort == oldest_cohort(node, job.stage):
            sums.positions += job.upto - job.after
        else:
            sums.catching_up |= job.partitions

    def take(self, node: Node, now_s: float, state_bytes: int) -> Work:
        """Return what was done since the last report, and begin the next."""
        self._number += 1
        work = Work(
            node=node.name,
            number=self._number,
            view=0 if node.view is None else node.view.number,
            elapsed_s=max(now_s - self._since_s, 1e-9),
            busy_s=self._busy_s,
            moving_s=self._moving_s,
            stages=tuple(self._stage_works(node, state_bytes)),
            lags=tuple(
                (dest, kept.lag) for dest, kept in sorted(kept_rows(node).items()) if dest != EGRESS and kept.lag > 0
            ),
        )
        self._since_s, self._busy_s, self._moving_s, self._stages = now_s, 0.0, 0.0, {}
        return work

    def _stage_works(self, node: Node, state_bytes: int) -> list[StageWork]:
        works = []
        for stage, machine in node.machines.items():
            sums = self._stages.get(stage, StageSums())
            younger = younger_partitions(node, stage)
            if not isinstance(machine, Pooler) or (younger is None and not sums.rows):
                continue
            held = [p for cohort in machine.cons.cohorts.values() for p in cohort.partitions]
            works.append(
                StageWork(
                    stage=stage,
                    positions=sums.positions,
                    rows=tuple(sorted(sums.rows.items())),
                    busy_s=sums.busy_s,
                    catching_up=tuple(sorted(sums.catching_up | (younger or frozenset()))),
                    state_bytes=tuple((p, state_bytes) for p in sorted(held)),
                )
            )
        return works
