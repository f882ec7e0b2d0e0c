"""Sites with virtual processors: what they are charged is exact, however busy the host is."""

from __future__ import annotations

import pyarrow as pa
import pytest

from experiments.balance.even_load import EvenRows, even_flow, one_key_each
from experiments.balance.watch import best_time_s
from experiments.machines import Machines, host_times_of, start
from flux.types.hashing import partition_of

ROWS = 400


def test_a_step_is_charged_by_the_speed_of_its_site() -> None:
    machines = Machines({1: 0.001})
    machines.load("site-2", 1)
    with start(even_flow(4), machines, 2, availability="none", pool_rows=256, balance="off") as run:
        run.wait_for_output(ROWS)
    for site, cost_s in (("site-1", 0.001), ("site-2", 0.002)):
        assert machines.busy_s(site) == pytest.approx(cost_s * machines.rows(site))
    assert machines.rows() >= ROWS


def test_what_sites_report_is_in_virtual_time() -> None:
    machines = Machines({1: 0.001})
    machines.load("site-1", 3)
    with start(even_flow(8), machines, 2, availability="none", pool_rows=256, balance="auto") as run:
        run._await(lambda state: len([x for x in state.balance.loads.values() if x.speed]) == 2, 60, "speeds")
        loads = dict(run._run_state.balance.loads)
    assert loads["site-1"].speed is not None and loads["site-2"].speed is not None
    assert loads["site-1"].speed < loads["site-2"].speed


def test_every_partition_has_as_many_rows() -> None:
    rows = EvenRows(12)(0, 24)
    for column in ("one", "two"):
        assert sorted(partition_of([rows[column]], 12).tolist()) == sorted([*range(12), *range(12)])
    assert partition_of([pa.array(one_key_each(5))], 5).tolist() == [0, 1, 2, 3, 4]


def test_the_best_placement_is_that_of_the_design() -> None:
    fast = dict.fromkeys("abc", 1.0)
    assert 48 / best_time_s({**fast, "d": 1 / 12}, 192, 96) == pytest.approx(0.762, abs=0.001)
    assert 48 / best_time_s({**fast, "d": 1 / 23}, 192, 96) == pytest.approx(0.75)
    assert 48 / best_time_s({"a": 1.0, "b": 1.0, "c": 0.5}, 192, 96) == pytest.approx(0.623, abs=0.001)


@pytest.mark.parametrize(("is_nice_global", "busy"), [(True, 15.0), (False, 45.0)])
def test_work_of_lower_priority_is_no_busy_host_only_where_it_gives_way(is_nice_global: bool, busy: float) -> None:
    assert host_times_of("cpu 10 30 5 50 5 0 0 0 0 0", is_nice_global) == (busy, 100.0)
