"""Code of a remote run is changed by a command, and a controller that is started again knows of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from flux.commands.main import main

from .commands import Processes, said
from .waiting import wait_until

RULES = """
import flux

class Counts(flux.KeyedOperator):
    output = {"k": "int64", "v": "int64", "n": "int64"}

    def open(self, context):
        self.by = context.parameters["by"]

    def on_tuple(self, key, row, state):
        n = (state or 0) + self.by
        return n, [{"k": row.k, "v": row.v, "n": n}]
"""


def reconfigured(processes: Processes, capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    capsys.readouterr()
    assert main(["reconfigure", "--controller", processes.controller, *arguments, "--json"]) == 0
    return dict(json.loads(capsys.readouterr().out))


def test_code_is_changed_by_a_command_and_the_controller_that_is_started_again_goes_on_from_there(
    processes: Processes,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "rules_of_remote.py").write_text(RULES)
    others = ("site-a", "site-b", "site-c", "ingress", "egress")
    for name in ("controller", *others):
        processes.start(name)
    processes.advance(200)
    first = reconfigured(processes, capsys, "Counts", "--operator", "rules_of_remote:Counts", "by=10")
    processes.kill("controller")
    processes.start("controller")
    processes.advance(200)
    processes.kill("site-a")
    second = reconfigured(processes, capsys, "Counts", "by=1000")
    assert (first["number"], second["number"]) == (1, 2) and first["position"] < second["position"]
    # A site that comes later runs the new code, which it has never seen otherwise.
    processes.start("site-d")
    processes.kill("site-b")
    processes.advance(200)
    text = said(capsys, 1, "reconfigure", "--controller", processes.controller, "Nothing", "by=1")
    assert "has no step 'Nothing'; its steps are 'Counts'" in text
    (tmp_path / "enough").touch()
    for name in ("controller", "site-c", "site-d", "ingress", "egress"):
        assert processes.running[name].wait(60) == 0, processes.logs()
    lines = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    counts: dict[int, int] = {}
    for v, line in enumerate(lines):
        by = 1 if v + 1 <= first["position"] else 10 if v + 1 <= second["position"] else 1_000
        counts[v % 7] = counts.get(v % 7, 0) + by
        assert line == {"k": v % 7, "v": v, "n": counts[v % 7]}
    assert len(lines) == int((tmp_path / "ended-at").read_text())


@pytest.mark.parametrize("arguments", [["a", "b", "c"], ["x=1"]])
def test_a_wrong_call_is_said(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert "expected [RUN] STEP and parameters" in said(capsys, 2, "reconfigure", *arguments)


def test_a_site_that_has_other_code_is_named_and_nothing_has_changed(
    processes: Processes,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "rules_of_remote.py").write_text(RULES)
    other = tmp_path / "other"
    other.mkdir()
    (other / "rules_of_remote.py").write_text(RULES + "\n# Another release.\n")
    (other / "job.py").write_text((tmp_path / "job.py").read_text())
    for name in ("controller", "site-a", "site-c", "ingress", "egress"):
        processes.start(name)
    elsewhere = Processes(other)
    elsewhere.controller = processes.controller
    elsewhere.start("site-b")
    try:
        processes.advance(100)
        text = said(
            capsys,
            1,
            *("reconfigure", "--controller", processes.controller, "Counts", "by=10"),
            *("--operator", "rules_of_remote:Counts"),
        )
        assert "Counts: site-" in text
        assert "has another source here" in text and str(other) in text
        processes.advance(50)
        (tmp_path / "enough").touch()
        processes.running["egress"].wait(60)
        lines = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
        assert all(line["n"] == line["v"] // 7 + 1 for line in lines)
    finally:
        elsewhere.running["site-b"].kill()
        wait_until(lambda: elsewhere.running["site-b"].poll() is not None, "site-b is still there")
