"""Stderr: what a process of the run writes to standard error: passed on to the program's, its end kept.

A process that dies tells why there, if anywhere; the program can show it only if it passes through it.
"""

from __future__ import annotations

import codecs
import os
import sys
from contextlib import suppress

import trio

_READ_BYTES = 64 * 1024
_TAIL_CHARS = 2_000


class StderrTail:
    """A pipe from one process to the program."""

    def __init__(self) -> None:
        self._reading, self.writing = os.pipe()
        os.set_blocking(self._reading, False)
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._closed = False
        self.tail = ""

    def handed_over(self) -> None:
        """The process has the writing end; with ours closed too, the pipe ends when it does."""
        os.close(self.writing)

    async def forward(self) -> None:
        """Pass on what comes, until the pipe ends or is closed."""
        with suppress(trio.ClosedResourceError):
            while not self._closed:
                await trio.lowlevel.wait_readable(self._reading)
                if not self._closed:  # It may have been, after the wait was over and before this task's turn.
                    self._read()

    def close(self) -> None:
        """Take what is left behind by a process that has ended."""
        while not self._closed and self._read():
            pass
        self._end()

    def _read(self) -> bool:
        """Whether there was something to read."""
        try:
            data = os.read(self._reading, _READ_BYTES)
        except BlockingIOError:
            return False
        if not data:
            self._end()
            return False
        text = self._decoder.decode(data)
        self.tail = (self.tail + text)[-_TAIL_CHARS:]
        with suppress(Exception):  # It may be closed, or be None; there is no other place to say so.
            sys.stderr.write(text)
            sys.stderr.flush()
        return True

    def _end(self) -> None:
        if not self._closed:
            self._closed = True
            with suppress(RuntimeError):  # Without a loop nobody waits for it.
                trio.lowlevel.notify_closing(self._reading)
            os.close(self._reading)
