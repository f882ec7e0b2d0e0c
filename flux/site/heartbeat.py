"""Heartbeat: a thread that sends heartbeats to the controller, however long the operator of this process works.

It has a loop and a connection of its own, so that it waits for nothing but the kernel. A process that was stopped, or
whose machine hangs, sends none. When the connection breaks, it retries for as long as the process lives.
"""

from __future__ import annotations

import socket

import trio

from ..system import threads
from ..types.errors import FluxError
from ..wire import frames
from ..wire.connections import Identity, dial
from ..wire.membership import BEAT, CodeStuck, membership_frame
from ..wire.sockets import write_all
from .stuck_watch import StuckWatch

BEAT_EVERY_S = 0.1
_SEND_TIMEOUT_S = 5.0
_REFUSED_RETRY_S = 1.0
_BEAT = frames.encode(BEAT)


class Heartbeat:
    """Sends heartbeats to the address `where`, as the process `own`; and what `watch` has noticed."""

    def __init__(self, where: str, own: Identity, watch: StuckWatch) -> None:
        self._where = where
        self._watch = watch
        self._own = own

    def start(self) -> None:
        """Start the thread; it ends with the process."""
        threads.start_loop(self._live, "flux-heartbeat")

    async def _live(self) -> None:
        while True:
            try:
                with trio.fail_after(_SEND_TIMEOUT_S):
                    sock = await dial(self._where, self._own)
                with sock:
                    await self._beat_on(sock)
            except (OSError, trio.TooSlowError):
                await trio.sleep(BEAT_EVERY_S)
            except (FluxError, frames.BadFrame):
                # Refused: the main connection to the controller gets the reason too, and reports it.
                await trio.sleep(_REFUSED_RETRY_S)

    async def _beat_on(self, sock: socket.socket) -> None:
        while True:
            with trio.fail_after(_SEND_TIMEOUT_S):
                await write_all(sock, _BEAT)
                if (text := self._watch.news()) is not None:
                    await write_all(sock, frames.encode(membership_frame(CodeStuck(text=text))))
            await trio.sleep(BEAT_EVERY_S)
