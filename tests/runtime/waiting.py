"""Waiting for what other processes do: for a condition, with a deadline, never for a time."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

DEADLINE_S = 60.0


def wait_until(holds: Callable[[], bool], what: str, every_s: float = 0.005) -> None:
    """Return when `holds()`, which is called so often; fail with `what` when that takes too long."""
    deadline = time.monotonic() + DEADLINE_S
    while not holds():
        assert time.monotonic() < deadline, f"waited {DEADLINE_S:g} s: {what}"
        time.sleep(every_s)


def is_gone(pid: int) -> bool:
    """Whether a process has ended; one that nobody has reaped yet has ended too."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True
