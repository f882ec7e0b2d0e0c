"""A process that is stuck in code of the user is named, with the step, the rows and the line; nothing ends it."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest

import flux
from flux.commands.top import screen

from .user_errors import ROWS, flow_of, keyed
from .waiting import wait_until


def stuck_texts(run: flux.Run) -> list[str]:
    return [process.stuck for process in run.status().processes if process.stuck]


@pytest.mark.parametrize("how", ["an endless loop", "a deadlock"])
def test_code_that_does_not_return_is_named_until_it_does(
    how: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    go = tmp_path / "go"

    def wait_for_it(lock: threading.Lock) -> None:
        while not go.exists():
            if how == "a deadlock":
                lock.acquire(timeout=0.2)

    def on_tuple(key: Any, row: Any, state: Any) -> Any:
        if row.v == 20 and not go.exists():
            wait_for_it(threading.Lock())
        return None, [{"k": row.k}]

    source = flux.sources.Table(ROWS * 100, rate=500)  # It outlasts the test.
    with flow_of(keyed(on_tuple), source).start(sites=2, stuck_after_s=0.5) as run:
        wait_until(lambda: len(stuck_texts(run)) == 2, "both copies are stuck in it")
        for text in stuck_texts(run):
            assert "step Mine" in text and "partitions " in text and "rows " in text
            assert "test_stuck.py" in text and "wait_for_it" in text and "on_tuple" in text
            assert "flux/" not in text
        assert "wait_for_it" in "\n".join(screen(run.status()))
        assert "site-1" in caplog.text and "wait_for_it" in caplog.text
        go.touch()
        run.wait_for_output(len(ROWS))
        wait_until(lambda: not stuck_texts(run), "that it goes on is reported")
    assert "goes on" in caplog.text


def test_slow_rows_are_not_stuck() -> None:
    def on_tuple(key: Any, row: Any, state: Any) -> Any:
        time.sleep(0.01)
        return None, [{"k": row.k}]

    with flow_of(keyed(on_tuple), flux.sources.Table(ROWS[:100], rate=50)).start(sites=2, stuck_after_s=20) as run:
        assert run.wait(60).outputs == 100
        assert stuck_texts(run) == []


def test_a_time_that_is_none_is_refused() -> None:
    with pytest.raises(flux.PlanError, match="stuck_after_s is a number of seconds above 0"):
        flow_of().start(stuck_after_s=0)
