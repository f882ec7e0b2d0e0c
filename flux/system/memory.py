"""Memory: how the C library keeps what was freed.

Arrays of a step are made and dropped many times a second. By default the C library returns large ones to the system at
once and gets them again, a page fault for each 4 KB: 5 to 10 % of the CPU of a window.
"""

from __future__ import annotations

import ctypes
import os

__all__ = ["keep_freed_memory"]

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # As malloc.h has them.
_KEPT_MAX_BYTES = 64 << 20
_ARRAY_MAX_BYTES = 32 << 20  # The most that glibc takes.
_SET_BY_USER = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES")


def keep_freed_memory() -> bool:
    """Have this process keep up to 64 MB of freed memory; return False if the C library or the user does otherwise."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # Only glibc has it.
    if mallopt is None or any(name in os.environ for name in _SET_BY_USER):
        return False
    return bool(mallopt(_MMAP_THRESHOLD, _ARRAY_MAX_BYTES) and mallopt(_TRIM_THRESHOLD, _KEPT_MAX_BYTES))
