"""Idle time: how long the loop of this process has waited for something to do.

Modules call `watch` by way of this module, so that `flux.simulation` can replace it: there many processes share a loop.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import trio

__all__ = ["watch"]


class _IdleTime(trio.abc.Instrument):
    """Adds up the waits of a loop. One without a timeout is only a look at what is ready, and is not idle."""

    def __init__(self) -> None:
        self.total_s = 0.0
        self._since_s = 0.0

    def before_io_wait(self, timeout: float) -> None:
        if timeout > 0:
            self._since_s = time.monotonic()

    def after_io_wait(self, timeout: float) -> None:
        if timeout > 0:
            self.total_s += time.monotonic() - self._since_s


def watch() -> Callable[[], float]:
    """Return what gives the seconds for which the loop of the calling task has waited since this call."""
    instrument = _IdleTime()
    trio.lowlevel.add_instrument(instrument)
    return lambda: instrument.total_s
