"""Coverage plugin: has coverage note which test executes a line, and writes what each test costs.

For pytest, by ``-p flux.mutation.coverage_plugin``, in a process that coverage measures. Tests that start processes are
left out: those run the code on the disk, and not that of a mutant, or wait for each other.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from coverage import Coverage

SECONDS_FILE = "FLUX_SECONDS_OF_TESTS"  # Names the file; in the environment.
_CHILDREN_MAX_S = 0.05

_began: dict[str, tuple[float, float]] = {}
_seconds: dict[str, float] = {}


def _used_s() -> tuple[float, float]:
    """Return the processor seconds of this process, and of those that it has started and that have ended."""
    used = os.times()
    return used.user + used.system, used.children_user + used.children_system


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[Any]:
    """Note what a test executes under its name."""
    measured = Coverage.current()
    assert measured is not None, "coverage runs this process"
    measured.switch_context(item.nodeid)
    _began[item.nodeid] = _used_s()
    return (yield)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Note how long a test took; leave out one that does not pass, or that starts processes."""
    if not report.passed:
        _began.pop(report.nodeid, None)
    elif report.when == "teardown" and report.nodeid in _began:
        before, now = _began.pop(report.nodeid), _used_s()
        if now[1] - before[1] <= _CHILDREN_MAX_S:
            _seconds[report.nodeid] = now[0] - before[0]


def pytest_sessionfinish() -> None:
    """Write what was noted."""
    Path(os.environ[SECONDS_FILE]).write_text(json.dumps(_seconds))
