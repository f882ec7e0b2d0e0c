"""Time watch: the punctuations of an ingress that no row causes: its clock, and the watermark past idle sources."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Protocol

import trio

from .numbering import Numbering
from .source_input import SourceInput
from .watermarks import Watermarks

_IDLE_CHECK = 0.25  # How often silent sources are looked for: this part of the shortest idle_after_s.


class PunctuationWriter(Protocol):
    """Numbers a punctuation and sends it; `why_not` as in `Numbering.check`."""

    def __call__(self, kind: str, value: int, why_not: str, *, idle: frozenset[int] = frozenset()) -> None: ...


class TimeWatch:
    """Watches the time for the sources of one ingress; `write` is called when it is its turn."""

    def __init__(
        self,
        inputs: Sequence[SourceInput],
        watermarks: Watermarks,
        numbering: Numbering,
        write: PunctuationWriter,
    ) -> None:
        self._inputs = inputs
        self._watermarks = watermarks
        self._numbering = numbering
        self._write = write
        self._last_ms = 0

    async def start(self, nursery: trio.Nursery) -> None:
        """Emit the clock if a source wants it, and go on with that, and with looking for idle sources."""
        nursery.start_soon(self._declare_idle)
        if any(each.source.clock_ms is not None for each in self._inputs):
            await self._emit_clock()
            nursery.start_soon(self._emit_clock_regularly)

    async def _emit_clock_regularly(self) -> None:
        """Emit the clock as long as a source for which it was asked has not ended."""
        sources = [(each, each.source.clock_ms) for each in self._inputs]
        while intervals := [clock_ms for each, clock_ms in sources if clock_ms is not None and not each.has_ended]:
            await trio.sleep(min(intervals) / 1_000)
            await self._emit_clock()

    async def _emit_clock(self) -> None:
        """Emit the time of this machine, which never goes back."""
        async with self._numbering.turn:
            await self._numbering.next()
            self._last_ms = max(self._last_ms, time.time_ns() // 1_000_000)
            self._write("clock", self._last_ms, "a clock reading was among them")

    async def _declare_idle(self) -> None:
        """Declare sources idle that have been silent for their time, when that raises the watermark."""
        limits = [each.source.idle_after_s for each in self._inputs if each.source.idle_after_s is not None]
        while limits:
            await trio.sleep(min(limits) * _IDLE_CHECK)
            async with self._numbering.turn:
                if not (silent := self._silent()):
                    continue
                after = await self._numbering.next()
                # A source that gave rows meanwhile has them in hand, and is not silent any more.
                value = self._watermarks.set_idle(silent & self._silent())
                if value is None:
                    self._numbering.give_back(after)
                else:
                    self._write("watermark", value, "a watermark was among them", idle=self._watermarks.idle)

    def _silent(self) -> set[int]:
        return {each.number for each in self._inputs if each.is_silent(time.monotonic())}
