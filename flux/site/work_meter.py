"""Work meter: measures what a process does, and reports it: to the controller for balance, to the driver for metrics.

The controller of a run that is balanced gets the work of each interval, many times a second, unasked. The driver gets
totals about once a second: what a report does not say, because it is lost, the next one does.

Busy is wall time in which the loop does not wait, so time that the system gives to other processes counts. The time in
which state is read, sent and installed is apart: else a site that receives copies would look slow, and lose others.

Rows are counted by partition (`row_totals`). Only an operator that is called for one partition at a time is timed by
partition. The others take all partitions in one call, and a partition alone would cost many times what it costs in a
step with the others.

A step is counted when it has ended. A site in a long step reports nothing meanwhile, and that silence shows.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import numpy as np
import trio

from ..model.batch import Batch
from ..plan import Plan
from ..plan.plan import EGRESS, INGRESS
from ..protocols.balance_messages import StageWork, Work
from ..protocols.inspection import (
    StageBuffers,
    held_partitions,
    kept_by_destination,
    kept_rows,
    oldest_cohort,
    stage_buffers,
    younger_partitions,
)
from ..protocols.messages import Consume
from ..protocols.node import Node
from ..system import idle_time
from ..wire.reports import Measures, StageMeasures
from .pool_waits import PoolWaits
from .row_totals import RowTotals

REPORT_EVERY_S = 0.1  # To the controller.
MEASURES_EVERY_S = 1.0  # To the driver.


class WorkMeter:
    """Measures one process of the run of `plan`."""

    def __init__(self, plan: Plan) -> None:
        self.is_balanced = plan.policy.is_balanced
        self.pool_waits = PoolWaits()
        self.watermarks: dict[int, int] = {}  # The last one of each stage of this process, in milliseconds.
        self._stages = {stage: _StageMeter(stage, plan.partitions(stage)) for stage in plan.stages}
        self._number = 0
        self._moving_s = 0.0
        self._idle_s: Callable[[], float] = lambda: 0.0
        self._since_s = 0.0
        self._idle_before_s = 0.0
        # Since the process began.
        self._elapsed_total_s = self._busy_total_s = self._moving_total_s = 0.0

    async def report_regularly(
        self, node: Callable[[], Node], report: Callable[[], None], send_work: Callable[[Work], None] | None
    ) -> None:
        """Have measures reported every `MEASURES_EVERY_S`, and work sent every `REPORT_EVERY_S`, if it is wanted.

        Both are due as soon after as the loop is free.
        """
        self.start()
        sent_s = self._since_s
        while True:
            await trio.sleep(MEASURES_EVERY_S if send_work is None else REPORT_EVERY_S)
            work = self.take(node())
            if send_work is not None:
                send_work(work)
            if self._since_s - sent_s >= MEASURES_EVERY_S:
                sent_s = self._since_s
                report()

    def start(self) -> None:
        """Begin to measure: the first report is of what is done from now on."""
        self._idle_s = idle_time.watch()
        self._since_s, self._idle_before_s = time.monotonic(), self._idle_s()

    # What is measured.

    def note_step(
        self, node: Node, job: Consume, rows: Batch | None, busy_s: float, costs_s: Mapping[int, float]
    ) -> None:
        """Count a step: its rows, how long it took, and the time of the calls that were for one partition."""
        is_oldest = job.cohort == oldest_cohort(node, job.stage)
        self._stages[job.stage].add(job, is_oldest, rows, busy_s, costs_s)

    def row_total(self, stage: int, partition: int) -> int:
        """Return the rows that a partition has consumed, on whatever sites it was."""
        return int(self._stages[stage].rows.totals()[partition])

    def put_row_total(self, stage: int, partition: int, total: int) -> None:
        """Set the total of a copy that was transferred here."""
        self._stages[stage].rows.put(partition, total)

    @contextmanager
    def moving(self) -> Iterator[None]:
        """Count the time until the block ends as that of state in transfer."""
        began_s = time.monotonic()
        try:
            yield
        finally:
            self.note_moving(time.monotonic() - began_s)

    def note_moving(self, took_s: float) -> None:
        """Count this time as that of state in transfer."""
        self._moving_s += took_s

    # What is reported.

    def take(self, node: Node) -> Work:
        """Return what was done since the last report."""
        now_s, idle_s = time.monotonic(), self._idle_s()
        elapsed_s, waited_s = now_s - self._since_s, idle_s - self._idle_before_s
        moving_s = min(self._moving_s, elapsed_s)
        busy_s = max(0.0, elapsed_s - waited_s - moving_s)
        self._number += 1
        self._elapsed_total_s += elapsed_s
        self._busy_total_s += busy_s
        self._moving_total_s += moving_s
        self._since_s, self._idle_before_s, self._moving_s = now_s, idle_s, 0.0
        stages = (meter.take(younger_partitions(node, stage)) for stage, meter in self._stages.items())
        kept = [(dest, of_dest) for dest, of_dest in sorted(kept_rows(node).items()) if _is_site(dest)]
        return Work(
            node=node.name,
            number=self._number,
            view=0 if node.view is None else node.view.number,
            elapsed_s=elapsed_s,
            busy_s=busy_s if _is_site(node.name) else 0.0,  # An ingress is compared with no site.
            moving_s=moving_s,
            stages=tuple(stage for stage in stages if stage is not None),
            lags=tuple([(dest, of_dest.lag) for dest, of_dest in kept]),
            kept=tuple([(dest, of_dest.rows, of_dest.rows_max) for dest, of_dest in kept]),
        )

    def measures(self, node: Node, keys_of: Callable[[int], Mapping[int, int]]) -> Measures:
        """Return the totals up to the last call of `take`, and what is held now; `keys_of` counts those of a stage."""
        return Measures(
            elapsed_s=self._elapsed_total_s,
            busy_s=self._busy_total_s,
            moving_s=self._moving_total_s,
            stages=tuple([self._stage_measures(node, each, keys_of(each.stage)) for each in stage_buffers(node)]),
            waits=self.pool_waits.totals(),
            kept=tuple(kept_by_destination(node)),
        )

    def _stage_measures(self, node: Node, buffers: StageBuffers, keys: Mapping[int, int]) -> StageMeasures:
        stage = buffers.stage
        meter, held = self._stages.get(stage), held_partitions(node, stage)
        return StageMeasures(
            stage=stage,
            partitions=tuple(held),
            rows=() if meter is None else tuple(meter.rows.totals()[held].tolist()),
            keys=tuple([keys.get(partition, 0) for partition in held]) if keys else (),
            busy_s=0.0 if meter is None else meter.busy_total_s,
            pending_rows=buffers.pending_rows,
            pool_rows=buffers.pool_rows,
            pool_rows_max=buffers.pool_rows_max,
            watermark_ms=self.watermarks.get(stage),
        )


class _StageMeter:
    """What the copies of one stage have done since the last report."""

    def __init__(self, stage: int, partitions: int) -> None:
        self._stage = stage
        self._partitions = partitions
        self.rows = RowTotals(partitions)
        self.busy_total_s = 0.0
        self._clear()

    def _clear(self) -> None:
        self._positions = 0
        self._busy_s = 0.0
        self._costs_s: np.ndarray[tuple[int], np.dtype[np.float64]] | None = None
        self._catching_up: frozenset[int] = frozenset()

    def add(
        self, job: Consume, is_oldest: bool, rows: Batch | None, busy_s: float, costs_s: Mapping[int, float]
    ) -> None:
        self._busy_s += busy_s
        self.busy_total_s += busy_s
        if is_oldest:
            self._positions += job.upto - job.after
        else:
            self._catching_up |= job.partitions
        if rows is not None:
            self.rows.add(rows.partition)
        if costs_s:
            self._add_costs(rows, busy_s, costs_s)

    def _add_costs(self, rows: Batch | None, busy_s: float, costs_s: Mapping[int, float]) -> None:
        """Add the exact costs, and the rest of the step by rows: merging and routing take all partitions together."""
        if self._costs_s is None:
            self._costs_s = np.zeros(self._partitions)
        own = np.zeros(self._partitions)
        own[list(costs_s)] = list(costs_s.values())
        rest_s = max(0.0, busy_s - float(own.sum()))
        shares = np.bincount(rows.partition, minlength=self._partitions) if rows is not None and len(rows) else own
        self._costs_s += own + rest_s * shares / max(float(shares.sum()), 1e-12)

    def take(self, younger: frozenset[int] | None) -> StageWork | None:
        """Return the work of the interval, and begin the next; None if the site has no copy (`younger` is None)."""
        rows = self.rows.take()
        if younger is None and not rows.any():
            self._clear()
            return None
        counted = np.flatnonzero(rows)
        costs_s = self._costs_s
        work = StageWork(
            stage=self._stage,
            positions=self._positions,
            rows=tuple(zip(counted.tolist(), rows[counted].tolist(), strict=True)),
            busy_s=self._busy_s,
            costs_s=() if costs_s is None else tuple((int(p), float(costs_s[p])) for p in np.flatnonzero(costs_s)),
            catching_up=tuple(sorted(self._catching_up | (younger or frozenset()))),
        )
        self._clear()
        return work


def _is_site(node: str) -> bool:
    return node.partition(".")[0] not in (INGRESS, EGRESS)
