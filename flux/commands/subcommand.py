"""What the commands share: the type of their parser, and the error for a wrong call."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, TypeAlias

from ..types.errors import FluxError

if TYPE_CHECKING:
    Commands: TypeAlias = argparse._SubParsersAction[argparse.ArgumentParser]


class WrongCall(FluxError):
    """The command line names something that does not exist; the exit status is that of an unknown option."""
