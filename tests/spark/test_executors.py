"""Sites on the executors of a local cluster, and kill -9. Minutes: three JVMs start, and one more for each kill.

The cluster is in a process of its own, that of the experiment: a process has one Spark context, the other tests'.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent.parent
pytestmark = pytest.mark.gauntlet


def experiment(*arguments: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "experiments.spark_sites", *arguments, "--json"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=1_800, check=False)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    figures: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return figures


def test_a_killed_executor_is_a_killed_site_and_nothing_is_lost() -> None:
    figures = experiment("executor", "--quick")
    [killed] = figures["kills"]
    assert figures["exact"] and figures["tasks_left"] == 0
    assert killed["descendants"], "each site's process is a descendant of an executor"
    assert killed["standby"], "the site that Spark starts in its place holds nothing yet"
    # On a busy machine there are gaps without a kill, too.
    assert killed["gap_s"] < 0.5 + min(killed["without_kill_s"], 0.5)


def test_who_does_not_answer_is_replaced_and_does_no_harm_when_it_wakes_up() -> None:
    figures = experiment("stopped")
    site, _ = figures["kills"]
    assert figures["exact"] and figures["tasks_left"] == 0
    # The site of a silent executor lives: it is drained when Spark has started another, or dies with the executor.
    assert site["victim"] in figures["failures"]


def test_exactly_once_end_to_end_with_sites_on_executors() -> None:
    figures = experiment("exactly-once")
    assert figures["exact"] and figures["tasks_left"] == 0
    assert figures["killed"].startswith("worker, query, the executor of site-1, site-2, the ingress")
