"""The directory of a run, for its sockets and journals, and the claim of its owner until the run is registered.

A run is in the registry once its program answers commands. Until then a claim there names its directory: it is written
before the directory is made, and locked by the program and its spawner. If both are killed meanwhile, the lock is gone,
and the next run removes the directory. A lock needs no pid, which may be of a process in another container.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import secrets
import shutil
import tempfile
from pathlib import Path

from ...system import filesystem
from ...types.errors import FluxError
from .registry import registry

log = logging.getLogger("flux")

_CLAIM_SUFFIX = ".claim"
_PREFIX = "flux-"
_TRIES = 100  # Names are random: to try twice is rare.


class RunDirectory:
    """A new directory of which this program is the owner."""

    def __init__(self) -> None:
        self._claim: Path | None = None
        self._lock: int | None = None
        try:
            self.path = self._make()
        except OSError as error:
            self.release()
            raise FluxError(
                f"no directory can be made for the run: {error}. Make room in the directory for temporary files, or "
                "name another by TMPDIR"
            ) from error

    def _make(self) -> Path:
        place = Path(tempfile.gettempdir())
        place.stat()  # The registry may be in it, and would make it.
        for _ in range(_TRIES):
            path = place / f"{_PREFIX}{secrets.token_hex(4)}"
            try:
                # Where there is no registry, the run goes on, and says later that it cannot be found.
                with contextlib.suppress(FluxError):
                    self._write_claim(registry() / f"{path.name}{_CLAIM_SUFFIX}", path)
                path.mkdir(mode=0o700)
                return path
            except FileExistsError:
                self.release()
        raise FileExistsError(f"{_TRIES} names that begin with {_PREFIX} are taken")

    def _write_claim(self, claim: Path, path: Path) -> None:
        self._lock = os.open(claim, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        self._claim = claim
        try:
            filesystem.lock_file(self._lock)
        except BlockingIOError:
            raise FileExistsError(f"{claim} is being removed") from None
        os.write(self._lock, os.fsencode(path))
        # Another run may have taken it for one that was left, before it was locked.
        if not claim.exists():
            raise FileExistsError(f"{claim} was removed")

    def release(self) -> None:
        """Remove the claim: the run is in the registry, or its directory is removed."""
        if self._claim is not None:
            self._claim.unlink(missing_ok=True)
        if self._lock is not None:
            fcntl.flock(self._lock, fcntl.LOCK_UN)  # Forks have the file open too.
            os.close(self._lock)
        self._claim = self._lock = None

    def close_copy(self) -> None:
        """In a fork that is not an owner: close the claim, and leave it locked."""
        if self._lock is not None:
            os.close(self._lock)
        self._claim = self._lock = None

    def remove(self) -> None:
        """Remove the directory, with all in it."""
        shutil.rmtree(self.path, ignore_errors=True)
        self.release()


def remove_abandoned() -> None:
    """Remove the directories of runs that were killed, with all their processes, before they were registered."""
    for claim in registry().glob(f"*{_CLAIM_SUFFIX}"):
        with contextlib.suppress(FileNotFoundError, BlockingIOError):
            _remove_if_abandoned(claim)


def _remove_if_abandoned(claim: Path) -> None:
    fd = os.open(claim, os.O_RDWR | os.O_CLOEXEC)
    try:
        filesystem.lock_file(fd)  # `BlockingIOError` if its owner lives.
        directory = Path(os.fsdecode(filesystem.read_whole(claim)))
        if directory.name == claim.name.removesuffix(_CLAIM_SUFFIX) and directory.is_dir():
            log.warning(
                "a run was killed as it started, and so was what should have cleaned up after it; %s is removed now",
                directory,
            )
            shutil.rmtree(directory, ignore_errors=True)
        claim.unlink(missing_ok=True)
    finally:
        os.close(fd)
