"""Control of Python's garbage collector while rows are processed."""

from __future__ import annotations

import contextlib
import gc
import itertools
from collections.abc import Iterable, Iterator
from typing import TypeVar

__all__ = ["collect_periodically", "gc_paused"]

_UNCOLLECTED_ROWS = 2_048

T = TypeVar("T")


@contextlib.contextmanager
def gc_paused() -> Iterator[None]:
    """Pause garbage collection; `collect_periodically` collects what user code leaves in cycles.

    Python collects after a number of new objects, and a batch creates some for each row. None of them is in a cycle,
    and collecting took up to a third of the time.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def collect_periodically(rows: Iterable[T], count: int) -> Iterator[T]:
    """Yield `count` rows, and collect young garbage every few thousand.

    A batch may have a hundred thousand rows, and each of them may leave a large object in a cycle.
    """
    return itertools.chain.from_iterable(_pieces(iter(rows), count))


def _pieces(rows: Iterator[T], count: int) -> Iterator[Iterator[T]]:
    for start in range(0, count, _UNCOLLECTED_ROWS):
        if start:
            gc.collect(0)
        yield itertools.islice(rows, _UNCOLLECTED_ROWS)
