"""The owner of the output at a path: this run, after whose rows an egress resumes, or another, which is not touched."""

from __future__ import annotations

import secrets
from pathlib import Path

from ..storage.disk import replace_file
from ..types.errors import PlanError

_TOKEN = "sink.token"


def run_token(directory: Path) -> str:
    """Return a unique name of the run that owns `directory`: the same for each of its egress processes."""
    path = directory / _TOKEN
    if not path.exists():
        replace_file(path, secrets.token_hex(16).encode(), fsync=False)
    return path.read_text()


def foreign_output(sink: str, path: Path, what: str) -> PlanError:
    """Return the error for a `path` that holds something else than this run's output."""
    return PlanError(
        f"{sink}: {path} {what}, and this run would mix its output with it. Choose another path, remove what is "
        "there, or say overwrite=True to have it replaced"
    )
