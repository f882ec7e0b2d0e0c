"""Partitions that differ by chance alone are equal, and a plan moves no more of them than it must."""

from __future__ import annotations

import numpy as np

from flux.balance.partition_work import PartitionWork
from flux.balance.speeds import Floats
from flux.protocols.balance_messages import StageWork

COUNT = 64
STAGES = np.ones(COUNT, dtype=np.intp)


def reported(shares: Floats, rows: int) -> PartitionWork:
    """The work of partitions after one report of so many rows, drawn by these shares."""
    drawn = np.random.default_rng(1).multinomial(rows, shares)
    work = StageWork(stage=1, positions=rows, rows=tuple(enumerate(drawn.tolist())), busy_s=1.0)
    return PartitionWork.empty(COUNT).add(work, 0, range(COUNT), np.ones(COUNT))


def test_equal_partitions_count_as_equal_though_chance_makes_them_differ() -> None:
    work = reported(np.full(COUNT, 1 / COUNT), 20_000)
    rates = work.per_position(STAGES)
    assert np.ptp(work.rows[0]) > 0.15 * work.rows[0].mean()
    assert np.ptp(rates) < 0.05 * rates.mean()
    assert np.isclose(rates.sum(), 1.0)


def test_a_heavy_partition_stays_heavy() -> None:
    shares = np.full(COUNT, 0.5 / (COUNT - 1))
    shares[7] = 0.5
    rates = reported(shares, 20_000).per_position(STAGES)
    assert abs(rates[7] - 0.5) < 0.01
    assert rates.argmax() == 7


def test_partitions_of_different_stages_are_not_compared() -> None:
    stages = np.repeat([1, 2], COUNT // 2).astype(np.intp)
    shares = np.where(stages == 1, 3.0, 1.0)
    rates = reported(shares / shares.sum(), 20_000).per_position(stages)
    assert abs(rates[stages == 1].mean() / rates[stages == 2].mean() - 3) < 0.1
