"""The quick check, as the command runs it, is a part of the tests.

It takes about a minute: it is the check of every day, on all cores.
"""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import islice

import pytest

from flux.commands.main import main
from flux.protocols.buffer import Buffer
from flux.spec import check
from flux.spec.check import DEEP, DEEP_WALKS, QUICK, QUICK_CHANGING, QUICK_WALKS, QUICK_WANDERS, CheckPart
from flux.spec.scenario_walk import WORLDS


def test_the_quick_check_finds_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["spec", "check", "--quick", "--json"]) == 0
    checked = json.loads(capsys.readouterr().out)
    assert checked["violations"] == []
    assert checked["worlds"] == len(QUICK) + QUICK_WALKS + QUICK_CHANGING + len(WORLDS) * QUICK_WANDERS
    assert checked["large"] == QUICK_WALKS + QUICK_CHANGING
    assert set(checked["explored"]) == set(QUICK)
    assert min(checked["states"], checked["transitions"], checked["events"], checked["faults"], checked["probes"]) > 0


def test_what_it_finds_is_told_and_ends_the_command_with_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # Given a buffer that never lets anything go, when it is checked, then a story and seeds to replay are given.
    monkeypatch.setattr(Buffer, "_release", lambda buffer: None)
    some = {"QUICK": dict(islice(QUICK.items(), 1)), "QUICK_WALKS": 25, "QUICK_WANDERS": 1, "QUICK_PROBES": 1}
    for name, value in some.items():
        monkeypatch.setattr(check, name, value)
    assert main(["spec", "check", "--seed", "7"]) == 1
    out = capsys.readouterr().out
    assert "=> buffers drain" in out
    assert "flux spec replay 7" in out


def test_a_part_of_it_gives_the_same_result_each_time() -> None:
    part = CheckPart("some", QUICK["a pair, take-over"], walks=range(3, 13), probes=range(2), scale=2)
    assert replace(part.run(), explored={}) == replace(part.run(), explored={})


def test_the_deep_check_contains_the_quick_one() -> None:
    assert QUICK.items() <= DEEP.items()
    assert DEEP_WALKS >= 5_000
