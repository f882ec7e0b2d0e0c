"""`Pid` estimates what Spark's own `PIDRateEstimator` does: the class in its jar, called in its JVM.

All sequences go there in one call: a few lines of Java, compiled by the compiler that Spark has for its own queries,
read them from a buffer and write the rates into another. A call for each job would take minutes.
"""

from __future__ import annotations

import math
import random
import struct
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from flux.sources.rate_control import Pid

SEQUENCES, JOBS_MAX = 10_000, 24
NO_RATE = math.nan

_JAVA = """
import java.nio.ByteBuffer;
import org.apache.spark.streaming.scheduler.rate.PIDRateEstimator;

ByteBuffer in = ByteBuffer.wrap(asked);
ByteBuffer out = ByteBuffer.allocate(8 * in.getInt());
while (in.hasRemaining()) {
    PIDRateEstimator estimator = new PIDRateEstimator(
        in.getLong(), in.getDouble(), in.getDouble(), in.getDouble(), in.getDouble());
    for (int jobs = in.getInt(); jobs > 0; jobs--) {
        scala.Option rate = estimator.compute(in.getLong(), in.getLong(), in.getLong(), in.getLong());
        out.putDouble(rate.isEmpty() ? Double.NaN : ((Number) rate.get()).doubleValue());
    }
}
return out.array();
"""


@dataclass(frozen=True)
class Estimated:
    """An estimator's settings, and its jobs in order: time, rows, processing and delay; times in milliseconds."""

    interval_ms: int
    gains: tuple[float, float, float]
    min_rate: float
    jobs: list[tuple[int, int, int, int]]

    def ours(self) -> list[float]:
        pid = Pid(self.interval_ms / 1000, *self.gains, min_rate=self.min_rate)
        rates = [pid.estimate(at / 1000, rows, took / 1000, late / 1000) for at, rows, took, late in self.jobs]
        return [NO_RATE if rate is None else rate for rate in rates]

    def packed(self) -> bytes:
        head = struct.pack(">qddddi", self.interval_ms, *self.gains, self.min_rate, len(self.jobs))
        return head + b"".join(struct.pack(">qqqq", *job) for job in self.jobs)


def by_spark(spark: Any, sequences: list[Estimated]) -> list[float]:
    """The rates by Spark, of all sequences one after the other."""
    gateway = spark.sparkContext._gateway
    jvm = gateway.jvm
    script = jvm.org.codehaus.janino.ScriptEvaluator()
    array_of_bytes = jvm.java.lang.Class.forName("[B")
    names, types = gateway.new_array(jvm.java.lang.String, 1), gateway.new_array(jvm.java.lang.Class, 1)
    names[0], types[0] = "asked", array_of_bytes
    script.setReturnType(array_of_bytes)
    script.setParameters(names, types)
    script.cook(_JAVA)
    asked = gateway.new_array(jvm.java.lang.Object, 1)
    jobs = sum(len(each.jobs) for each in sequences)
    asked[0] = struct.pack(">i", jobs) + b"".join(each.packed() for each in sequences)
    return np.frombuffer(script.evaluate(asked), dtype=">f8").tolist()


def random_sequence(rng: random.Random) -> Estimated:
    """Any settings that Spark takes; some jobs without rows or without time; the clock stands still or goes back."""
    now_ms = rng.choice((0, rng.randrange(10**6), 1_700_000_000_000 + rng.randrange(10**9)))
    jobs = []
    for _ in range(rng.randrange(1, JOBS_MAX)):
        rows = 0 if rng.random() < 0.1 else rng.randrange(1, 10 ** rng.randrange(1, 7))
        took_ms = 0 if rng.random() < 0.1 else rng.randrange(1, 10 ** rng.randrange(1, 5))
        late_ms = rng.choice((0, rng.randrange(10_000)))
        jobs.append((now_ms, rows, took_ms, late_ms))
        now_ms += rng.choice((0, -1, 1, rng.randrange(100), 500, 1_000, rng.randrange(20_000)))
    gains = (1.0, 0.2, 0.0) if rng.random() < 0.3 else (rng.uniform(0, 2), rng.uniform(0, 1), rng.uniform(0, 1))
    return Estimated(rng.choice((1, 200, 1_000, 2_500)), gains, rng.choice((0.5, 10.0, 100.0)), jobs)


def differing(ours: list[float], theirs: list[float]) -> int:
    """How many rates differ by more than 1e-9 of themselves, or are none for one of the two."""
    one, other = np.array(ours), np.array(theirs)
    differ = np.abs(one - other) > 1e-9 * np.maximum(np.abs(other), 1.0)
    return int(np.count_nonzero(differ | (np.isnan(one) != np.isnan(other))))


def test_pid_estimates_what_spark_does(spark: Any) -> None:
    rng = random.Random(21)
    sequences = [random_sequence(rng) for _ in range(SEQUENCES)]
    ours = [rate for each in sequences for rate in each.ours()]
    theirs = by_spark(spark, sequences)
    assert len(ours) == len(theirs) > 5 * SEQUENCES
    assert differing(ours, theirs) == 0
    without, floors = np.isnan(theirs), np.isin(theirs, [each.min_rate for each in sequences])
    assert min(np.count_nonzero(without), np.count_nonzero(floors), np.count_nonzero(~without & ~floors)) > SEQUENCES


@pytest.mark.parametrize("gains", [(1.001, 0.2, 0.0), (1.0, 0.201, 0.0), (1.0, 0.2, 0.001)])
def test_another_gain_is_noticed(spark: Any, gains: tuple[float, float, float]) -> None:
    jobs = [(1_000 * (n + 1), 1_000 + 100 * (n % 3), 700, 250) for n in range(10)]
    theirs = by_spark(spark, [Estimated(1_000, (1.0, 0.2, 0.0), 100.0, jobs)])
    assert differing(Estimated(1_000, gains, 100.0, jobs).ours(), theirs) > 0
