"""Work meter: measures what a process does, and reports it to the controller many times a second, unasked.

Busy is wall time in which the loop does not wait, so time that the system gives to other processes counts. The time in
which state is read, sent and installed is apart: else a site that receives copies would look slow, and lose others.

Rows are counted by partition for each step at once, of a long step those of a part: that is enough for sums over many
steps, and all of them would cost 1 to 2 ns a row. Only an operator that is called for one partition
at a time is timed by partition. The others take all partitions in one call, and a partition alone would cost many times
what it costs in a step with the others.

A step is counted when it has ended. A site in a long step reports nothing meanwhile, and that silence shows.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt
import trio

from ..model.batch import Batch
from ..plan import Plan
from ..plan.plan import EGRESS, INGRESS
from ..protocols.balance_messages import StageWork, Work
from ..protocols.inspection import kept_rows, oldest_cohort, younger_partitions
from ..protocols.messages import Consume
from ..protocols.node import Node
from ..system import idle_time

REPORT_EVERY_S = 0.1
# Of a longer step so many neighbouring rows are counted, at another place each time. Neighbours, because rows may come
# in turns of partitions, and every n-th of them would be of the same one.
COUNTED_ROWS_MAX = 4_096
_GOLDEN = 0.6180339887498949  # Its multiples fall evenly everywhere between 0 and 1.


class WorkMeter:
    """Measures one process of the run of `plan`, if that is to be balanced; else it counts nothing."""

    def __init__(self, plan: Plan) -> None:
        self.is_on = plan.policy.is_balanced
        self._stages = {stage: _StageMeter(stage, plan.partitions(stage)) for stage in plan.stages}
        self._number = 0
        self._moving_s = 0.0
        self._idle_s: Callable[[], float] = lambda: 0.0
        self._since_s = 0.0
        self._idle_before_s = 0.0

    async def report_regularly(self, node: Callable[[], Node], send: Callable[[Work], None]) -> None:
        """Send a report of what `node` has done every `REPORT_EVERY_S`, or as soon after as the loop is free."""
        self.start()
        while True:
            await trio.sleep(REPORT_EVERY_S)
            send(self.take(node()))

    def start(self) -> None:
        """Begin to measure: the first report is of what is done from now on."""
        self._idle_s = idle_time.watch()
        self._since_s = time.monotonic()

    # What is measured.

    def note_step(
        self, node: Node, job: Consume, rows: Batch | None, busy_s: float, costs_s: Mapping[int, float]
    ) -> None:
        """Count a step: its rows, how long it took, and the time of the calls that were for one partition."""
        if self.is_on:
            is_oldest = job.cohort == oldest_cohort(node, job.stage)
            self._stages[job.stage].add(job, is_oldest, rows, busy_s, costs_s)

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
        self._number += 1
        self._since_s, self._idle_before_s, self._moving_s = now_s, idle_s, 0.0
        stages = (meter.take(younger_partitions(node, stage)) for stage, meter in self._stages.items())
        kept = [(dest, of_dest) for dest, of_dest in sorted(kept_rows(node).items()) if _is_site(dest)]
        return Work(
            node=node.name,
            number=self._number,
            view=0 if node.view is None else node.view.number,
            elapsed_s=elapsed_s,
            busy_s=max(0.0, elapsed_s - waited_s - moving_s),
            moving_s=moving_s,
            stages=tuple(stage for stage in stages if stage is not None),
            lags=tuple([(dest, of_dest.lag) for dest, of_dest in kept]),
            kept=tuple([(dest, of_dest.rows, of_dest.rows_max) for dest, of_dest in kept]),
        )


class _StageMeter:
    """What the copies of one stage have done since the last report."""

    def __init__(self, stage: int, partitions: int) -> None:
        self._stage = stage
        self._partitions = partitions
        self._samples = 0
        self._clear()

    def _clear(self) -> None:
        self._positions = 0
        self._rows = np.zeros(self._partitions)
        self._busy_s = 0.0
        self._costs_s: np.ndarray[tuple[int], np.dtype[np.float64]] | None = None
        self._catching_up: frozenset[int] = frozenset()

    def add(
        self, job: Consume, is_oldest: bool, rows: Batch | None, busy_s: float, costs_s: Mapping[int, float]
    ) -> None:
        self._busy_s += busy_s
        if is_oldest:
            self._positions += job.upto - job.after
        else:
            self._catching_up |= job.partitions
        counts = None
        if rows is not None:
            counts = self._count(rows.partition)
            self._rows += counts
        if costs_s:
            self._add_costs(counts, busy_s, costs_s)

    def _count(self, partition: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return the rows of each partition; of a long step, as a part of its rows has them."""
        count = len(partition)
        if count <= COUNTED_ROWS_MAX:
            return np.bincount(partition, minlength=self._partitions)
        self._samples += 1
        begin = int(self._samples * _GOLDEN % 1 * count)
        end = begin + COUNTED_ROWS_MAX
        counts = np.bincount(partition[begin:end], minlength=self._partitions)
        if end > count:  # It goes on with the first rows: else those at both ends would be counted too seldom.
            counts += np.bincount(partition[: end - count], minlength=self._partitions)
        return counts * (count / COUNTED_ROWS_MAX)

    def _add_costs(self, counts: npt.NDArray[Any] | None, busy_s: float, costs_s: Mapping[int, float]) -> None:
        """Add the exact costs, and the rest of the step by rows: merging and routing take all partitions together."""
        if self._costs_s is None:
            self._costs_s = np.zeros(self._partitions)
        own = np.zeros(self._partitions)
        own[list(costs_s)] = list(costs_s.values())
        rest_s = max(0.0, busy_s - float(own.sum()))
        shares = own if counts is None or not counts.any() else counts
        self._costs_s += own + rest_s * shares / max(float(shares.sum()), 1e-12)

    def take(self, younger: frozenset[int] | None) -> StageWork | None:
        """Return the work of the interval, and begin the next; None if the site has no copy (`younger` is None)."""
        if younger is None and not self._rows.any():
            self._clear()
            return None
        rows = np.rint(self._rows).astype(np.int64)
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
