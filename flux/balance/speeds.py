"""The speed of a site from its reports: an average that is begun anew when the speed has changed beyond chance.

A site's speed is steady for long and then changes at once: another program starts beside it, or ends. An average over a
short time would be vague always, one over a long time wrong after each change. So all samples since the last change
count. A suffix of the last ten that differs from those before by six standard errors is a change.

A speed that goes up and down within half a minute is *volatile*. Placements do not follow it: moves would come too late
each time. Such a site is known by its average. It must have changed by a quarter, and have gone back half-way: a small
change after a large one is not a way back.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

SAMPLE_BUSY_MIN_S = 0.02  # Reports are added up until they have as much: less says nothing about speed.
SAMPLE_IDLE_MAX_S = 0.3  # Busy time without any row is added to the next sample, up to this.
SAMPLES_KEPT_MAX = 600
SAMPLES_COMPARED_MAX = 100
SUFFIX_MAX = 10
CHANGE_SIGMAS = 6.0
VOLATILE_S = 30.0
VOLATILE_RATIO = 1.25
SPREAD_MIN = 0.01  # Relative: no speed is known better from one sample.
SPREAD_UNKNOWN = 0.3
_WORK, _BUSY, _AT, _RATIO, _DIFFERENCE = range(5)
NONE: Floats = np.zeros((5, 0))
_LENGTHS = np.arange(1, SUFFIX_MAX + 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """A speed in work per busy second, its relative standard error, and how it is now.

    `samples` are those that the value rests on. `average` and `average_error` are of the last half minute.
    """

    value: float
    error: float
    now: float
    samples: int
    is_volatile: bool = False
    average: float = 0.0
    average_error: float = math.inf

    def averaged(self) -> Speed:
        """Return it as that of a site that is known by its average."""
        return replace(self, value=self.average, error=self.average_error)


@dataclass(frozen=True, eq=False, kw_only=True)
class SpeedHistory:
    """The samples of one site, oldest first; and at which its speed changed.

    The rows of `columns` are the work of the samples, their busy seconds and arrival, work per busy second, and by how
    much that differs from the sample before, relative to the greater.
    """

    columns: Floats = field(default_factory=lambda: NONE)
    changes: tuple[tuple[int, bool], ...] = ()  # The index of the first sample of a new speed; whether it is greater.
    work: float = 0.0  # Of reports that are not a sample yet.
    busy_s: float = 0.0

    @property
    def samples(self) -> Floats:
        """The samples as (work, busy seconds, arrival)."""
        return self.columns[: _AT + 1].T

    @property
    def last_s(self) -> float:
        """When the last sample arrived."""
        return float(self.columns[_AT, -1])

    def add(self, work: float, busy_s: float, at_s: float) -> SpeedHistory:
        """Return the history with one more report."""
        work, busy_s = self.work + work, self.busy_s + busy_s
        if busy_s < SAMPLE_BUSY_MIN_S or (work == 0 and busy_s < SAMPLE_IDLE_MAX_S):
            return replace(self, work=work, busy_s=busy_s)
        before, changes = self.columns, self.changes
        if before.shape[1] == SAMPLES_KEPT_MAX:
            before = before[:, 1:]
            changes = tuple((at - 1, is_greater) for at, is_greater in changes if at > 1)
        count = before.shape[1]
        columns = np.empty((5, count + 1))
        columns[:, :count] = before
        ratio = work / busy_s
        last = float(before[_RATIO, -1]) if count else ratio
        columns[:, count] = work, busy_s, at_s, ratio, abs(ratio - last) / max(ratio, last, 1e-12)
        return SpeedHistory(columns=columns, changes=_with_change(columns, changes))

    def speed(self) -> Speed | None:
        """Return what is known of the speed; None without a sample."""
        return self._speed

    @cached_property
    def _speed(self) -> Speed | None:
        count = self.columns.shape[1]
        if not count:
            return None
        since = self.changes[-1][0] if self.changes else 0
        # Within the first sample of a new speed it changed: that one does not count, if others do.
        first = since + 1 if self.changes and count - since > 2 else since
        now, error = _average_and_error(self.columns[:, first:])
        begin = int(self.columns[_AT].searchsorted(self.last_s - VOLATILE_S, side="right"))
        average, average_error = _average_and_error(self.columns[:, begin:])
        speed = Speed(
            value=now,
            error=error,
            now=now,
            samples=count - since,
            is_volatile=len(self.changes) > 1 and self._is_volatile(),
            average=average,
            average_error=average_error,
        )
        return speed.averaged() if speed.is_volatile else speed

    def _is_volatile(self) -> bool:
        """Whether the speed went up and down, or down and up, within the last half minute."""
        begin_s = self.last_s - VOLATILE_S
        starts = [0, *(at for at, _ in self.changes), self.columns.shape[1]]
        for i in range(len(self.changes) - 1, 0, -1):
            if self.columns[_AT, starts[i]] <= begin_s:
                break
            before, meanwhile, after = (_average(self.columns[:, starts[k] : starts[k + 1]]) for k in (i - 1, i, i + 1))
            is_large = max(before, meanwhile) > VOLATILE_RATIO * min(before, meanwhile)
            if is_large and (after - meanwhile) / (before - meanwhile) > 0.5:
                return True
        return False


def median(values: Floats) -> float:
    """The median of at least one number; `numpy.median` takes ten times as long for few.

    >>> median(np.array([3.0, 1.0, 2.0])), median(np.array([4.0, 1.0, 2.0, 3.0]))
    (2.0, 2.5)
    """
    ordered = np.sort(values)
    half = len(ordered) // 2
    return float(ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2)


def _average(columns: Floats) -> float:
    return max(float(columns[_WORK].sum() / columns[_BUSY].sum()), 1e-12)


def _average_and_error(columns: Floats) -> tuple[float, float]:
    """Of these samples the average speed, and its relative standard error."""
    average, count = _average(columns), columns.shape[1]
    if count <= 2:
        return average, SPREAD_UNKNOWN / math.sqrt(count)
    ratio = columns[_RATIO]
    mean = float(ratio.sum()) / count
    apart = ratio - mean
    spread = math.sqrt(float((apart * apart).sum()) / count) / mean if mean > 0 else SPREAD_UNKNOWN
    return average, max(spread, SPREAD_MIN) / math.sqrt(count)


def _spread(recent: Floats, compared: Floats) -> float:
    """The relative standard error of one sample.

    From neighbours, so that one change among many samples does not count; also from those before the last change,
    because a few agree by chance. Rows are counted whole: of few rows, one more or less is chance.
    """
    rounding = 1 / max(median(compared[_WORK]), 1.0)
    return max(median(recent[_DIFFERENCE, 1:]) / 0.954, rounding, SPREAD_MIN)


def _with_change(columns: Floats, changes: tuple[tuple[int, bool], ...]) -> tuple[tuple[int, bool], ...]:
    """The changes, with one more if the last samples differ from those before beyond chance."""
    since, samples = changes[-1][0] if changes else 0, columns.shape[1]
    compared = columns[:, max(since, samples - SAMPLES_COMPARED_MAX) :]
    count = compared.shape[1]
    if count < 4:
        return changes
    ratio = compared[_RATIO]
    sigma = max(_spread(columns[:, -SAMPLES_COMPARED_MAX:], compared) * median(ratio), 1e-12)
    k = _LENGTHS[: count - 2]
    last = ratio[: -len(k) - 1 : -1].cumsum()
    before = float(ratio.sum()) - last
    z = np.abs(last / k - before / (count - k)) / (sigma * np.sqrt(1 / k + 1 / (count - k)))
    best = int(z.argmax())
    if z[best] <= CHANGE_SIGMAS:
        return changes
    length = best + 1
    at, is_greater = samples - length, bool(last[best] / length > before[best] / (count - length))
    # The report in which the speed changed lies between both speeds: the same change, seen twice, is one.
    if changes and changes[-1][1] == is_greater and at - changes[-1][0] <= SUFFIX_MAX:
        changes = changes[:-1]
    return (*changes, (at, is_greater))
