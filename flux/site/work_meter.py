"""Work meter: measures what a process does, and reports it to the controller many times a second, unasked.

Busy is wall time in which the loop does not wait, so time that the system gives to other processes counts. The time in
which state is read, sent and installed is apart: else a site that receives copies would look slow, and lose others.

Rows are counted by partition, of a long step one in sixteen: that is enough for sums over many steps. Their partitions
are kept, and those of many steps are counted together, which takes a fifth of the time. Only an operator that is called
for one partition at a time is timed by partition. The others take all partitions in one call, and a partition alone
would cost many times what it costs in a step with the others.

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
LONG_STEP_ROWS = 4_096
# Of a longer step one row in so many is counted. They are neighbours, at another place each time: rows may come in
# turns of partitions, and every n-th of them would be of the same one.
ONE_IN = 16
COUNTED_AT_ONCE_ROWS = 16_384
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
        self.start(is_timed=_is_site(node().name))
        while True:
            await trio.sleep(REPORT_EVERY_S)
            send(self.take(node()))

    def start(self, is_timed: bool = True) -> None:
        """Begin to measure: the first report is of what is done from now on.

        An ingress is compared with no site. So it is not timed, and its reports have no busy time.
        """
        self._idle_s = idle_time.watch() if is_timed else time.monotonic
        self._since_s, self._idle_before_s = time.monotonic(), self._idle_s()

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
        self._rows = _RowCounter(partitions)
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
        if is_oldest:
            self._positions += job.upto - job.after
        else:
            self._catching_up |= job.partitions
        if rows is not None:
            self._rows.add(rows.partition)
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
        rows = self._rows.take()
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


class _RowCounter:
    """Counts the rows of each partition, of long steps a part."""

    def __init__(self, partitions: int) -> None:
        self._every = _KeptPartitions(partitions)
        self._some = _KeptPartitions(partitions)
        self._steps = 0
        self._left = 0  # Rows of long steps that are not yet a whole one in `ONE_IN`.

    def add(self, partition: npt.NDArray[Any]) -> None:
        """Count the rows of a step, whose partitions these are."""
        count = len(partition)
        if count <= LONG_STEP_ROWS:
            self._every.add(partition)
            return
        self._steps += 1
        kept, self._left = divmod(count + self._left, ONE_IN)
        begin = int(self._steps * _GOLDEN % 1 * count)
        self._some.add(partition[begin : begin + kept])
        if begin + kept > count:  # It goes on with the first rows: else those at both ends would be counted too seldom.
            self._some.add(partition[: begin + kept - count])

    def take(self) -> npt.NDArray[np.int64]:
        """Return the rows of each partition since the last call."""
        return self._every.take() + ONE_IN * self._some.take()


class _KeptPartitions:
    """The partitions of rows, of many steps; they are counted when there are enough."""

    def __init__(self, partitions: int) -> None:
        self._kept = np.empty(COUNTED_AT_ONCE_ROWS, np.intp)
        self._count = 0
        self._totals = np.zeros(partitions, np.int64)

    def add(self, partition: npt.NDArray[Any]) -> None:
        """Add the partitions of some rows."""
        for begin in range(0, len(partition), COUNTED_AT_ONCE_ROWS):
            some = partition[begin : begin + COUNTED_AT_ONCE_ROWS]
            if self._count + len(some) > COUNTED_AT_ONCE_ROWS:
                self._count_kept()
            self._kept[self._count : self._count + len(some)] = some
            self._count += len(some)

    def take(self) -> npt.NDArray[np.int64]:
        """Return how many there were of each since the last call."""
        self._count_kept()
        totals, self._totals = self._totals, np.zeros_like(self._totals)
        return totals

    def _count_kept(self) -> None:
        self._totals += np.bincount(self._kept[: self._count], minlength=len(self._totals))
        self._count = 0


def _is_site(node: str) -> bool:
    return node.partition(".")[0] not in (INGRESS, EGRESS)
