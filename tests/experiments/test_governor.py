"""`experiments.governor`: its model against sums by hand, and each of its claims must be able to fail."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from experiments.governor import run
from experiments.governor.simulation import JobCosts, play
from flux.governor import Fixed, Governor


def test_the_bound_is_what_a_region_has_time_for() -> None:
    costs = JobCosts(fixed=0.6, checkpoint=0.7)
    rows = 10 * costs.bound * costs.full_rows
    assert 10 * 0.6 + 0.7 + rows * costs.row_s == pytest.approx(10)
    assert costs.bound == pytest.approx(0.825)
    assert JobCosts(fixed=0.9, checkpoint=1.5).bound == 0


def test_a_job_starts_when_it_is_due_and_the_one_before_has_ended() -> None:
    costs = JobCosts(fixed=0.5, checkpoint=1.0, noise=0.0, every=4, full_rows=100, min_rows=10)
    played = play(Fixed(50), costs, jobs=5, seed=0)
    assert played.processing_s == pytest.approx([1.75, 0.75, 0.75, 0.75, 1.75])
    assert played.delays_s == pytest.approx([0.0, 0.75, 0.5, 0.25, 0.0])
    assert played.mean_delay(1) == pytest.approx(0.375)
    assert played.checkpoint_sizes(1) == [50]
    assert played.share(0) == pytest.approx(250 / 5.75 / 100)  # The last job ends 0.75 s after the next one is due.


def test_a_source_with_few_rows_gives_what_it_has() -> None:
    costs = JobCosts(fixed=0.5, checkpoint=0.0, min_rows=10)
    assert play(Fixed(1_000), costs, jobs=4, seed=0, offered_rows=300).sizes == [300] * 4
    assert play(Fixed(400), costs, jobs=3, seed=0, offered_rows=300).sizes == [300] * 3
    assert play(Fixed(400), costs, jobs=3, seed=0, offered_rows=1).sizes == [10] * 3


def test_the_same_seed_gives_the_same_jobs() -> None:
    costs = JobCosts(fixed=0.6, checkpoint=0.7)
    one, same, other = (play(Governor(1.0, 10, 2_000, 10), costs, 50, seed) for seed in (1, 1, 2))
    assert one.processing_s == same.processing_s != other.processing_s


@pytest.mark.parametrize(("fixed", "checkpoint"), [(0.6, 0.7), (0.9, 0.7)])
def test_the_claims_hold(
    fixed: float, checkpoint: float, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(run.results, "write", lambda *rows, **about: tmp_path)
    run.main(["--fixed", str(fixed), "--checkpoint", str(checkpoint), "--runs", "3", "--json"])
    figures = json.loads(capsys.readouterr().out)
    assert [row["controller"] for row in figures["settings"]] == ["pid", "naive", "governor", "exact"]
    assert all(row["share"] <= row["bound"] for row in figures["settings"])
    assert figures["findings"][0]["value"] >= 0.98


def rows(**changes: dict[str, Any]) -> list[dict[str, Any]]:
    """Rows of one setting in which all claims hold, but for these changes by controller."""
    usual: dict[str, Any] = {"fixed": 0.6, "checkpoint": 0.7, "bound": 0.825, "full_time": 1.0}
    usual |= {"checkpoint_rows_min": 10, "checkpoint_rows_max": 10}
    each = {
        "pid": {"share": 0.783, "delay": 0.27},
        "naive": {"share": 0.25, "delay": 0.05, "checkpoint_rows_min": 1_000},
        "governor": {"share": 0.765, "delay": 0.09},
        "exact": {"share": 0.806, "delay": 0.1},
    }
    return [{**usual, "controller": name, **row, **changes.get(name, {})} for name, row in each.items()]


@pytest.mark.parametrize(
    ("changes", "overhead", "falls_short"),
    [
        ({}, 1e-5, []),
        ({"exact": {"share": 0.76}}, 1e-5, ["exact: rows, of PID's"]),
        ({"pid": {"share": 0.57, "delay": 0.27}, "exact": {"share": 0.6}}, 1e-5, ["where the bound is 1.4", "0.8 and"]),
        ({"exact": {"delay": 0.2}}, 1e-5, ["PID's delay"]),
        ({"governor": {"full_time": 0.9}}, 1e-5, ["time of full jobs"]),
        ({"naive": {"checkpoint_rows_min": 20}}, 1e-5, ["naive"]),
        ({"governor": {"checkpoint_rows_max": 11}}, 1e-5, ["governor: rows of checkpoint jobs"]),
        ({}, 0.01, ["overhead"]),
    ],
)
def test_each_claim_can_fail(changes: dict[str, dict[str, Any]], overhead: float, falls_short: list[str]) -> None:
    found = run.findings(rows(**changes), [{"history_s": 60, "overhead": overhead}])
    failed = [finding.what for finding in found if not finding.holds]
    assert len(failed) == len(falls_short)
    assert all(part in what for part, what in zip(falls_short, failed, strict=True))


def test_a_claim_that_falls_short_fails_the_command(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(run.results, "write", lambda *rows, **about: tmp_path)
    monkeypatch.setattr(run, "measure_overhead", lambda *settings: [{"history_s": 60, "overhead": 0.01}])
    with pytest.raises(SystemExit) as caught:
        run.main(["--fixed", "0.6", "--checkpoint", "0.7", "--quick", "--jobs", "210", "--json"])
    assert caught.value.code == 1
