"""Commands that are forks of one interpreter, which has imported Flux: importing it takes a second of CPU.

A fork has the directory, the environment and the arguments of the command, and writes its errors to the same log. What
is left out is the start of the interpreter, which tests that ask for commands of their own show.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import multiprocessing.connection
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

from flux.commands.main import main

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["flux.commands.main"])
# An exit status is read once from a pipe: by the thread that waits for it, or by the start of another process.
_STATUS = threading.Lock()


class ForkedCommand:
    """As much of `subprocess.Popen` as the tests need."""

    def __init__(self, directory: Path, log: Path, arguments: tuple[str, ...]) -> None:
        self.returncode: int | None = None
        self._ended = threading.Event()
        self._process = _CONTEXT.Process(target=_run, args=(directory, log, dict(os.environ), arguments), daemon=True)
        with _STATUS:
            self._process.start()
        assert self._process.pid is not None
        self.pid = self._process.pid
        threading.Thread(target=self._await_end, daemon=True).start()

    def _await_end(self) -> None:
        multiprocessing.connection.wait([self._process.sentinel])
        with _STATUS:
            self._process.join()
        self.returncode = self._process.exitcode
        self._ended.set()

    def poll(self) -> int | None:
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if not self._ended.wait(timeout):
            raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0.0)
        assert self.returncode is not None
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send a signal, as Popen does: a process that has just ended, and whose status is not read yet, gets none."""
        if self.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def _run(directory: Path, log: Path, environment: dict[str, str], arguments: tuple[str, ...]) -> None:
    """In the fork: become the command."""
    os.chdir(directory)
    os.environ.clear()
    os.environ.update(environment)
    errors = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    os.dup2(errors, sys.stderr.fileno())
    os.close(errors)
    sys.path.insert(0, "")
    sys.argv = ["flux", *arguments]
    sys.exit(main())
