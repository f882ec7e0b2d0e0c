"""Measured: what the processes of a run report of their work, by stage, partition and node; metrics are made of it.

The rows of a partition are the greatest total that any copy has reported. That of a process is what it reported last,
until it is dead.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from ..plan import Plan
from ..types.array_types import Float64s, Int64s
from ..wire.frames import BadFrame, format_value
from ..wire.reports import Measures, StageMeasures

RATE_WINDOW_S = 5.0  # Rates are over this last time.
_SNAPSHOT_EVERY_S = 1.0


class NodeMeasures(NamedTuple):
    """The last report of a node, and the part of the time before it in which its loop worked."""

    last: Measures
    busy_share: float


@dataclass
class EventTotals:
    """How often things have happened in a run that the driver only sees when they happen.

    Those `before` were seen by a driver that was ended: see `flux.driver.remote.kept_totals`.
    """

    moves: Counter[int] = field(default_factory=Counter)  # Transfers of a partition's state, by stage.
    moved_bytes: Counter[int] = field(default_factory=Counter)
    failures_before: Counter[str] = field(default_factory=Counter)  # By the role of the process.
    recoveries_before: Counter[str] = field(default_factory=Counter)
    rounds_before: int = 0

    def add_move(self, stage: int, size_bytes: int) -> None:
        """Count the transfer of one partition's state."""
        self.moves[stage] += 1
        self.moved_bytes[stage] += size_bytes


class Measured:
    """What was reported of the run of `plan`."""

    def __init__(self, plan: Plan) -> None:
        self.nodes: dict[str, NodeMeasures] = {}
        self.rows: dict[int, Int64s] = {stage: np.zeros(plan.partitions(stage), np.int64) for stage in plan.stages}
        self.keys: dict[tuple[int, int], int] = {}  # By stage and partition.
        self.state_bytes: dict[tuple[int, int], int] = {}  # When it was last sent to another site.
        self._stages = range(plan.sink_stages.stop)
        self._edges = range(len(plan.edges))
        self._snapshots: deque[tuple[float, dict[int, Int64s]]] = deque()

    def apply(self, report: Measures, node: str, now: float, is_dead: bool) -> None:
        """Take a report of `node`; `BadFrame` if it names what the plan does not have."""
        for stage in report.stages:
            self._check(stage)
        edges = {edge for _, edge, _ in report.waits}.union(edge for edge, *_ in report.kept)
        if not edges <= set(self._edges) or not {stage for stage, *_ in report.waits} <= set(self._stages):
            raise BadFrame(f"expected edges and stages of the plan, got {format_value((report.waits, report.kept))}")
        for stage in report.stages:
            if stage.partitions:
                held, totals = list(stage.partitions), self.rows[stage.stage]
                totals[held] = np.maximum(totals[held], stage.rows)
                self.keys.update(zip([(stage.stage, p) for p in held], stage.keys, strict=False))
        if not is_dead:  # It may have reported before, on another link than that on which the death was noticed.
            self.nodes[node] = NodeMeasures(report, self._busy_share(report, node))
        self._take_snapshot(now)

    def _check(self, stage: StageMeasures) -> None:
        partitions = self.rows.get(stage.stage, ())
        is_known = stage.stage in self._stages and all(0 <= p < len(partitions) for p in stage.partitions)
        counts = (stage.rows, stage.keys or stage.partitions)
        if not is_known or any(len(each) != len(stage.partitions) for each in counts):
            raise BadFrame(f"expected the rows and keys of partitions of a stage, got {format_value(stage)}")

    def _busy_share(self, report: Measures, node: str) -> float:
        before = self.nodes.get(node)
        elapsed_s, busy_s = report.elapsed_s, report.busy_s + report.moving_s
        if before is not None and before.last.elapsed_s < elapsed_s:
            elapsed_s -= before.last.elapsed_s
            busy_s -= before.last.busy_s + before.last.moving_s
        elif before is not None:
            return before.busy_share  # Nothing was measured since.
        return min(1.0, max(0.0, busy_s / elapsed_s)) if elapsed_s > 0 else 0.0

    def forget(self, node: str) -> None:
        """Forget a node that is dead: what it did is in the totals of partitions."""
        self.nodes.pop(node, None)

    def note_state(self, stage: int, partition: int, size_bytes: int) -> None:
        """Note the size of a partition's state, as it was sent."""
        self.state_bytes[stage, partition] = size_bytes

    def rates(self, now: float) -> dict[int, Float64s]:
        """Return the rows per second of each partition, by stage, over the last seconds."""
        known = [(at, rows) for at, rows in self._snapshots if at >= now - RATE_WINDOW_S - _SNAPSHOT_EVERY_S]
        if not known or now <= known[0][0]:
            return {stage: np.zeros(len(rows)) for stage, rows in self.rows.items()}
        since, before = known[0]
        return {stage: (rows - before[stage]) / (now - since) for stage, rows in self.rows.items()}

    def _take_snapshot(self, now: float) -> None:
        if self._snapshots and now - self._snapshots[-1][0] < _SNAPSHOT_EVERY_S:
            return
        self._snapshots.append((now, {stage: rows.copy() for stage, rows in self.rows.items()}))
        while len(self._snapshots) > 1 and self._snapshots[1][0] <= now - RATE_WINDOW_S:
            self._snapshots.popleft()

    # For a driver that is started again.

    def restore_rows(self, stage: int, totals: Iterable[Any]) -> None:
        """Set what an earlier driver knew of the rows of a stage."""
        self.rows[stage] = np.maximum(self.rows[stage], np.array(list(totals), np.int64))
