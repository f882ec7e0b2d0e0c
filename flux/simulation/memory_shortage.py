"""Memory shortage: one call of a function in a simulated process finds no memory, as an allocation in it might.

Only plain functions of the code around operators count: from its sites' loops down to the machines and the encoding.
Functions with a cache of their own do not: a process of the system that has run worlds before would call fewer of them.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any

from .. import exchange, hosting, protocols, site, wire

__all__ = ["MemoryShortage"]

_FOLDERS = tuple(f"{package.__path__[0]}{os.sep}" for package in (exchange, hosting, protocols, site, wire))
_WITH_CACHES = (os.path.join("site", "digests.py"), os.path.join("wire", "tls.py"))
_RESUMED = 0x20 | 0x80 | 0x200  # Generators and coroutines, as `inspect` numbers them: a call may be of their middle.
_IN_SCOPE: dict[CodeType, bool] = {}


class MemoryShortage:
    """The `calls`-th call from now on raises `MemoryError`."""

    def __init__(self, calls: int) -> None:
        self._left = calls
        self.where = ""  # The function that found no memory.

    @property
    def has_struck(self) -> bool:
        """Whether a call has failed."""
        return bool(self.where)

    def run(self, step: Callable[[Any], Any], value: Any) -> Any:
        """Run a step of a task. Python has one hook for calls: under a profiler no call fails."""
        if self.has_struck or sys.getprofile() is not None:
            return step(value)
        sys.setprofile(self._count)
        try:
            return step(value)
        finally:
            sys.setprofile(None)

    def _count(self, frame: FrameType, event: str, _: Any) -> None:
        if event != "call" or self.has_struck or not _is_in_scope(frame.f_code):
            return
        self._left -= 1
        if self._left <= 0:
            self.where = frame.f_code.co_qualname
            raise MemoryError(f"no memory in {self.where}, in a simulation")


def _is_in_scope(code: CodeType) -> bool:
    known = _IN_SCOPE.get(code)
    if known is None:
        name = code.co_filename
        is_ours = name.startswith(_FOLDERS) and not name.endswith(_WITH_CACHES)
        known = _IN_SCOPE[code] = is_ours and not code.co_flags & _RESUMED and code.co_name != "<module>"
    return known
