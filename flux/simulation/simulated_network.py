"""Simulated network: stream sockets in memory, with latency, cuts, resets, and buffers that fill up.

A `SimulatedSocket` has the methods of `socket.socket` that `flux.wire` uses; it is always non-blocking. What is sent
arrives after the latency of the network, in order. While two processes are cut off from each other, what one sends to
the other waits, in one direction or in both, and no connection can be made. A reset breaks a connection at once, maybe
in the middle of a frame. The sockets of a dead process are closed by the system.
"""

from __future__ import annotations

import errno
import random
import socket
import struct
from collections import deque
from typing import Any

import trio

from .doom import SEND
from .kernel import Kernel, Killed, WorldProcess, running

_BUFFER_BYTES = (512, 4_096, 65_536, 1 << 20)
_BACKLOG = 128
_CREDENTIALS = struct.Struct("3i")


class _Direction:
    """One direction of a connection: bytes in flight, held up by a cut, and arrived."""

    def __init__(self, writer: SimulatedSocket, reader: SimulatedSocket, room_bytes: int) -> None:
        self.writer, self.reader = writer, reader
        self.room_bytes = room_bytes
        self.flying_bytes = 0
        self.arrived = bytearray()
        self.held: list[bytes | None] = []  # None: the end of the stream.
        self.arrives_at = 0.0
        self.ended = False
        self.is_broken = False

    @property
    def room(self) -> int:
        return max(0, self.room_bytes - self.flying_bytes - len(self.arrived))


class SimulatedSocket:
    """A listening socket, or one end of a connection."""

    family = socket.AF_UNIX

    def __init__(self, net: SimulatedNetwork, owner: WorldProcess | None) -> None:
        self._net = net
        self.path: str | None = None
        self.owner: WorldProcess | None = None
        self.role = ""  # Of the process that has it, or is to have it.
        self.peer: SimulatedSocket | None = None
        self.out: _Direction | None = None
        self.into: _Direction | None = None
        self.backlog: deque[SimulatedSocket] = deque()
        self.is_closed = False
        self.is_shut = False
        self._readable = trio.Event()
        self._writable = trio.Event()
        self.belong_to(owner)

    def belong_to(self, owner: WorldProcess | None) -> None:
        """Note the process that has it."""
        self.owner = owner
        if owner is not None:
            self.role = owner.role
            owner.owned[self] = None

    # What flux.wire calls.

    def setblocking(self, flag: bool) -> None:
        self._check()

    def setsockopt(self, *_: Any) -> None:
        self._check()

    def getsockopt(self, level: int, option: int, size: int = 0) -> Any:
        if option != socket.SO_PEERCRED:
            return 0
        owner = None if self.peer is None else self.peer.owner
        return _CREDENTIALS.pack(owner.pid if owner is not None and self._net.shows_pids else 0, 0, 0)

    def getsockname(self) -> str:
        return self.path or ""

    def bind(self, path: str) -> None:
        if path in self._net.listeners:
            raise OSError(errno.EADDRINUSE, "Address already in use")
        self.path = path
        self._net.listeners[path] = self

    def listen(self, backlog: int) -> None:
        self._check()

    def accept(self) -> tuple[SimulatedSocket, str]:
        self._check()
        if not self.backlog:
            raise BlockingIOError(errno.EAGAIN, "no connection waits")
        sock = self.backlog.popleft()
        sock.belong_to(running.get())
        return sock, ""

    def connect(self, path: str) -> None:
        self._check()
        self._net.connect(self, path)

    def sendmsg(self, parts: Any) -> int:
        self._check()
        if self.out is None or self.is_shut or self.out.is_broken:
            raise BrokenPipeError(errno.EPIPE, "Broken pipe")
        return self._net.send(self.out, b"".join(bytes(part) for part in parts))

    def recv_into(self, buffer: memoryview) -> int:
        data = self.recv(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def recv(self, most: int, flags: int = 0) -> bytes:
        self._check()
        into = self.into
        if into is None or into.is_broken:
            raise ConnectionResetError(errno.ECONNRESET, "Connection reset by peer")
        if not into.arrived:
            if into.ended or self.is_shut:
                return b""
            raise BlockingIOError(errno.EAGAIN, "nothing has arrived")
        data = bytes(into.arrived[:most])
        if not flags & socket.MSG_PEEK:
            del into.arrived[: len(data)]
            into.writer.wake_writer()
        return data

    def shutdown(self, how: int) -> None:
        self._check()
        if self.out is not None and not self.is_shut:
            self._net.end(self.out)
        if how == socket.SHUT_RDWR:
            self.is_shut = True
            self.wake_reader()

    def close(self) -> None:
        if self.is_closed:
            return
        if self.owner is not None:
            self.owner.owned.pop(self, None)
        self._close()

    def __enter__(self) -> SimulatedSocket:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # What the network calls.

    def abandon(self) -> None:
        """Close it: its process is dead."""
        if self.into is not None and (self.into.arrived or self._net.rng.random() < 0.3):
            self._net.break_off(self)  # As the system does when unread data is dropped.
        self._close()

    def _close(self) -> None:
        self.is_closed = True
        if self.path is not None and self._net.listeners.get(self.path) is self:
            del self._net.listeners[self.path]
        for waiting in self.backlog:
            self._net.break_off(waiting)
        if self.out is not None and not self.is_shut:
            self._net.end(self.out)
        self._net.sockets.pop(self, None)
        self.wake_reader()
        self.wake_writer()

    def wake_reader(self) -> None:
        self._readable.set()
        self._readable = trio.Event()

    def wake_writer(self) -> None:
        self._writable.set()
        self._writable = trio.Event()

    def is_readable(self) -> bool:
        into = self.into
        return (
            bool(self.backlog)
            or self.is_shut
            or (into is not None and (bool(into.arrived) or into.ended or into.is_broken))
        )

    async def wait(self, reading: bool) -> None:
        """Wait as `trio.lowlevel.wait_readable` and `wait_writable` do."""
        self._check()
        if self.is_readable() if reading else self._is_writable():
            await trio.lowlevel.checkpoint()
        while not (self.is_readable() if reading else self._is_writable()):
            await (self._readable if reading else self._writable).wait()
            if self.is_closed:
                raise trio.ClosedResourceError("the socket was closed")

    def _is_writable(self) -> bool:
        return self.out is None or self.out.is_broken or self.out.room > 0

    def _check(self) -> None:
        process = running.get()  # It may not be the owner: one process listens after another.
        if process is not None and process.is_dead:
            raise Killed
        if self.is_closed:
            raise OSError(errno.EBADF, "Bad file descriptor")


class SimulatedNetwork:
    """All sockets of a world. `latency_s` are the bounds of the latency of each piece of data."""

    def __init__(self, kernel: Kernel, seed: str) -> None:
        self._kernel = kernel
        self.rng = random.Random(f"{seed} network")
        self.listeners: dict[str, SimulatedSocket] = {}
        self.sockets: dict[SimulatedSocket, None] = {}  # Connected ones.
        self.shows_pids = self.rng.random() < 0.5  # Whether all processes are on one machine.
        self.latency_s = (0.00005, self.rng.choice((0.0005, 0.002, 0.01)))
        self._buffer_bytes = self.rng.choice(_BUFFER_BYTES)
        self._is_choppy = self.rng.random() < 0.2  # Whether calls transfer less than they could.
        self._cuts: set[tuple[str, str]] = set()  # From one process to another, by role.
        self._healed_at = 0.0
        self.is_slow = False
        self._held_up: dict[_Direction, None] = {}  # Where something waits for the end of a cut.
        self.sent_at: dict[tuple[str, str], float] = {}  # When one process sent something to another last, by role.

    def open_socket(self, family: int = socket.AF_UNIX) -> SimulatedSocket:
        """Take the place of `socket.socket`."""
        process = running.get()
        if process is not None and process.is_dead:
            raise Killed
        return SimulatedSocket(self, process)

    def connect(self, sock: SimulatedSocket, path: str) -> None:
        """Connect a socket to the listener at a path."""
        listener = self.listeners.get(path)
        if listener is None:
            raise ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused")
        if self._is_cut(sock, listener) or self._is_cut(listener, sock):
            raise OSError(errno.EHOSTUNREACH, "No route to host")
        if len(listener.backlog) >= _BACKLOG:
            raise BlockingIOError(errno.EAGAIN, "the backlog is full")
        other = SimulatedSocket(self, None)
        other.role = listener.role
        self._join(sock, other)
        self._kernel.effect("connect", path)
        listener.backlog.append(other)
        listener.wake_reader()

    def open_pair(self) -> tuple[SimulatedSocket, SimulatedSocket]:
        """Take the place of `socket.socketpair`."""
        one, other = self.open_socket(), self.open_socket()
        self._join(one, other)
        return one, other

    def _join(self, sock: SimulatedSocket, other: SimulatedSocket) -> None:
        sock.out = other.into = _Direction(sock, other, self._buffer_bytes)
        other.out = sock.into = _Direction(other, sock, self._buffer_bytes)
        sock.peer, other.peer = other, sock
        self.sockets[sock] = self.sockets[other] = None

    def send(self, way: _Direction, data: bytes) -> int:
        """Send as much as there is room for."""
        room = way.room
        if not room:
            raise BlockingIOError(errno.EAGAIN, "the buffer is full")
        if self._is_choppy:
            room = min(room, self.rng.choice((1, 50, 200, 1_000, 1 << 20)))
        data = data[:room]
        dies = self._kernel.effect(SEND, f"{len(data)} to {way.reader.role}")
        if dies == "torn":
            data = data[: self.rng.randrange(len(data) + 1)]
        way.flying_bytes += len(data)
        self.sent_at[way.writer.role, way.reader.role] = self._kernel.now
        self._fly(way, data)
        if dies is not None:
            self._kernel.die()
        return len(data)

    def end(self, way: _Direction) -> None:
        """End the stream: the reader finds its end after all data."""
        if not way.ended:
            self._fly(way, None)

    def _fly(self, way: _Direction, data: bytes | None) -> None:
        low, high = self.latency_s
        way.arrives_at = max(way.arrives_at, self._kernel.now + self.rng.uniform(low, high))
        self._kernel.at(way.arrives_at, lambda: self._arrive(way, data))

    def _arrive(self, way: _Direction, data: bytes | None) -> None:
        if way.held or self._is_cut(way.writer, way.reader):
            way.held.append(data)
            self._held_up[way] = None
            return
        if data is None:
            way.ended = True
        elif way.reader.is_closed:
            self.break_off(way.writer)  # As the system answers data for a socket that is gone.
        else:
            way.flying_bytes -= len(data)
            way.arrived += data
        way.reader.wake_reader()

    def break_off(self, sock: SimulatedSocket) -> None:
        """Reset a connection: what is in flight is lost, and both ends get an error."""
        for way in (sock.out, sock.into):
            if way is not None:
                way.is_broken = True
                way.arrived.clear()
                way.reader.wake_reader()
                way.writer.wake_writer()

    def cut(self, a: str, b: str, both_ways: bool) -> None:
        """Cut two processes off from each other, or only `b` from what `a` sends."""
        self._cuts.add((a, b))
        if both_ways:
            self._cuts.add((b, a))
        self._kernel.note("network", f"is cut from {a} to {b}{' and back' if both_ways else ''}")

    def heal(self, a: str, b: str) -> None:
        """End a cut; what waited arrives."""
        self._cuts -= {(a, b), (b, a)}
        self._healed_at = self._kernel.now
        self._kernel.note("network", f"is whole between {a} and {b}")
        for way in [way for way in self._held_up if not self._is_cut(way.writer, way.reader)]:
            del self._held_up[way]
            held, way.held = way.held, []
            for data in held:
                self._arrive(way, data)

    def is_cut(self, a: str, b: str) -> bool:
        """Return whether two processes are cut off from each other, in any direction."""
        return (a, b) in self._cuts or (b, a) in self._cuts

    def slow_down(self, for_s: float, latency_s: tuple[float, float]) -> None:
        """Have everything arrive late for so long."""
        self.is_slow, usual, self.latency_s = True, self.latency_s, latency_s
        self._kernel.at(self._kernel.now + for_s, lambda: self._speed_up(usual))

    def _speed_up(self, usual: tuple[float, float]) -> None:
        self.is_slow, self.latency_s = False, usual
        self._healed_at = self._kernel.now

    def is_calm_for(self, seconds: float) -> bool:
        """Return whether for so long no processes were cut off from each other, and nothing arrived late."""
        is_whole = not self._cuts and not self._held_up and not self.is_slow
        return is_whole and self._kernel.now - self._healed_at > seconds

    def _is_cut(self, a: SimulatedSocket, b: SimulatedSocket) -> bool:
        return bool(self._cuts) and (a.role, b.role) in self._cuts
