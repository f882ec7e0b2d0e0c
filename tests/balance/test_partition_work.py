"""The work of a partition per position: all its copies' reports add up, and it is begun anew when it has changed."""

from __future__ import annotations

import numpy as np
import pytest

from flux.balance.partition_work import HALF_LIFE_S, PartitionWork
from flux.balance.speeds import Floats
from flux.protocols.balance_messages import StageWork

ONE_STAGE = np.ones(2, dtype=np.intp)  # Of two partitions: these are never drawn together.


def report(rows: tuple[int, ...], positions: int = 100, **fields: object) -> StageWork:
    return StageWork(stage=1, positions=positions, rows=tuple(enumerate(rows)), busy_s=0.1, **fields)  # type: ignore[arg-type]


def add(
    work: PartitionWork, rows: tuple[int, ...], times: int = 1, copies: float = 1.0, **fields: object
) -> PartitionWork:
    for _ in range(times):
        work = work.fade(work.at_s + 0.1)
        work = work.add(report(rows, **fields), 0, (0, 1), np.full(2, copies))  # type: ignore[arg-type]
    return work


def rates(work: PartitionWork) -> list[float]:
    found: Floats = work.per_position(ONE_STAGE)
    return [float(rate) for rate in found]


EMPTY = PartitionWork.empty(2)


def test_without_a_report_there_is_no_work() -> None:
    assert rates(EMPTY) == [0.0, 0.0]


def test_work_is_rows_per_position_however_far_a_copy_is() -> None:
    work = EMPTY.add(report((50, 10), positions=100), 0, (0, 1), np.ones(2))
    work = work.add(report((5, 1), positions=10), 0, (0, 1), np.ones(2))
    assert rates(work) == pytest.approx([0.5, 0.1])


def test_a_report_without_positions_does_not_count() -> None:
    assert EMPTY.add(report((50, 10), positions=0), 0, (0, 1), np.ones(2)) is EMPTY


def test_partitions_that_catch_up_or_are_not_held_do_not_count() -> None:
    work = EMPTY.add(report((50, 10), catching_up=(1,)), 0, (0, 1), np.ones(2))
    assert rates(work) == [0.5, 0.0]
    assert rates(EMPTY.add(report((50, 10)), 0, (1,), np.ones(2))) == [0.0, 0.1]


def test_partitions_of_a_later_stage_are_numbered_from_its_offset() -> None:
    work = PartitionWork.empty(4).add(report((50, 10)), 2, (0, 1), np.ones(4))
    assert work.per_position(np.array([1, 1, 2, 2])).tolist() == [0.0, 0.0, 0.5, 0.1]


def test_reports_fade_and_the_work_stays() -> None:
    work = add(EMPTY, (50, 10))
    later = work.fade(work.at_s + HALF_LIFE_S)
    assert later.rows[0].tolist() == [25.0, 5.0]
    assert rates(later) == rates(work)
    assert work.fade(work.at_s) is work


def test_most_of_a_change_of_share_is_known_within_a_second() -> None:
    # Those that stay say what chance is.
    work = PartitionWork.empty(6)
    for number in range(110):
        rows = (50, 50, 50, 50, 50, 50) if number < 100 else (90, 10, 50, 50, 50, 50)
        work = work.fade(number / 10).add(report(rows), 0, range(6), np.ones(6))
    assert (work.rows[0] / work.positions[0]).tolist() == pytest.approx([0.9, 0.1, 0.5, 0.5, 0.5, 0.5], abs=0.15)


def test_a_share_that_differs_by_chance_is_not_begun_anew() -> None:
    random, work = np.random.default_rng(1), EMPTY
    for _ in range(300):
        work = add(work, tuple(random.poisson(50, 2).tolist()))
    assert work.rows[0].min() > 5 * work.rows[1].max()


def test_rows_that_vary_more_than_by_chance_widen_what_chance_is() -> None:
    random, work = np.random.default_rng(1), EMPTY
    for _ in range(300):
        work = add(work, tuple((10 * random.poisson(5, 2)).tolist()))
    assert work.excess.min() > 3


def test_costs_of_partitions_weigh_their_rows() -> None:
    work = add(EMPTY, (50, 50), costs_s=((0, 0.09), (1, 0.03)))
    assert work.weights().tolist() == pytest.approx([1.5, 0.5])
    assert rates(work) == pytest.approx([0.75, 0.25])


def test_costs_without_rows_or_time_do_not_count() -> None:
    assert add(EMPTY, (50, 0), costs_s=((0, 0.0), (1, 0.5))).weights().tolist() == [1.0, 1.0]
