"""A bound on the connections of a process that have not authenticated yet, by number and by time.

Any program that reaches a port may open connections and send nothing. Without a bound they take all file descriptors,
and a process that knows the secret waits until they time out. So of too many, the oldest is closed: a handshake takes
milliseconds, and a process that knows the secret dials again if a flood closed its connection.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import trio

__all__ = ["STRANGERS_MAX", "await_authentication"]

STRANGERS_MAX = 64

_ScopesByAge = dict[trio.CancelScope, None]
_strangers: trio.lowlevel.RunVar[_ScopesByAge] = trio.lowlevel.RunVar("flux strangers")


@contextlib.contextmanager
def await_authentication(deadline_s: float) -> Iterator[trio.CancelScope]:
    """Run the handshake of one accepted connection in this block; it is cancelled if it is too slow or crowded out.

    The bound holds for all listeners of an event loop together. If the scope's `cancelled_caught` is true afterwards,
    close the connection.
    """
    try:
        scopes = _strangers.get()
    except LookupError:
        scopes = {}
        _strangers.set(scopes)
    scope = trio.CancelScope(deadline=trio.current_time() + deadline_s)
    scopes[scope] = None
    if len(scopes) > STRANGERS_MAX:
        oldest = next(iter(scopes))
        del scopes[oldest]
        oldest.cancel()
    try:
        with scope:
            yield scope
    finally:
        scopes.pop(scope, None)
