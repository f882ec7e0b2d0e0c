"""Job sizes by a rate, and what all controllers of job sizes have in common.

A controller says how many rows a micro-batch gets, from what the micro-batches before it took. `Pid` is Spark's own;
`Naive` and `Fixed` are there to compare `flux.governor.Governor` with.
"""

from __future__ import annotations

import math
from collections import deque
from typing import Any, Protocol


class SizeController(Protocol):
    """What paces jobs: `size` as a job starts, `done` when it has ended, one job after the other."""

    def size(self, job: int) -> int:
        """Return how many rows this job gets."""

    def done(self, job: int, now_s: float, rows: int, processing_s: float, delay_s: float) -> None:
        """Take in what a job was: `now_s` is 0 when job 0 was due, `delay_s` how late the job started."""


class Fixed:
    """Give every job the same number of rows.

    >>> Fixed(500).size(7)
    500
    """

    def __init__(self, rows: int) -> None:
        self._rows = whole("Fixed", "rows", rows, least=1)

    def size(self, job: int) -> int:
        """Return how many rows this job gets."""
        return self._rows

    def done(self, job: int, now_s: float, rows: int, processing_s: float, delay_s: float) -> None:
        """Take in what a job was. It changes nothing."""


class Pid:
    """Pace jobs by a rate, as Spark's `PIDRateEstimator` computes it and its receivers keep it.

    A job gets what a receiver takes in during the interval before the job is due, at the rates in force then. Until the
    second job has ended it is `first` rows per interval, or the least rate. The number of rows of a job is a whole one;
    the fraction goes to the next.

    >>> pid = Pid(interval_s=1, first=1_000)
    >>> pid.size(0)
    1000
    >>> pid.done(0, now_s=0.5, rows=1_000, processing_s=0.5, delay_s=0.0)  # 2,000 rows/s: a first rate to compare with.
    >>> pid.done(1, now_s=1.5, rows=1_000, processing_s=0.5, delay_s=0.0)
    >>> pid.rate, pid.size(2)  # Half of the interval from 1 s to 2 s was at the rate before.
    (2000.0, 1500)
    """

    def __init__(
        self,
        interval_s: float,
        kp: float = 1.0,
        ki: float = 0.2,
        kd: float = 0.0,
        min_rate: float = 100.0,
        first: int | None = None,
    ) -> None:
        self._interval_s = positive("Pid", "interval_s", interval_s)
        self._kp, self._ki, self._kd = (not_negative("Pid", *gain) for gain in (("kp", kp), ("ki", ki), ("kd", kd)))
        self._min_rate = positive("Pid", "min_rate", min_rate)
        self.rate = self._min_rate  # Rows per second that a receiver takes in.
        if first is not None:
            self.rate = whole("Pid", "first", first, least=1) / self._interval_s
        self._receiver = _Receiver(self._interval_s, self.rate)
        self._last: tuple[float, float] | None = None  # The estimator's own rate and error.
        self._last_us = -1_000  # As in Spark, where the time before the first one is -1 ms.

    def estimate(self, now_s: float, rows: int, processing_s: float, delay_s: float) -> float | None:
        """Return the new rate after a job, as `PIDRateEstimator.compute` does; None if the job says nothing of it.

        Times are compared in whole microseconds, so that the time between two is exact on any clock; less is none.
        """
        now_us = round(now_s * 1e6)
        if not (now_us > self._last_us and rows > 0 and round(processing_s * 1e6) > 0):
            return None
        speed = rows / processing_s
        since_s, self._last_us = (now_us - self._last_us) / 1e6, now_us
        if self._last is None:
            self._last = speed, 0.0
            return None
        last_rate, last_error = self._last
        error = last_rate - speed
        of_delay = delay_s * speed / self._interval_s
        of_change = (error - last_error) / since_s
        rate = max(last_rate - self._kp * error - self._ki * of_delay - self._kd * of_change, self._min_rate)
        if not math.isfinite(rate):
            return None  # Departure: a gain that is too large for the time between jobs ends in numbers that are none.
        self._last = rate, error
        return rate

    def size(self, job: int) -> int:
        """Return how many rows a receiver has taken in for this job."""
        return self._receiver.size(job)

    def done(self, job: int, now_s: float, rows: int, processing_s: float, delay_s: float) -> None:
        """Take in what a job was; a new rate is in force from `now_s` on."""
        check_job("Pid", job, now_s, rows, processing_s, delay_s)
        self.rate = self.estimate(now_s, rows, processing_s, delay_s) or self.rate
        self._receiver.set_rate(now_s, self.rate)


class Naive:
    """Pace jobs as `Pid` does, with the least rate from the end of the job before a checkpoint job to its own end.

    That is not when the receiver takes in the rows of the checkpoint job, so their number is what it happens to be.

    >>> naive = Naive(interval_s=1, every=10, first=1_000, min_rate=10)
    >>> naive.done(9, now_s=9.75, rows=1_000, processing_s=0.75, delay_s=0.0)
    >>> naive.size(10)  # From 9 s to 9.75 s it was not cut yet: 750 rows, and two and a half of the last quarter.
    752
    """

    def __init__(
        self,
        interval_s: float,
        every: int,
        kp: float = 1.0,
        ki: float = 0.2,
        kd: float = 0.0,
        min_rate: float = 100.0,
        first: int | None = None,
    ) -> None:
        self._pid = Pid(interval_s, kp, ki, kd, min_rate, first)
        self._every = whole("Naive", "every", every, least=2)
        self._min_rate = float(min_rate)
        self._rate = self._pid.rate
        self._receiver = _Receiver(float(interval_s), self._rate)

    def size(self, job: int) -> int:
        """Return how many rows a receiver has taken in for this job."""
        return self._receiver.size(job)

    def done(self, job: int, now_s: float, rows: int, processing_s: float, delay_s: float) -> None:
        """Take in what a job was; a new rate is in force from `now_s` on."""
        check_job("Naive", job, now_s, rows, processing_s, delay_s)
        self._rate = self._pid.estimate(now_s, rows, processing_s, delay_s) or self._rate
        before_checkpoint = (job + 1) % self._every == 0
        self._receiver.set_rate(now_s, self._min_rate if before_checkpoint else self._rate)


class _Receiver:
    """Takes in rows at a rate; job j gets those of the interval that ends when it is due."""

    def __init__(self, interval_s: float, rate: float) -> None:
        self._interval_s = interval_s
        self._rates = deque([(-math.inf, rate)])  # Since when each is in force.
        self._left = 0.0  # A fraction of a row.
        self._asked = -1, 0

    def set_rate(self, now_s: float, rate: float) -> None:
        since_s, _ = self._rates[-1]
        self._rates.append((max(now_s, since_s), rate))

    def size(self, job: int) -> int:
        last, rows = self._asked
        if job == last:
            return rows
        if job < last:
            raise ValueError(f"size of job {job} asked after job {last}; make a new controller to begin anew")
        begin_s, end_s = (job - 1) * self._interval_s, job * self._interval_s
        taken = self._left
        untils = [since_s for since_s, _ in self._rates][1:]
        for (since_s, rate), until_s in zip(self._rates, [*untils, math.inf], strict=True):
            taken += max(0.0, min(until_s, end_s) - max(since_s, begin_s)) * rate
        while len(self._rates) > 1 and self._rates[1][0] <= end_s:
            self._rates.popleft()
        rows = max(1, math.floor(taken + 1e-6))
        self._left, self._asked = max(taken - rows, 0.0), (job, rows)
        return rows


def check_job(part: str, job: int, now_s: float, rows: int, processing_s: float, delay_s: float) -> None:
    whole(part, "job", job, least=0)
    whole(part, "rows", rows, least=0)
    if not math.isfinite(now_s):
        raise ValueError(f"{part}: now_s={now_s!r} is invalid: expected a time in seconds")
    not_negative(part, "processing_s", processing_s)
    not_negative(part, "delay_s", delay_s)


def whole(part: str, name: str, value: Any, least: int) -> int:
    if isinstance(value, bool) or not hasattr(value, "__index__") or int(value) < least:
        raise ValueError(f"{part}: {name}={value!r} is invalid: expected a whole number of at least {least}")
    return int(value)


def positive(part: str, name: str, value: Any) -> float:
    if not_negative(part, name, value, "above 0") == 0:
        raise ValueError(f"{part}: {name}={value!r} is invalid: expected a number above 0")
    return float(value)


def not_negative(part: str, name: str, value: Any, expected: str = "of at least 0") -> float:
    is_number = not isinstance(value, bool | str) and hasattr(value, "__float__") and math.isfinite(value)
    if not is_number or value < 0:
        raise ValueError(f"{part}: {name}={value!r} is invalid: expected a number {expected}")
    return float(value)
