"""The figures of thesis chapter 4: what is made of their rows."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from experiments.cluster import cases, figure_4_2, figure_4_7, plot
from experiments.cluster.thesis_cluster import PrintedHillClimbing, ThesisCluster
from flux.balance import HillClimbing
from flux.spec.timed import ClusterSetting, slow_down


def test_the_best_placement_is_counted_in_whole_partitions() -> None:
    setting = ClusterSetting(slow_spells=slow_down(["site-6"], begin_s=0.0))
    # 28 partitions on the loaded site, and 66 on some of the others, of 64 each.
    assert cases.best_rate(setting, 1.0) / setting.unloaded_rate == pytest.approx(64 / 66)
    assert cases.best_rate(setting, -1.0) / setting.unloaded_rate == pytest.approx(1.0)


def test_no_placement_of_unequal_partitions_is_better_than_the_heaviest_allows() -> None:
    setting = ClusterSetting(sites=2, partitions_per_site=2, shares=(0.7, 0.1, 0.1, 0.1))
    assert cases.best_rate(setting, 0.0) == pytest.approx(1 / (0.7 * 45.5e-6))


def test_self_similar_keys_give_one_group_a_quarter_of_the_rows() -> None:
    assert 0.25 < max(cases.self_similar(2_048)) < 0.27
    assert max(cases.flat(2_048)) < 0.01


def test_the_space_that_is_needed_lies_between_the_pools_that_were_tried() -> None:
    rates = {64: 0.5, 512: 0.93, 1_024: 0.97}
    rows = [
        {"case": figure_4_2.ROTATING, "kind": "flux", "pool_rows": pool, "rate": rate} for pool, rate in rates.items()
    ]
    assert figure_4_2.needed(rows, figure_4_2.ROTATING, "flux") == 768
    assert figure_4_2.needed(rows, figure_4_2.ROTATING, "exchange") is None


def test_a_picture_has_the_thesis_beside_our_curves(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="pictures need matplotlib, which is an extra")
    rows = [{"policy": "level", "loaded": loaded, "sustained": 1.0 - loaded / 64} for loaded in figure_4_7.COUNTS]
    plot.plot("4.7", rows, tmp_path / "figure.png")
    assert (tmp_path / "figure.png").stat().st_size > 1_000


SMALL = ClusterSetting(sites=4, partitions_per_site=16, state_bytes=100_000)


def test_on_the_thesiss_cluster_a_loaded_site_holds_up_all_others_and_hill_climbing_relieves_it() -> None:
    setting = replace(SMALL, pool_rows=256, slow_spells=slow_down(["site-2"], begin_s=0.5))
    static = ThesisCluster(setting).run(4.0)
    assert static.rate(0.1, 0.5) / setting.unloaded_rate == pytest.approx(1.0, abs=0.03)
    assert static.rate(2.0, 4.0) / setting.unloaded_rate == pytest.approx(0.43, abs=0.02)
    balanced = ThesisCluster(setting, HillClimbing(imbalance=1.2, utilisation=0.9, collect_min_s=0.1)).run(6.0)
    assert balanced.sustained_rate / setting.unloaded_rate > 0.7
    assert balanced.rate(5.0, 6.0) / setting.unloaded_rate > 0.7


@pytest.mark.parametrize("policy", [None, PrintedHillClimbing(collect_min_s=0.05)])
def test_on_the_thesiss_cluster_rows_are_processed_or_wait_and_a_moving_partition_is_held(
    policy: HillClimbing | None,
) -> None:
    shares = (0.5, *[0.5 / 63] * 63)
    cluster = ThesisCluster(replace(SMALL, shares=shares), policy)
    held_without_work = 0
    for _ in range(500):
        before = {move.partition: int(cluster.consumed[move.partition]) for move in cluster.moves if move.is_cut}
        cluster.run(cluster.now_s + 0.002)
        for partition, consumed in before.items():
            if cluster.is_held[partition]:
                held_without_work += 1
                assert cluster.consumed[partition] == consumed
    waiting = int(cluster.pool.sum()) + sum(map(len, cluster.lines))
    assert waiting <= cluster.setting.producer_pool_rows + 4 * cluster.line_rows + len(shares)
    assert bool(held_without_work) == (policy is not None)


def test_hill_climbing_thrashes_by_the_printed_formula_and_not_by_the_derived_one() -> None:
    shares = (0.5, *[0.5 / 63] * 63)
    setting = replace(SMALL, shares=shares, pool_rows=256, state_bytes=1_600_000)
    static, derived, printed = (
        ThesisCluster(setting, policy).run(5.0).rate(2.0, 5.0)
        for policy in (None, HillClimbing(collect_min_s=0.01), PrintedHillClimbing(collect_min_s=0.01))
    )
    assert printed < 0.85 * static < static < derived
