"""Whose output lies at a path: this run's, behind which an egress goes on, or another's, which is not touched."""

from __future__ import annotations

import secrets
from pathlib import Path

from ..storage.disk import replace_file
from ..types.errors import PlanError

_TOKEN = "sink.token"


def run_token(directory: Path) -> str:
    """A name that no other run has; every egress of the run that owns `directory` gets the same."""
    path = directory / _TOKEN
    if not path.exists():
        replace_file(path, secrets.token_hex(16).encode(), fsync=False)
    return path.read_text()


def foreign_output(who: str, path: Path, what: str) -> PlanError:
    """What to raise when something else than this run's output lies at `path`."""
    return PlanError(
        f"{who}: {path} {what}, and this run would mix its output with it. Choose another path, remove what is "
        "there, or say overwrite=True to have it replaced"
    )
