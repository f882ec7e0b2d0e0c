"""Executors of a Spark application on this machine: which processes they are, and whose descendants."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

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


def workers_of(executor: int) -> list[int]:
    """The Python workers of an executor, which the daemon that it started has forked."""
    return [pid for pid in _processes() if parent_of(parent_of(pid)) == executor and b"python" in _command(pid)]


def kill(pid: int) -> float:
    """SIGKILL; returns the moment, by the monotonic clock."""
    at = time.monotonic()
    os.kill(pid, signal.SIGKILL)
    return at


def wait_until(holds: Callable[[], bool], what: str, timeout_s: float = 300.0) -> None:
    """Return when `holds()`."""
    deadline = time.monotonic() + timeout_s
    while not holds():
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {timeout_s:g} s for {what}")
        time.sleep(0.02)


def _processes() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def _command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""
