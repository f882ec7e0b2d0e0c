"""Coverage plugin: has coverage note which test executes a line, and writes how long each test takes.

For pytest, by ``-p flux.mutation.coverage_plugin``, in a process that coverage measures.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from coverage import Coverage

SECONDS_FILE = "FLUX_SECONDS_OF_TESTS"  # Names the file; in the environment.

_seconds: dict[str, float] = {}


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[Any]:
    """Note what a test executes under its name."""
    measured = Coverage.current()
    assert measured is not None, "coverage runs this process"
    measured.switch_context(item.nodeid)
    _seconds[item.nodeid] = time.monotonic()
    return (yield)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Note how long a test took; leave out one that does not pass."""
    if report.when == "teardown" and report.nodeid in _seconds:
        _seconds[report.nodeid] = time.monotonic() - _seconds[report.nodeid]
    elif not report.passed:
        _seconds.pop(report.nodeid, None)


def pytest_sessionfinish() -> None:
    """Write what was noted."""
    Path(os.environ[SECONDS_FILE]).write_text(json.dumps(_seconds))
