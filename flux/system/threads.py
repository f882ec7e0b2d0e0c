"""Threads: calls that block, and loops that must go on while an operator works.

Modules call these functions by way of this module, so that `flux.simulation` can replace them.
"""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable

import trio

__all__ = ["call_in_thread", "start_loop"]

call_in_thread = trio.to_thread.run_sync


def start_loop(run: Callable[[], Awaitable[None]], name: str) -> threading.Thread:
    """Run a coroutine in a thread with a loop of its own; it ends with the process."""
    thread = threading.Thread(target=trio.run, args=(run,), name=name, daemon=True)
    thread.start()
    return thread
