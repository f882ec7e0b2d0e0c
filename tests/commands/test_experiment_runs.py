"""`flux experiment`: what it lists, what it writes, and when it says that a run is not valid."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from experiments import catalog, results
from experiments.balance.pictures import draw_bars, draw_lines
from experiments.experiment import Experiment, Finding, Outcome, Progress
from flux.commands.main import main


def fake(is_valid: bool, holds: bool) -> Experiment:
    def run(quick: bool, progress: Progress) -> Outcome:
        progress("measuring")
        return Outcome(
            rows=[{"x": 1, "quick": quick}, {"x": 2, "quick": quick}],
            findings=[Finding(what="height", value=2.0, target="at least 1", holds=holds, thesis="1.5")],
            validity=[Finding(what="quiet", value=0.1, target="under 0.6", holds=is_valid)],
        )

    def plot(rows: Sequence[dict[str, Any]], path: Path) -> None:
        draw_bars(path, "a title", "a unit", [("ours", rows[0]["x"])], [("theirs", 2.0)], {"limit": 1.0})

    return Experiment(name="tower", claim="It is high.", run=run, plot=plot, minutes="1", folder="tower")


@pytest.fixture
def out(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setattr(results, "ROOT", tmp_path)
    return tmp_path / "tower" / "out"


def test_all_experiments_are_listed_with_their_claims(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["experiment", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert {"half-speed", "hogs", "lost-site", "rotating", "growth", "two-slow"} <= listed.keys()
    assert all(each["claim"] and each["minutes"] for each in listed.values())
    assert main(["experiment"]) == 0
    assert "Table 5.1" in capsys.readouterr().out


def test_an_unknown_experiment_names_those_that_exist(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["experiment", "halfspeed"]) == 2
    assert "no experiment is called 'halfspeed'; there are half-speed" in capsys.readouterr().err


@pytest.mark.parametrize(("is_valid", "holds", "status"), [(True, True, 0), (True, False, 1), (False, True, 1)])
def test_results_and_verdict_are_written(
    is_valid: bool,
    holds: bool,
    status: int,
    out: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setitem(catalog.EXPERIMENTS, "tower", fake(is_valid, holds))
    assert main(["experiment", "tower", "--quick"]) == status
    shown = capsys.readouterr()
    assert "measuring" in shown.err
    assert "height: 2 (target at least 1; thesis: 1.5)" in shown.out
    assert ("FALLS SHORT" in shown.out) == (status == 1)
    assert ("is not valid" in shown.out) == (not is_valid)
    assert (out / "tower.csv").read_text().splitlines() == ["x,quick", "1,True", "2,True"]
    document = json.loads((out / "tower.json").read_text())
    assert document["valid"] is is_valid and document["findings"][0]["holds"] is holds
    assert (out / "tower.png").read_bytes().startswith(b"\x89PNG")


def test_a_json_document_is_all_that_is_printed(
    out: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(catalog.EXPERIMENTS, "tower", fake(True, True))
    assert main(["experiment", "tower", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["experiment"] == "tower"


def test_lines_of_the_thesis_are_drawn_beside_ours(tmp_path: Path) -> None:
    draw_lines(tmp_path / "a.png", "a title", "x", "y", {"ours": [(1, 2), (2, 3)]}, {"theirs": [(1, 1)]})
    assert (tmp_path / "a.png").stat().st_size > 1_000
