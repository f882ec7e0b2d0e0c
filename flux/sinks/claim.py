"""The owner of the output at a path: this run, after whose rows an egress resumes, or another, which is not touched.

A run claims its output once. From then on its egresses find their own name there; if they find another one, a run on
this or another machine has taken the output over, and they refuse to write. Locks exclude two runs at once where the
file system has them, and the names where it has not. At the end of the stream the claim is taken back, so that nothing
but the output is left.
"""

from __future__ import annotations

import errno
import os
import secrets
import socket
from pathlib import Path

from ..storage.disk import replace_file
from ..system import filesystem
from ..types.errors import PlanError, SinkError

_TOKEN, _CLAIMED, _ENDED = "sink.token", "sink.claimed", "sink.ended"
_NO_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS)


def run_token(directory: Path) -> str:
    """Return a unique name of the run that owns `directory`: the same for each of its egress processes."""
    path = directory / _TOKEN
    if not filesystem.exists(path):
        replace_file(path, secrets.token_hex(16).encode(), fsync=False)
    return filesystem.read_whole(path).decode()


class Claim:
    """What the run that owns `directory` has noted there about its output: the same for each of its egresses."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.run = run_token(directory)
        self.owner = f"{socket.gethostname()}, process {os.getpid()}"

    @property
    def is_made(self) -> bool:
        """Whether an egress of this run has claimed the output before."""
        return filesystem.exists(self._directory / _CLAIMED)

    def make(self) -> None:
        """Note that the output is claimed; its place has the name of this run already."""
        if not self.is_made:
            replace_file(self._directory / _CLAIMED, b"", fsync=False)

    @property
    def ended_upto(self) -> int | None:
        """The position of the output if it was closed, else None."""
        ended = self._directory / _ENDED
        return int(filesystem.read_whole(ended)) if filesystem.exists(ended) else None

    def end(self, upto: int) -> None:
        """Note that the output is closed: what says whose it is may be removed."""
        replace_file(self._directory / _ENDED, str(upto).encode(), fsync=False)


def lock(fd: int) -> bool:
    """Lock an open file until it is closed; return whether no other process has it locked."""
    try:
        filesystem.lock_file(fd)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
    return True


def foreign_output(sink: str, path: Path, what: str) -> PlanError:
    """Return the error for a `path` that holds something else than this run's output."""
    return PlanError(
        f"{sink}: {path} {what}, and this run would mix its output with it. Choose another path, remove what is "
        "there, or say overwrite=True to have it replaced"
    )


def in_use(sink: str, path: Path, owner: str | None) -> PlanError:
    """Return the error for a `path` to which another run writes now."""
    by = "" if owner is None else f" ({owner})"
    return PlanError(
        f"{sink}: another run{by} writes to {path} now, and both would mix their output. Choose another path, or end "
        "that run first"
    )


def taken_over(sink: str, path: Path, owner: str | None) -> SinkError:
    """Return the error for output that another run has claimed while this one wrote it."""
    by = "another run" if owner is None else f"another run ({owner})"
    return SinkError(
        f"{sink}: {by} has taken {path} over with overwrite=True while this run wrote to it. This run's output is "
        "gone. Give each run a path of its own, and run the flow again"
    )


def changed_output(sink: str, path: Path, what: str) -> SinkError:
    """Return the error for output that another program has changed while this run wrote it."""
    return SinkError(
        f"{sink}: {path} {what} during the run, so output that was written is not there. Leave the output alone "
        "until the run has ended, and run the flow again"
    )
