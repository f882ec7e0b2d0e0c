"""Executors of a Spark application on this machine: which processes they are, and whose descendants."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

BACKEND = b"CoarseGrainedExecutorBackend"


def parent_of(pid: int) -> int:
    """The parent's number; 0 if the process is gone."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


def executor_of(pid: int) -> int | None:
    """The executor that the process is a descendant of; None if of none."""
    while pid > 1:
        if BACKEND in _command(pid):
            return pid
        pid = parent_of(pid)
    return None


def kill_executor_of(pid: int) -> float:
    """SIGKILL the executor that the process is a descendant of; returns the moment, by the monotonic clock."""
    executor = executor_of(pid)
    if executor is None:
        raise RuntimeError(f"process {pid} is a descendant of no executor")
    at = time.monotonic()
    os.kill(executor, signal.SIGKILL)
    return at


def active_jobs(spark: Any) -> list[int]:
    """The jobs that Spark has not ended. It hears of its own doings by a queue, so that is waited for first."""
    spark.sparkContext._jsc.sc().listenerBus().waitUntilEmpty()
    return list(spark.sparkContext.statusTracker().getActiveJobsIds())


def wait_until(holds: Callable[[], bool], what: str, timeout_s: float = 300.0) -> None:
    """Return when `holds()`."""
    deadline = time.monotonic() + timeout_s
    while not holds():
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {timeout_s:g} s for {what}")
        time.sleep(0.02)


def _command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""
