"""Process control: the end of this process, signals to others, and what the system knows of them.

Modules call these functions by way of this module, so that `flux.simulation` can replace them.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

__all__ = ["exit_now", "kill_self", "send_signal", "state_of"]

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
