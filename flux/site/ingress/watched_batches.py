"""Watched batches: a source's batches, with a note for the stuck watch while the source's own code runs.

A source that waits may do so for ever. One that blocks the loop of its process holds up all that the process does; so
only the time between two of its awaits counts.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Generator
from typing import Any, Self

from ...sources import SourceBatch
from ..stuck_watch import StuckWatch


class WatchedBatches:
    """The batches of the source `name`; `place` says at which row it is."""

    def __init__(
        self, batches: AsyncIterator[SourceBatch], watch: StuckWatch, name: str, place: Callable[[], str]
    ) -> None:
        self._batches = batches
        self._watch = watch
        self._name = name
        self._place = place

    def __aiter__(self) -> Self:
        return self

    def __anext__(self) -> Awaitable[SourceBatch]:
        return _Watched(anext(self._batches), self._watch, (f"source {self._name}", self._place()))

    async def aclose(self) -> None:
        """Close the source, if it can be closed."""
        close = getattr(self._batches, "aclose", None)
        if close is not None:
            await close()


class _Watched:
    """An awaitable that is resumed step by step, under the watch."""

    def __init__(self, awaited: Awaitable[SourceBatch], watch: StuckWatch, what: tuple[str, str]) -> None:
        self._awaited = awaited
        self._watch = watch
        self._what = what

    def __await__(self) -> Generator[Any, Any, SourceBatch]:
        steps: Any = self._awaited.__await__()
        resume, given = steps.send, None
        while True:
            self._watch.begin(self._what)
            try:
                waits_for = resume(given)
            except StopIteration as done:
                batch: SourceBatch = done.value
                return batch
            finally:
                self._watch.end()
            try:
                resume, given = steps.send, (yield waits_for)
            except BaseException as error:  # A cancellation, say: it is the source's, too.
                resume, given = steps.throw, error
