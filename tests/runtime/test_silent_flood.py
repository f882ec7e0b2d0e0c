"""A flood of strangers at every port of a run on several machines, while its ends are killed.

The processes are commands, over TCP. Strangers connect again as soon as they are sent away. Most never send a byte, as
many as a process admits and more; some send what is not of Flux, for each of which the log had a line.
"""

from __future__ import annotations

import contextlib
import json
import math
import socket
import threading
import time
from collections import Counter
from pathlib import Path

from flux.wire.strangers import LINES_MAX, LINES_PERIOD_S, STRANGERS_MAX

from .commands import DEADLINE_S, Processes, expected

AT_ONCE = 2 * STRANGERS_MAX  # At each port: twice as many as a process admits.
EVERY_S = 0.05
BACK_WITHIN_S = 15.0
NAMES = ("controller", "site-a", "site-b", "site-c", "ingress", "egress")


class Flood:
    """Strangers at these ports: `AT_ONCE` a port, each replaced when it is sent away, from `start` to `end`."""

    def __init__(self, ports: list[int]) -> None:
        self.sent_away: Counter[int] = Counter()  # By port.
        self._over = threading.Event()
        self._threads = [threading.Thread(target=self._hold, args=(port,), daemon=True) for port in ports]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def end(self) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join(DEADLINE_S)
            assert not thread.is_alive()

    def _hold(self, port: int) -> None:
        held: list[socket.socket] = []
        with contextlib.ExitStack() as kept:
            while not self._over.wait(EVERY_S):
                held = [sock for sock in held if self._is_open(sock, port)]
                while len(held) < AT_ONCE and (sock := _connected(port)) is not None:
                    held.append(sock)
                    if len(held) % 16 == 0:
                        with contextlib.suppress(OSError):
                            sock.send(b"GET / HTTP/1.1\r\n\r\n")
            for sock in held:
                kept.push(sock)

    def _is_open(self, sock: socket.socket, port: int) -> bool:
        try:
            while sock.recv(4_096):
                pass
        except BlockingIOError:
            return True
        except OSError:
            pass
        sock.close()
        self.sent_away[port] += 1
        return False


def _connected(port: int) -> socket.socket | None:
    """A connection; None if nobody listens or too many wait to be accepted."""
    sock = socket.socket()
    sock.settimeout(0.2)
    try:
        sock.connect(("127.0.0.1", port))
    except OSError:
        sock.close()
        return None
    sock.setblocking(False)
    return sock


def free_ports(count: int) -> list[int]:
    """Ports at which nobody listens, in the range that the system gives to nobody by itself."""
    ports: list[int] = []
    for port in range(20_000, 32_000):
        with socket.socket() as sock, contextlib.suppress(OSError):
            sock.bind(("127.0.0.1", port))
            ports.append(port)
        if len(ports) == count:
            break
    return ports


def test_an_end_that_is_killed_in_a_flood_of_strangers_is_back_and_the_logs_are_bounded(
    processes: Processes, tmp_path: Path
) -> None:
    began_s = time.monotonic()
    ports = dict(zip(NAMES[1:], free_ports(len(NAMES) - 1), strict=True))

    def start(name: str) -> None:
        processes.start(name, *([] if name == "controller" else ["--listen", f"127.0.0.1:{ports[name]}"]))

    for name in NAMES:
        start(name)
    processes.advance(100)
    flood = Flood([processes.port, *ports.values()])
    flood.start()
    try:
        processes.advance(1_000)
        for name in ("ingress", "egress", "ingress"):
            processes.kill(name)
            killed_s = time.monotonic()
            start(name)
            processes.advance(100)
            assert time.monotonic() - killed_s < BACK_WITHIN_S, f"{name} was not back: {processes.logs()}"
    finally:
        flood.end()
    (tmp_path / "enough").touch()
    for name, process in processes.running.items():
        assert process.wait(DEADLINE_S) == 0, f"{name}: {processes.logs()}"
    lines = (tmp_path / "out.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == expected(int((tmp_path / "ended-at").read_text()))
    assert min(flood.sent_away[port] for port in ports.values()) > AT_ONCE, flood.sent_away
    logged = [line for line in processes.logs().splitlines() if "closed a connection" in line]
    periods = math.ceil((time.monotonic() - began_s) / LINES_PERIOD_S)
    lives = len(NAMES) + 3
    assert any("Further ones are counted" in line for line in logged)
    assert len(logged) <= lives * periods * (LINES_MAX + 1), f"{len(logged)} lines"
