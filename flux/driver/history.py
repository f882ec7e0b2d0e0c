"""History: the input and output log of a run, in bounded memory however long it runs.

The last minutes are kept entry by entry. What is older is *settled*: summed up as intervals of the timeline, with their
latencies, while the entries are still there. When there are too many intervals, neighbours are merged and each covers
twice the time, so that the timeline always covers the whole run.

Times are seconds since the start of the run; the caller passes when that was.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from ..types.array_types import Float64s
from .report import Interval, LogEntry, build_timeline

INTERVAL_S = 0.25
RECENT_S = 60.0  # Entries at least this young are kept.
SETTLED_MAX = 4096  # Intervals; at 0.25 s each, 17 minutes pass before neighbours are merged.


@dataclass(frozen=True)
class Gap:
    """The longest pause of the output after a moment, as known up to `since`, when the last row arrived."""

    since: float
    longest_s: float = 0.0

    def then(self, row_times: Float64s, until: float) -> Gap:
        """Return the gap with later rows added. A pause that began by `until` counts, however long it is."""
        first, beyond = np.searchsorted(row_times, [self.since, until], side="right")
        later = row_times[first : beyond + 1]  # The first row beyond ends the last pause that counts.
        if self.since > until or not len(later):
            return self
        return Gap(float(later[-1]), max(self.longest_s, float(np.diff(later, prepend=self.since).max())))

    def longest_by(self, now: float, until: float) -> float:
        """Return the longest pause; one that no row has ended lasts until now."""
        return max(self.longest_s, now - self.since) if self.since <= until else self.longest_s


@dataclass
class _IntervalTotal:
    """The sums of one settled interval."""

    input_rows: float = 0.0
    output_rows: float = 0.0
    p50_sum: float = 0.0  # The medians of its parts, weighted by their rows.
    p99_ms: float | None = None

    @staticmethod
    def of(interval: Interval) -> _IntervalTotal:
        """Return the sums of one interval of the timeline."""
        output_rows = interval.output_rate * INTERVAL_S
        return _IntervalTotal(
            input_rows=interval.input_rate * INTERVAL_S,
            output_rows=output_rows,
            p50_sum=output_rows * (interval.latency_p50_ms or 0.0),
            p99_ms=interval.latency_p99_ms,
        )

    def add(self, other: _IntervalTotal) -> _IntervalTotal:
        """Merge another one into this one."""
        self.input_rows += other.input_rows
        self.output_rows += other.output_rows
        self.p50_sum += other.p50_sum
        if other.p99_ms is not None:
            self.p99_ms = max(self.p99_ms or 0.0, other.p99_ms)
        return self

    def interval(self, t_s: float, length_s: float, events: list[str]) -> Interval:
        """Return an interval: its median is the mean of its parts' medians, its 99th percentile their greatest."""
        return Interval(
            t_s=t_s,
            input_rate=self.input_rows / length_s,
            output_rate=self.output_rows / length_s,
            latency_p50_ms=None if self.p99_ms is None else self.p50_sum / self.output_rows,
            latency_p99_ms=self.p99_ms,
            events=tuple(events),
        )


class History:
    """The input and output log of one run."""

    def __init__(self) -> None:
        self.inputs: list[LogEntry] = []
        self.outputs: list[LogEntry] = []
        self.input_rows = 0
        self.input_upto = 0
        self.last_output_at: float | None = None  # When the last row arrived.
        self.settled_s = 0.0  # Everything before is in `_totals`.
        self._totals: list[_IntervalTotal] = []
        self._length_s = INTERVAL_S

    def add_inputs(self, entries: Iterable[LogEntry], total: int) -> None:
        """Add rows that the ingress has numbered; `total` is their number since the run began.

        An ingress that was started again repeats some; what the last one did not report is in its first total.
        """
        self.input_rows = max(self.input_rows, total)
        for entry in entries:
            if entry[1] > self.input_upto:
                self.inputs.append(entry)
                self.input_upto = entry[1]

    def add_output(self, entry: LogEntry) -> None:
        """Add that the sink has taken everything up to a position, with rows or without."""
        self.outputs.append(entry)
        if entry[2]:
            self.last_output_at = entry[0]

    def row_times(self) -> Float64s:
        """Return when rows were written, for the entries that are kept."""
        return np.array([at for at, _, rows in self.outputs if rows], np.float64)

    def is_due(self, started_at: float, now: float) -> bool:
        """Return whether there are enough old entries to settle."""
        return now - started_at - self.settled_s > 2 * RECENT_S

    def settle(self, started_at: float, now: float) -> None:
        """Turn old entries into intervals."""
        until_s = (now - started_at - RECENT_S) // INTERVAL_S * INTERVAL_S
        until = started_at + until_s
        old = [entry for entry in self.outputs if entry[0] < until]
        intervals = self._intervals(started_at, [entry for entry in self.inputs if entry[0] < until], old)
        for index in range(round((until_s - self.settled_s) / INTERVAL_S)):
            self._add_interval(index * INTERVAL_S, intervals[index] if index < len(intervals) else None)
        self.outputs = self.outputs[len(old) :]
        # Rows in flight give a latency when they are written; they are counted already.
        upto = max((entry[1] for entry in old), default=-1)
        self.inputs = [
            entry if entry[0] >= until else (entry[0], entry[1], 0)
            for entry in self.inputs
            if entry[0] >= until or entry[1] > upto
        ]
        self.settled_s = until_s

    def timeline(self, started_at: float, events: Iterable[tuple[float, str]] = ()) -> list[Interval]:
        """Return the intervals of the whole run; each lasts until the next one begins."""
        events = list(events)
        edges = [*(index * self._length_s for index in range(len(self._totals))), self.settled_s]
        settled = [
            total.interval(begin, end - begin, [text for t_s, text in events if begin <= t_s < end])
            for total, (begin, end) in zip(self._totals, pairwise(edges), strict=True)
        ]
        later = [(t_s - self.settled_s, text) for t_s, text in events if t_s >= self.settled_s]
        recent = self._intervals(started_at, self.inputs, self.outputs, later)
        return settled + [replace(interval, t_s=self.settled_s + interval.t_s) for interval in recent]

    def _intervals(
        self,
        started_at: float,
        inputs: list[LogEntry],
        outputs: list[LogEntry],
        events: Sequence[tuple[float, str]] = (),
    ) -> list[Interval]:
        """Return intervals from where the settled ones end. Rows that were reported late count in the first."""
        base = started_at + self.settled_s
        numbered, taken = ([(at - base, upto, rows) for at, upto, rows in log] for log in (inputs, outputs))
        return build_timeline(numbered, taken, INTERVAL_S, events)

    def _add_interval(self, after_s: float, interval: Interval | None) -> None:
        index = int((self.settled_s + after_s) // self._length_s)
        if index == SETTLED_MAX:
            pairs = zip(self._totals[::2], self._totals[1::2], strict=True)
            self._totals = [first.add(second) for first, second in pairs]
            self._length_s *= 2
            index //= 2
        if index == len(self._totals):
            self._totals.append(_IntervalTotal())
        if interval is not None:
            self._totals[index].add(_IntervalTotal.of(interval))
