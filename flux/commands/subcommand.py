"""What the commands share: the type of their parser, the error for a wrong call, and how a result is printed."""

from __future__ import annotations

import argparse
import os
import sys
from typing import TYPE_CHECKING, TextIO, TypeAlias

from ..types.errors import FluxError

if TYPE_CHECKING:
    Commands: TypeAlias = argparse._SubParsersAction[argparse.ArgumentParser]


class WrongCall(FluxError):
    """The command line names something that does not exist; the exit status is that of an unknown option."""


def print_result(text: str) -> None:
    """Print the result of a command that is done: that its reader has gone, as `head` does, is not a failure."""
    try:
        print(text, flush=True)
    except BrokenPipeError:
        discard(sys.stdout)


def discard(*outputs: TextIO) -> None:
    """Drop what is yet to be written, also when Python flushes it at the exit: the reader has gone."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for output in outputs:
        os.dup2(nowhere, output.fileno())
    os.close(nowhere)
