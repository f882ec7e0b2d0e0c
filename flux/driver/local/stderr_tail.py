"""Stderr tail: forwards the standard error of a process to the program's, and keeps its end.

A process that dies writes the reason there, if anywhere. The end of it goes into the error of the run.
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
        """Close the writing end, which the process has too: the pipe ends when the process does."""
        os.close(self.writing)

    async def forward(self) -> None:
        """Forward what is written, until the pipe ends or is closed."""
        with suppress(trio.ClosedResourceError):
            while not self._closed:
                await trio.lowlevel.wait_readable(self._reading)
                if not self._closed:  # It may have been, after the wait was over and before this task's turn.
                    self._read()

    def close(self) -> None:
        """Forward the rest that a process wrote before it ended, and close the pipe."""
        while not self._closed and self._read():
            pass
        self._end()

    def _read(self) -> bool:
        """Forward what can be read; return whether there was something."""
        try:
            data = os.read(self._reading, _READ_BYTES)
        except BlockingIOError:
            return False
        if not data:
            self._end()
            return False
        text = self._decoder.decode(data)
        self.tail = (self.tail + text)[-_TAIL_CHARS:]
        with suppress(Exception):  # It may be closed, or be None; there is no other place to report that.
            sys.stderr.write(text)
            sys.stderr.flush()
        return True

    def _end(self) -> None:
        if not self._closed:
            self._closed = True
            with suppress(RuntimeError):  # Without a loop no task waits for it.
                trio.lowlevel.notify_closing(self._reading)
            os.close(self._reading)
