"""Network: sockets, and the wait until one is ready.

Modules call these functions by way of this module, so that `flux.simulation` can replace them. In production they are
the functions of the standard library and of trio themselves.
"""

from __future__ import annotations

import socket

import trio

__all__ = [
    "notify_closing",
    "open_pair",
    "open_socket",
    "receive_plain",
    "shut_plain",
    "wait_readable",
    "wait_writable",
]

open_socket = socket.socket
open_pair = socket.socketpair  # Two ends of a connection within this process.
wait_readable = trio.lowlevel.wait_readable
wait_writable = trio.lowlevel.wait_writable
notify_closing = trio.lowlevel.notify_closing  # Tasks that wait for the socket are woken with an error.

# Below TLS, if the socket has it.
shut_plain = socket.socket.shutdown
receive_plain = socket.socket.recv
