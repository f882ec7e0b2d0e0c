"""The figures of thesis chapter 4: what is made of their rows."""

from __future__ import annotations

from pathlib import Path

import pytest

from experiments.cluster import cases, figure_4_2, figure_4_7, plot
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
    rows = [{"case": "rotating", "kind": "flux", "pool_rows": pool, "rate": rate} for pool, rate in rates.items()]
    assert figure_4_2.needed(rows, "rotating", "flux") == 768
    assert figure_4_2.needed(rows, "rotating", "exchange") is None


def test_a_picture_has_the_thesis_beside_our_curves(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="pictures need matplotlib, which is an extra")
    rows = [{"policy": "level", "loaded": loaded, "sustained": 1.0 - loaded / 64} for loaded in figure_4_7.COUNTS]
    plot.plot("4.7", rows, tmp_path / "figure.png")
    assert (tmp_path / "figure.png").stat().st_size > 1_000
