"""OS process: what the operating system knows about another process on this machine."""

from __future__ import annotations

import socket
import struct

from ..system import process_control

_CREDENTIALS = struct.Struct("3i")  # Process, user, group.
_STOPPED = "Tt"  # By a signal, or by a debugger.


def pid_of(sock: socket.socket) -> int | None:
    """Return the process at the other end of a connection; None if it may be on another machine, or is unknown."""
    if sock.family != socket.AF_UNIX or not hasattr(socket, "SO_PEERCRED"):
        return None
    pid, _, _ = _CREDENTIALS.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    return int(pid) or None  # 0: it is in another namespace.


def is_stopped(pid: int) -> bool:
    """Whether a process of this machine cannot run at all: it was stopped, or is gone."""
    return (state := process_control.state_of(pid)) is None or state in _STOPPED


def waits_for_a_signal(pid: int) -> bool:
    """Whether a process of this machine was stopped, and is there."""
    return (state := process_control.state_of(pid)) is not None and state in _STOPPED
