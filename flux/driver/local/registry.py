"""Registry: which runs this user has on this machine, so that commands find them by name.

Each run has a small file in a directory that only its user can read: its name, its program's pid and address, and the
secret of the run. A run that ends removes its file. If its program was killed, the spawner does. If that was killed
too, the next command or run removes the file and the directory of the run. Before a run has its file, its directory is
claimed (`run_directory`).
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import shutil
import tempfile
from dataclasses import asdict, dataclass, field
from pathlib import Path

from ...storage.disk import disk_error
from ...storage.private import private_directory
from ...types.errors import FluxError
from ...wire.requests import listens

log = logging.getLogger("flux")

_SUFFIX = ".json"


class NoRun(FluxError):
    """No run is in progress, or none of this name."""


@dataclass(frozen=True, kw_only=True)
class RunEntry:
    """One run: the dataflow's name, its program's pid, and where it answers requests."""

    name: str
    pid: int
    address: str
    secret: str = field(repr=False)  # In hexadecimal digits.


def registry() -> Path:
    """Return the directory of this user's runs; made if missing, refused if other users could write to it."""
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    path = Path(runtime) / "flux" if runtime else Path(tempfile.gettempdir()) / f"flux-{os.getuid()}"
    try:
        private_directory(path, "Remove it, or set XDG_RUNTIME_DIR to a directory of yours")
    except OSError as error:
        raise FluxError(
            f"the directory of runs, {path}, cannot be made: {error.strerror}. Set XDG_RUNTIME_DIR to a "
            "directory of yours"
        ) from error
    return path


def enter(entry: RunEntry, number: str) -> Path:
    """Write the file of a run and return its path; `number` is unique to the run. The caller removes the file."""
    path = registry() / f"{number}{_SUFFIX}"
    fresh = path.with_suffix(".new")
    try:
        fd = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with open(fd, "w") as file:
            json.dump(asdict(entry), file)
        fresh.rename(path)
    except OSError as error:
        raise disk_error("the registry of runs", path, error, "The run goes on; commands do not find it") from error
    return path


def remove(number: str) -> None:
    """Remove the file of a run whose program could not."""
    with contextlib.suppress(FluxError):
        (registry() / f"{number}{_SUFFIX}").unlink(missing_ok=True)


def entries() -> list[RunEntry]:
    """Return the runs in progress, by name; the files of others are removed."""
    found = []
    for path in registry().glob(f"*{_SUFFIX}"):
        entry = _read(path)
        if entry is None:
            continue  # It was removed meanwhile, or another release wrote it.
        if _lives(entry):
            found.append(entry)
        else:
            path.unlink(missing_ok=True)
            _remove_directory(entry)
    return sorted(found, key=lambda entry: (entry.name, entry.pid))


def find(name: str | None) -> RunEntry:
    """Return the run of this name, or of the program with this pid; without a name, the only one there is."""
    runs = entries()
    if not runs:
        raise NoRun("no run is in progress on this machine: start one, such as `flux run MODULE:FLOW`")
    found = [entry for entry in runs if name in (None, entry.name, str(entry.pid))]
    if len(found) == 1:
        return found[0]
    there = ", ".join(f"{entry.name} (process {entry.pid})" for entry in found or runs)
    if not found:
        raise NoRun(f"no run is called {name!r}; in progress are {there}")
    raise FluxError(f"several runs are in progress: {there}. Say which, by its name or the number of its process")


def _remove_directory(entry: RunEntry) -> None:
    """Remove the journals and sockets of a run whose program and spawner were killed. Output is never there."""
    directory = Path(entry.address.removeprefix("unix:")).parent
    if directory == registry() or not directory.name.startswith("flux-") or not directory.is_dir():
        return
    # A pid may be of a process in another container, which this one cannot see: then its address listens.
    if not _is_there(entry.pid) and not listens(entry.address):
        log.warning(
            "%s (process %d) was killed, and so was what should have cleaned up after it; %s, with its journals, is "
            "removed now",
            entry.name,
            entry.pid,
            directory,
        )
        shutil.rmtree(directory, ignore_errors=True)


def _read(path: Path) -> RunEntry | None:
    try:
        return RunEntry(**json.loads(path.read_text()))
    except (OSError, ValueError, TypeError):
        return None


def _lives(entry: RunEntry) -> bool:
    # The pid of a dead process may have been given to another one, which does not listen.
    return _is_there(entry.pid) and listens(entry.address)


def _is_there(pid: int) -> bool:
    with contextlib.suppress(PermissionError):
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return False
    return True
