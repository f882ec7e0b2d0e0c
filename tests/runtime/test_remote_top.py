"""`flux top` on a remote run, in a terminal: it outlives the controller, and ends with the run."""

from __future__ import annotations

import os
import pty
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from .commands import DEADLINE_S, Processes
from .waiting import wait_until

DRAWN = "\x1b[J"  # Behind each screen.


class Top:
    """`flux top` in a terminal, and all that it has drawn there."""

    def __init__(self, processes: Processes) -> None:
        self._drawn = b""
        self._terminal, end = pty.openpty()
        call = processes.command("top", "top", "--every", "0.05", "--controller", processes.controller)
        self.process = subprocess.Popen(call, cwd=processes.directory, stdout=end, stderr=end)
        os.close(end)
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        try:
            while more := os.read(self._terminal, 1 << 16):
                self._drawn += more
        except OSError:
            os.close(self._terminal)  # Nobody has its other end any more.

    @property
    def text(self) -> str:
        return self._drawn.decode()

    def await_screen(self, says: str, *, unless: str = "\0") -> None:
        """Wait for a screen, of those that are drawn from now on."""
        begin = len(self.text)

        def is_drawn() -> bool:
            _, *screens = self.text[begin:].split(DRAWN)
            return any(says in screen and unless not in screen for screen in screens)

        wait_until(is_drawn, f"no screen has {says!r}, only {self.text[begin:][-3_000:]}")


@pytest.fixture
def top(processes: Processes) -> Iterator[Top]:
    for name in ("controller", "site-a", "site-b", "site-c", "ingress", "egress"):
        processes.start(name)
    processes.advance(10)
    top = Top(processes)
    yield top
    top.process.kill()
    top.process.wait(DEADLINE_S)


def test_top_goes_on_when_the_controller_is_back_and_ends_with_the_run(
    processes: Processes, top: Top, tmp_path: Path
) -> None:
    gone = "the controller does not answer"
    top.await_screen("site-2", unless=gone)
    processes.kill("controller")
    top.await_screen(gone)
    processes.start("controller")
    top.await_screen("site-2", unless=gone)
    assert "has ended" not in top.text
    (tmp_path / "enough").touch()
    assert top.process.wait(DEADLINE_S) == 0
    wait_until(lambda: top.text.endswith("job has ended\r\n"), f"it does not say so: {top.text[-3_000:]}")
    assert "the source has ended, and all output is durable" in top.text


@pytest.mark.long
def test_top_says_why_a_run_has_failed(processes: Processes, top: Top) -> None:
    top.await_screen("site-2")
    for name in ("site-a", "site-b", "site-c"):
        processes.kill(name)
    assert top.process.wait(DEADLINE_S) == 0
    wait_until(lambda: "job has failed: both copies are lost" in top.text, f"it does not say so: {top.text[-3_000:]}")
