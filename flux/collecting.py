"""Looking for garbage: when Python had better not."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator

__all__ = ["without_collecting"]


@contextlib.contextmanager
def without_collecting() -> Iterator[None]:
    """Let Python not look for garbage in cycles meanwhile; what user code leaves in cycles is found later.

    It looks after so many new objects, and a batch makes some for each row. None of them is in a cycle, and looking
    took up to a third of the time.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
