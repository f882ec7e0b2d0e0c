"""Relay: stands between two nodes of a run, and cuts, slows, half-opens or swallows their connection, or spoils it.

It speaks TCP with both of them: nodes of a run with a relay listen as those of a remote run do.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import shutil
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from flux.plan.plan import CONTROLLER
from flux.site.config import ProcessConfig
from flux.wire import address, frames

from .waiting import wait_until

_ANY_PORT = "tcp:127.0.0.1:0"
_READ_BYTES = 64 * 1024

Spoil = Callable[[dict[str, Any], bytes], bytes]  # From a frame, with its header, to what is passed on.


@dataclass(frozen=True, kw_only=True)
class TcpSurroundings(ProcessConfig):
    """Of a run on one machine whose nodes find each other over TCP; the ports are in the view."""

    def address(self, name: str) -> str:
        return super().address(name) if name in ("program", CONTROLLER) else _ANY_PORT


class Relay:
    """Between `dials`, which comes earlier in the view, and `answers`."""

    def __init__(self, dials: str, answers: str, directory: Path) -> None:
        self.pause_s = 0.0  # Before each piece that is passed on.
        self.passed_bytes = 0  # Either way; about as many, since two threads count.
        # What becomes of frames on their way to who answers, and back; to be set before the relay is started.
        self.spoil: Spoil | None = None
        self.spoil_back: Spoil = lambda header, frame: frame
        self.swallows = False  # A black hole: connections stand, new ones too, and nothing comes through.
        self._between = (dials, answers)
        self._target = directory / "target"
        self._listener = address.listen(_ANY_PORT)
        self._where = address.bound(self._listener)
        self._ends: list[tuple[socket.socket, socket.socket]] = []
        self._threads: list[threading.Thread] = []

    def route(self, dials: str, answers: str, where: str) -> str:
        """In the process that dials: where to find its peer. The relay is told where the peer really is."""
        if (dials, answers) != self._between:
            return where
        self._target.write_text(where)
        return self._where

    def start(self) -> None:
        """Begin to pass on; when the run has started, because a program with threads is better not forked."""
        self._listener.setblocking(True)
        self._run(self._accept)

    def await_traffic(self, passed_bytes: int) -> None:
        """Return when so much more has come through."""
        upto = self.passed_bytes + passed_bytes
        wait_until(lambda: self.passed_bytes >= upto, f"{passed_bytes:,} more bytes to come through the relay")

    def break_by(self, breaks: Callable[[Relay], None]) -> None:
        """Break the connection that stands; return when there is another, and what is said on it comes through."""
        self.await_traffic(1)
        before = len(self._ends)
        breaks(self)
        wait_until(lambda: len(self._ends) > before, "a new connection through the relay")
        self.await_traffic(1)

    def cut(self) -> None:
        """Both ends see the connection break."""
        for ends in self._ends:
            for sock in ends:
                _shut(sock)

    def cut_for_good(self) -> None:
        """Both ends see the connection break, and there is no other."""
        _shut(self._listener)
        self.cut()

    def swallow(self) -> None:
        """Nothing comes through any more, and neither end is told."""
        self.swallows = True

    def half_open(self) -> None:
        """Who has dialled sees the connection break; who has answered hears nothing more, and does not know why."""
        for dialled, _ in self._ends:
            _shut(dialled)

    def close(self) -> None:
        """Stop; connections that are left break."""
        _shut(self._listener)
        self.cut()
        for thread in self._threads:
            thread.join()
        for sock in (self._listener, *itertools.chain.from_iterable(self._ends)):
            sock.close()

    def _run(self, target: Callable[..., None], *arguments: Any) -> None:
        self._threads.append(threading.Thread(target=target, args=arguments, daemon=True))
        self._threads[-1].start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                dialled, _ = self._listener.accept()
                try:
                    answering = address.connect_blocking(self._target.read_text(), 30.0)
                except OSError:
                    dialled.close()  # Who should answer is dead.
                    continue
                answering.settimeout(None)
                self._ends.append((dialled, answering))
                if self.spoil is None:
                    self._run(self._pass_on, dialled, answering)
                    self._run(self._pass_on, answering, dialled)
                else:
                    self._run(self._pass_frames, dialled, answering, self.spoil)
                    self._run(self._pass_frames, answering, dialled, self.spoil_back)

    def _pass_frames(self, source: socket.socket, to: socket.socket, spoil: Spoil) -> None:
        """Frame by frame, for spoiling; here both ends are told when one has broken."""
        with contextlib.suppress(OSError, EOFError), source.makefile("rb") as incoming:
            while prefix := incoming.read(frames.PREFIX.size):
                header_bytes, body_bytes = frames.decode_prefix(prefix)
                frame = prefix + incoming.read(header_bytes + body_bytes)
                header = frames.decode_header(frame[frames.PREFIX.size :][:header_bytes])
                to.sendall(spoil(header, frame))
        self.cut()

    def _pass_on(self, source: socket.socket, to: socket.socket) -> None:
        """Until one end breaks; the other is not told: that is for `cut` to do, or the end of the relay."""
        with contextlib.suppress(OSError):
            while data := source.recv(_READ_BYTES):
                time.sleep(self.pause_s)
                if not self.swallows:
                    to.sendall(data)
                    self.passed_bytes += len(data)


@contextmanager
def relayed(monkeypatch: pytest.MonkeyPatch, dials: str, answers: str, **settings: Any) -> Iterator[Relay]:
    """Runs that are started within go through a relay between two of their nodes; `settings` are their processes'."""
    directory = Path(tempfile.mkdtemp(prefix="relay-"))
    relay = Relay(dials, answers, directory)
    monkeypatch.setattr("flux.run.ProcessConfig", functools.partial(TcpSurroundings, route=relay.route, **settings))
    try:
        yield relay
    finally:
        relay.close()
        shutil.rmtree(directory)


def _shut(sock: socket.socket) -> None:
    with contextlib.suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)
