"""A change under load with some state, as the experiment makes it: the figures are there, and the new code runs."""

from __future__ import annotations

import argparse
from typing import Any

import pytest

from experiments.reconfigured import run


@pytest.mark.parametrize("kind", ["keyed-migrated", "by-partition"])
def test_a_change_with_some_state_is_made_and_timed(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "RATES", dict.fromkeys(run.RATES, 5_000))
    monkeypatch.setattr(run, "AFTER_S", 0.5)
    monkeypatch.setattr(run, "BEFORE_S", 0.5)
    monkeypatch.setattr(run, "FILLING_ROWS", 20_000)
    taken: dict[str, Any] = run.one(argparse.Namespace(kind=kind, state_mb=2, catching_up=False))
    assert 0 < taken["committed_s"] <= taken["delay_s"] <= taken["complete_s"]
    assert taken["attempts"] >= 1 and taken["after_s"] > 0
