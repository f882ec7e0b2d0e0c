"""Memory of processes, as the system counts it."""

from __future__ import annotations

import os
from pathlib import Path


def resident_mb(pid: int) -> float:
    """Of one process, with the pages that it shares; 0 if it ended a moment ago."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except OSError:
        return 0.0
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6
