"""Private directories: what is kept there may hold rows and secrets, and is for its user alone."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from ..types.errors import FluxError

__all__ = ["JOURNAL_ADVICE", "private_directory", "private_opener"]

JOURNAL_ADVICE = "Say `chmod 700` to it, or give --journal a path that is not there yet: it is made for you alone"


def private_directory(path: Path, advice: str) -> None:
    """Make a directory that only this user may enter; one that is there already must be such a directory.

    A user that may write to it could replace what is in it, and one that may read it could see rows.
    """
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = path.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise FluxError(
            f"{path} is to hold what only you may read, and belongs to another user or is open to others. {advice}"
        )


def private_opener(path: str, flags: int) -> int:
    """Open a file for `open(..., opener=...)`: one that is made is for this user alone."""
    return os.open(path, flags, 0o600)
