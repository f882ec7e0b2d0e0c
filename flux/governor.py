"""Controllers of micro-batches: how many rows each job gets, where every R-th job takes a checkpoint as well.

Job j is due at j intervals. It starts when it is due and the job before it has ended, so what a job takes beyond its
interval delays the next one. A checkpoint job and the R - 1 jobs after it are a *region*. `Pid` reacts to delay after
it has come; `Governor` plans each region around its checkpoint, after Chen et al., "Governor: Smoother Stream
Processing Through Smarter Backpressure". `Naive` and `Fixed` are there to compare with.

Here are no I/O, clock or randomness: all that a controller knows is what `done` was given. Nothing in Flux calls one
yet.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from .sources.rate_control import Fixed, Naive, Pid, SizeController, check_job, positive, whole

__all__ = ["Fixed", "Governor", "Naive", "Pid", "RegionPlan", "SizeController"]

RECORDS_MAX = 1_000  # Of each kind of job in a history.
_GROWTH_MAX = 1.5  # From one full job to the next.
_EXACT_GAIN, _EXACT_GROWTH_MAX = 0.25, 4.0
_ROWS_MAX = 10**12  # Of a job, where jobs take no time at all.
_LEAST_SHARE_MAX = 0.95  # Of the interval: a job of least size counts as one that clears at least a little delay.
_SLACK = 1e-9  # Of sums of times, which are not exact.


@dataclass(frozen=True, kw_only=True)
class RegionPlan:
    """The sizes of a region's jobs: the first one takes the checkpoint; jobs without a size of their own get `full`.

    >>> plan = RegionPlan(first_job=10, sizes=(10, 10))
    >>> plan.size(11), plan.size(12)
    (10, None)
    """

    first_job: int
    sizes: tuple[int, ...] = ()  # Of the checkpoint job and those after it.
    excess_s: float = 0.0  # To be cleared: the delay inherited, and what the checkpoint job takes beyond an interval.
    rate: float | None = None  # Rows per second of the whole region: what a receiver may take in. None: not planned.

    def size(self, job: int) -> int | None:
        """Return the size planned for a job, or None for `full`."""
        at = job - self.first_job
        return self.sizes[at] if 0 <= at < len(self.sizes) else None


class Governor:
    """Plan the sizes of a region's jobs when the region before it ends.

    A checkpoint job gets `min_rows`, and so do as many jobs after it as it takes to clear the delay, with what the
    checkpoint adds; all others get `full`, the rows that take an interval. Jobs 0, `every`, 2 `every`, ... take a
    checkpoint. Times are means of the last `history_s` seconds; of each kind of job the newest stays, however old.

    With `exact=True` a checkpoint job gets what fits beside its checkpoint, and the job that clears the last of the
    delay gets what still fits, by the delay it starts with. For that a line is laid through rows and times of the jobs
    without checkpoint.

    >>> governor = Governor(interval_s=1, every=10, first=1_000, min_rows=10)
    >>> governor.size(0), governor.size(1), governor.size(2)  # Two of least size, to know what these take.
    (10, 10, 1000)
    >>> governor.done(0, now_s=1.25, rows=10, processing_s=1.25, delay_s=0.0)
    >>> governor.done(1, now_s=1.75, rows=10, processing_s=0.5, delay_s=0.25)
    >>> for job in range(2, 10):
    ...     governor.done(job, now_s=job + 1, rows=governor.size(job), processing_s=1.0, delay_s=0.0)
    >>> governor.plan.sizes  # The checkpoint takes 0.25 s beyond the interval, and a small job clears 0.5 s.
    (10, 10)
    """

    def __init__(
        self, interval_s: float, every: int, first: int, min_rows: int, history_s: float = 60.0, exact: bool = False
    ) -> None:
        self._interval_s = positive("Governor", "interval_s", interval_s)
        self._every = whole("Governor", "every", every, least=2)
        self._min_rows = whole("Governor", "min_rows", min_rows, least=1)
        self._full = float(whole("Governor", "first", first, least=self._min_rows))
        history_s = positive("Governor", "history_s", history_s)
        self._exact = exact
        self._checkpoints, self._least, self._others = (_History(history_s) for _ in range(3))
        self._delay_s = 0.0  # Of the next job, if it starts as soon as it can.
        self._asked = _SizedJob(job=-1, rows=0, is_full=False)
        self._line: _Line | None = None  # What the region was planned with, if exactly.
        self._is_cleared = False  # A job of the region cleared the last of the delay.
        self.plan = self._planned(0)

    @property
    def full(self) -> int:
        """The rows that take an interval, as far as is known."""
        return int(self._full)

    @property
    def signals(self) -> tuple[tuple[float, int], ...]:
        """The paper's signals: for each job of the plan with a size of its own, when it is due (s), and its rows."""
        due = enumerate(self.plan.sizes, self.plan.first_job)
        return tuple((job * self._interval_s, rows) for job, rows in due)

    def size(self, job: int) -> int:
        """Return how many rows this job gets. A controller that begins within a region has no plan for it: `full`."""
        if job < self._asked.job:
            last = self._asked.job
            raise ValueError(f"Governor: size of job {job} asked after job {last}; make a new controller to begin anew")
        if job > self._asked.job:
            region = job - job % self._every
            if self.plan.first_job != region:
                self.plan = self._planned(region) if job == region else RegionPlan(first_job=region)
            sized = self.plan.size(job)
            if self._line is not None and job != region:
                sized = None if self._is_cleared else self._clearing(self._line)
            self._asked = _SizedJob(job=job, rows=self.full if sized is None else sized, is_full=sized is None)
        return self._asked.rows

    def done(self, job: int, now_s: float, rows: int, processing_s: float, delay_s: float) -> None:
        """Take in what a job was. After the last one of a region the next region is planned."""
        check_job("Governor", job, now_s, rows, processing_s, delay_s)
        self._delay_s = max(0.0, delay_s + processing_s - self._interval_s)
        if job % self._every == 0:
            self._checkpoints.add(now_s, rows, processing_s)
        elif rows <= self._min_rows:
            self._least.add(now_s, rows, processing_s)
        else:
            self._others.add(now_s, rows, processing_s)
        # A job that found fewer rows than it might have had says nothing about how many fit.
        if job == self._asked.job and self._asked.is_full and rows >= self._asked.rows:
            full = self._integrated(processing_s) if self._exact else self._extrapolated(rows, processing_s)
            self._full = min(max(full, float(self._min_rows)), float(_ROWS_MAX))
        if (job + 1) % self._every == 0:
            self.plan = self._planned(job + 1)

    def _planned(self, first_job: int) -> RegionPlan:
        can_be_exact = self._exact and bool(self._checkpoints)
        self._line = _fit([*self._least.jobs(), *self._others.jobs()]) if can_be_exact else None
        self._is_cleared = False
        if self._line is not None:
            return self._planned_exactly(first_job, self._line)
        interval_s, region_s = self._interval_s, self._every * self._interval_s
        least_s = min(self._least.seconds if self._least else interval_s / 2, _LEAST_SHARE_MAX * interval_s)
        checkpoint_s = self._checkpoints.seconds if self._checkpoints else interval_s
        excess_s = self._delay_s + checkpoint_s - interval_s
        small = math.ceil(excess_s / (interval_s - least_s) - _SLACK) if excess_s > 0 else 0
        if not self._least:
            small = max(small, 1)  # What a small job takes must be seen once.
        small = min(small, self._every - 1)
        taken_s = small * least_s + self._delay_s + checkpoint_s
        rate = max(self._full * (region_s - taken_s) / region_s, float(self._min_rows)) / interval_s
        sizes = (self._min_rows,) * (1 + small)
        return RegionPlan(first_job=first_job, sizes=sizes, excess_s=max(excess_s, 0.0), rate=rate)

    def _planned_exactly(self, first_job: int, line: _Line) -> RegionPlan:
        """A plan by the line; jobs after the checkpoint get these sizes if all take what they should."""
        checkpoint_s = self._checkpoints.seconds - line.seconds(self._checkpoints.rows)  # Beside its rows.
        least_s = line.seconds(self._min_rows)
        excess_s = self._delay_s + checkpoint_s + least_s - self._interval_s
        beside_s = self._interval_s - checkpoint_s - self._delay_s
        sizes = [self._min_rows if excess_s > 0 else self._rows_in(beside_s, line)]
        left_s = excess_s
        while left_s > _SLACK and len(sizes) < self._every:
            sizes.append(self._rows_in(self._interval_s - left_s, line))
            left_s -= self._interval_s - least_s
        rows = sum(sizes) + (self._every - len(sizes)) * self._full
        rate = rows / (self._every * self._interval_s)
        return RegionPlan(first_job=first_job, sizes=tuple(sizes), excess_s=max(excess_s, 0.0), rate=rate)

    def _clearing(self, line: _Line) -> int | None:
        """The size of a job after a checkpoint by the delay it starts with; None if there is none left to clear."""
        self._is_cleared = self._delay_s < self._interval_s - line.seconds(self._min_rows) + _SLACK
        return self._rows_in(self._interval_s - self._delay_s, line) if self._delay_s > _SLACK else None

    def _rows_in(self, seconds: float, line: _Line) -> int:
        return int(max(self._min_rows, min((seconds - line.fixed_s) / line.row_s, self._full)))

    def _row_s(self) -> float | None:
        """The price of a row, by the mean job of least size and the mean of the others; None if they do not show it."""
        if not (self._least and self._others):
            return None
        row_s = (self._others.seconds - self._least.seconds) / (self._others.rows - self._min_rows)
        return row_s if row_s > 0 else None

    def _extrapolated(self, rows: int, processing_s: float) -> float:
        """The rows that take an interval, on the line through the mean job of least size and the mean of the others."""
        most = max(rows * _GROWTH_MAX, rows + 1.0)
        if row_s := self._row_s():
            return min(self._min_rows + (self._interval_s - self._least.seconds) / row_s, most)
        return min(rows * self._interval_s / processing_s, most) if processing_s > 0 else most

    def _integrated(self, processing_s: float) -> float:
        """`full` a step nearer to what takes an interval, whatever a job costs, as long as more rows take longer."""
        short = (self._interval_s - processing_s) / processing_s if processing_s > 0 else math.inf
        return self._full * min(1 + _EXACT_GAIN * short, _EXACT_GROWTH_MAX)


@dataclass(frozen=True, kw_only=True)
class _SizedJob:
    """The job that `size` was asked for last, and the answer."""

    job: int
    rows: int
    is_full: bool


@dataclass(frozen=True, kw_only=True)
class _Line:
    """What a job takes without rows, and for each row."""

    fixed_s: float
    row_s: float

    def seconds(self, rows: float) -> float:
        return self.fixed_s + self.row_s * rows


def _fit(jobs: Sequence[tuple[int, float]]) -> _Line | None:
    """The line by least squares; None if more rows do not take longer in these jobs."""
    if len(jobs) < 2:
        return None
    mean_rows = sum(rows for rows, _ in jobs) / len(jobs)
    mean_s = sum(seconds for _, seconds in jobs) / len(jobs)
    spread = sum((rows - mean_rows) ** 2 for rows, _ in jobs)
    together = sum((rows - mean_rows) * (seconds - mean_s) for rows, seconds in jobs)
    row_s = together / spread if spread > 0 else 0.0
    if row_s <= 0:
        return None
    return _Line(fixed_s=max(mean_s - row_s * mean_rows, 0.0), row_s=row_s)


class _History:
    """Rows and times of the jobs of one kind that ended in the last `history_s`; the newest stays."""

    def __init__(self, history_s: float) -> None:
        self._history_s = history_s
        self._records: deque[tuple[float, int, float]] = deque(maxlen=RECORDS_MAX)

    def __bool__(self) -> bool:
        return bool(self._records)

    def add(self, now_s: float, rows: int, seconds: float) -> None:
        self._records.append((now_s, rows, seconds))
        while self._records[0][0] < now_s - self._history_s:
            self._records.popleft()

    def jobs(self) -> list[tuple[int, float]]:
        return [(rows, seconds) for _, rows, seconds in self._records]

    @property
    def rows(self) -> float:
        """The mean."""
        return sum(rows for _, rows, _ in self._records) / len(self._records)

    @property
    def seconds(self) -> float:
        """The mean."""
        return sum(seconds for _, _, seconds in self._records) / len(self._records)
