"""The command line of the examples: what it prints, and what it tells the shell."""

from __future__ import annotations

import json
from typing import Any

import pytest

import flux
from experiments.examples import intrusion, running, vwap


def called(*arguments: str) -> int:
    return running.main("VWAP, in short.\n\nMore.", vwap.trades, vwap.flow, arguments)


def no_constants(name: str) -> Any:
    raise AssertionError(f"{name} is no JSON")


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "PACED_S", 1.5)


def test_with_kill_and_json_it_prints_one_document_that_says_the_output_was_exact(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert called("--rows", "2000", "--kill", "--json") == 0
    told = json.loads(capsys.readouterr().out, parse_constant=no_constants)
    assert told["exact"] is True
    assert [failure["site"] for failure in told["failures"]] == [running.VICTIM]
    assert (told["inputs"], told["outputs"]) == (2_000, told["table_rows"])
    assert len(told["last_rows"]) == running.SHOWN_ROWS
    assert set(told["last_rows"][-1]) == {"symbol", "window_start", "window_end", "trades", "volume", "vwap"}


def test_an_output_that_is_not_exact_is_said_and_is_a_status_of_1(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def one_row_less(data: Any, flow: Any, kill_at: int) -> flux.Report:
        report = running.run(data, flow)
        report.table = report.table.slice(1)
        return report

    monkeypatch.setattr(running, "run_with_kill", one_row_less)
    assert called("--rows", "500", "--kill") == 1
    assert capsys.readouterr().out.endswith("THE OUTPUT DIFFERS\n")


def test_without_a_kill_it_prints_the_last_rows_and_how_many_there_were(capsys: pytest.CaptureFixture[str]) -> None:
    assert called("--rows", "500") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["symbol", "window_start", "window_end", "trades", "volume", "vwap"]
    assert len(lines) == 1 + running.SHOWN_ROWS + 1 and lines[-1].startswith("500 rows in, ")


@pytest.mark.parametrize("rows", ["0", "-5", "many"])
def test_rows_are_a_number(rows: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        called(f"--rows={rows}")
    assert caught.value.code == 2
    assert f"expected a whole number of rows, at least 1; got '{rows}'" in capsys.readouterr().err


def test_so_few_rows_that_nothing_comes_out_are_refused_with_a_kill(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        running.main(None, intrusion.packets, intrusion.flow, ["--rows", "3", "--kill"])
    assert caught.value.code == 2
    assert "3 rows give no output" in capsys.readouterr().err
