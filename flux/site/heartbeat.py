"""Heartbeat: a thread that tells the controller that this process lives, however long its operator works.

It has a connection of its own, so that it waits for nothing but the kernel. A process that was stopped, or whose
machine hangs, falls silent. When the connection breaks it tries again for as long as the process lives.
"""

from __future__ import annotations

import socket
import threading
import time

from ..types.errors import FluxError
from ..wire import frames
from ..wire.connections import Identity, dial_in_thread
from ..wire.membership import BEAT

BEAT_EVERY_S = 0.1
_SEND_TIMEOUT_S = 5.0
_DISTRUST_S = 1.0
_BEAT = frames.encode(BEAT)


class Heartbeat:
    """Beats to whoever listens at `where`, as the process `own`."""

    def __init__(self, where: str, own: Identity) -> None:
        self._where = where
        self._own = own

    def start(self) -> None:
        """Begin; it ends with the process."""
        threading.Thread(target=self._live, name="flux-heartbeat", daemon=True).start()

    def _live(self) -> None:
        while True:
            try:
                with dial_in_thread(self._where, self._own, _SEND_TIMEOUT_S) as sock:
                    self._beat_on(sock)
            except OSError:
                time.sleep(BEAT_EVERY_S)
            except (FluxError, frames.BadFrame):
                # Why it is not let in, the process hears on its other connection to the controller, and says.
                time.sleep(_DISTRUST_S)

    def _beat_on(self, sock: socket.socket) -> None:
        while True:
            sock.sendall(_BEAT)
            time.sleep(BEAT_EVERY_S)
