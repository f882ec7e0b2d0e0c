"""What the commands share: where each adds itself, and what is raised when a call is wrong."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, TypeAlias

from ..types.errors import FluxError

if TYPE_CHECKING:
    Commands: TypeAlias = argparse._SubParsersAction[argparse.ArgumentParser]


class WrongCall(FluxError):
    """The command line names something that does not exist; the status is that of an unknown option."""
