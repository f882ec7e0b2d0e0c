"""The simulated cluster on which time passes: small ones, with the production machines and policies."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest

from flux.balance import Estimates, HillClimbing, Level, ask
from flux.balance.balance_policy import BalancePolicy
from flux.spec.timed import ClusterOutcome, ClusterSetting, SlowSpell, TimedCluster, draw_sorted, rotate, slow_down

SMALL = ClusterSetting(sites=4, partitions_per_site=16, batch_rows=1_024, state_bytes=100_000)
LOADED = replace(SMALL, slow_spells=slow_down(["site-2"], begin_s=0.5))


def run(setting: ClusterSetting, until_s: float, policy: BalancePolicy | None = None) -> ClusterOutcome:
    return cluster(setting, policy).run(until_s)


def cluster(setting: ClusterSetting, policy: BalancePolicy | None = None) -> TimedCluster:
    if policy is None:
        return TimedCluster(setting)
    return TimedCluster(setting, Estimates(), partial(ask, policy))


def test_equal_settings_give_equal_runs() -> None:
    first, again = run(LOADED, 2.0, Level()), run(LOADED, 2.0, Level())
    assert first == again
    assert run(replace(LOADED, seed=2), 2.0, Level()) != first


@pytest.mark.parametrize("pinned", [False, True])
def test_an_unloaded_cluster_does_what_its_processors_can(pinned: bool) -> None:
    setting = replace(SMALL, pinned_producers=pinned)
    outcome = run(setting, 1.5)
    assert 0.98 < outcome.rate(0.5, 1.5) / setting.unloaded_rate < 1.01


@pytest.mark.parametrize("pinned", [False, True])
def test_every_row_is_consumed_once_while_copies_move(pinned: bool) -> None:
    setting = replace(LOADED, pinned_producers=pinned, source_rows=120_000)
    moved = cluster(setting, Level())
    outcome = moved.run(4.0)
    assert len(outcome.moved_s) > 5 and outcome.is_settled
    assert sum(moved.sourced_rows().values()) == setting.source_rows
    assert moved.consumed_rows() == dict(moved.sourced_rows())


def test_a_loaded_site_holds_up_all_others() -> None:
    outcome = run(LOADED, 3.0)
    assert outcome.rate(2.0, 3.0) / LOADED.unloaded_rate == pytest.approx(0.43, abs=0.02)
    assert outcome.sustained_rate / LOADED.unloaded_rate == pytest.approx(0.43)


def test_level_relieves_a_loaded_site() -> None:
    outcome = run(LOADED, 4.0, Level())
    best = (3 + 0.43) / 4  # Without regard to the size of partitions.
    assert outcome.is_settled
    assert outcome.sustained_rate / LOADED.unloaded_rate > 0.97 * best
    assert outcome.rate(3.0, 4.0) / LOADED.unloaded_rate > 0.95 * best


def test_hill_climbing_relieves_a_loaded_site() -> None:
    policy = HillClimbing(imbalance=1.2, utilisation=0.9, collect_min_s=0.1)
    outcome = run(replace(LOADED, pool_rows=512, batch_rows=512), 4.0, policy)
    assert outcome.sustained_rate / LOADED.unloaded_rate > 0.6


def test_a_shared_pool_absorbs_a_rotating_load_and_a_divided_one_does_not() -> None:
    spells = rotate(SMALL.names, each_s=0.25, until_s=2.5)
    setting = replace(SMALL, slow_spells=spells, pool_rows=1_024, batch_rows=512)
    shared, divided = (run(replace(setting, divided=each), 2.5) for each in (False, True))
    assert shared.rate(0.5, 2.5) > 1.05 * divided.rate(0.5, 2.5)
    # River's queue needs hardly any room for it, because its rows may go anywhere.
    river = run(replace(setting, divided=True, by_free_space=True), 2.5)
    assert river.rate(0.5, 2.5) > shared.rate(0.5, 2.5)


def test_sorted_input_needs_a_pool() -> None:
    draw = draw_sorted(SMALL.partitions, SMALL.sites, block_rows=4_096)
    narrow = TimedCluster(replace(SMALL, pool_rows=256, batch_rows=256), draw=draw).run(1.0)
    wide = TimedCluster(
        replace(SMALL, pool_rows=8_192), draw=draw_sorted(SMALL.partitions, SMALL.sites, block_rows=4_096)
    ).run(1.0)
    assert narrow.rate(0.2, 1.0) < 0.6 * wide.rate(0.2, 1.0)


def test_work_that_begins_before_a_spell_takes_longer_within_it() -> None:
    setting = replace(SMALL, slow_spells={"site-1": (SlowSpell(begin_s=1.0, end_s=2.0, speed=0.5),)})
    assert setting.finish("site-1", 0.0, 0.5) == 0.5
    assert setting.finish("site-1", 0.5, 0.75) == pytest.approx(1.5)
    assert setting.finish("site-1", 0.5, 1.5) == pytest.approx(2.5)
    assert setting.finish("site-2", 0.5, 1.5) == 2.0
