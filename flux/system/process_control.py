"""Process control: the end of this process, signals to others, and what the system knows of them.

Modules call these functions by way of this module, so that `flux.simulation` can replace them.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

__all__ = ["cpu_s_of", "exit_now", "kill_self", "run_ns_of", "send_signal", "state_of", "watch_waits"]

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")

exit_now = os._exit
send_signal = signal.pidfd_send_signal


def kill_self() -> None:
    """End this process by SIGKILL."""
    os.kill(os.getpid(), signal.SIGKILL)


def state_of(pid: int) -> str | None:
    """Return the letter by which the system names the state of a process; None if it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return None


def cpu_s_of(pid: int) -> float | None:
    """Return the processor seconds that a process has used; None if it is gone, or this system does not say."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S


def run_ns_of(pid: int) -> int | None:
    """Return for how many nanoseconds the main thread of a process has run; None if this system does not say."""
    try:
        return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return None


def watch_waits() -> Callable[[], float]:
    """Return what gives the seconds for which this thread could run and waited for a processor.

    They are always 0 where the system does not say.
    """
    try:
        fd = os.open("/proc/thread-self/schedstat", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return lambda: 0.0
    return lambda: int(os.pread(fd, 100, 0).split()[1]) / 1e9
