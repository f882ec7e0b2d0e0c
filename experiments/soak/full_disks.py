"""Full disks: small file systems in memory that are filled to the last byte, and emptied again.

They need the right to mount: `enter_namespace` starts the soak again where it has it, in a mount namespace of its own,
so that no mount outlives it.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from experiments.soak.striker import ENDS, Fault, Striker

RUN_DISK_BYTES = 64 << 20
SINK_DISK_BYTES = 256 << 20
FULL_MAX_S = 2.0
_INSIDE = "FLUX_SOAK_MAY_MOUNT"
_BLOCK_BYTES = 4096


class SmallDisk:
    """A file system in memory, mounted at `path`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._ballast = path / "ballast"

    @classmethod
    @contextlib.contextmanager
    def mounted(cls, path: Path, size_bytes: int) -> Iterator[SmallDisk]:
        """Mount one in this block."""
        path.mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size_bytes}", "tmpfs", str(path)], check=True)
        try:
            yield cls(path)
        finally:
            subprocess.run(["umount", "--lazy", str(path)], check=True)

    @contextlib.contextmanager
    def full(self) -> Iterator[None]:
        """Without room in this block."""
        with contextlib.suppress(OSError), self._ballast.open("wb", buffering=0) as ballast:
            while True:
                ballast.write(bytes(_BLOCK_BYTES))
        try:
            yield
        finally:
            self._ballast.unlink()


class FullDisks:
    """Disks of a run that are filled, by `striker`: that of its directory, and that of its sink's file."""

    def __init__(self, striker: Striker, of_run: SmallDisk | None, of_sink: SmallDisk | None) -> None:
        self._striker = striker
        self._of_run = of_run
        self._of_sink = of_sink
        faults: list[Fault] = []
        if of_run is not None:
            faults += [self.fill_the_disk_of_the_run, self.kill_on_a_full_disk]
        if of_sink is not None:
            faults.append(self.fill_the_disk_of_the_sink)
        self.faults = tuple(faults)

    def fill_the_disk_of_the_run(self) -> str | None:
        """Journals and spilled rows wait for room, or rows stay in memory."""
        assert self._of_run is not None
        for name in ENDS:
            self._striker.note(name)
        with self._of_run.full():
            self._striker.pause(FULL_MAX_S)
        return "disk of the run full"

    def kill_on_a_full_disk(self) -> str | None:
        """The same, and a process dies meanwhile."""
        assert self._of_run is not None
        name = self._striker.any_process()
        if name is None:
            return None
        with self._of_run.full():
            self._striker.pause(0.3)
            self._striker.kill_at_once(name)
            self._striker.pause(FULL_MAX_S)
        return "kill on a full disk"

    def fill_the_disk_of_the_sink(self) -> str | None:
        """The run ends with an error, and the file holds all that was acknowledged."""
        assert self._of_sink is not None
        self._striker.note("egress")
        with self._of_sink.full():
            self._striker.watch.wait_error()
        return "disk of the sink full"


def enter_namespace(arguments: list[str]) -> str | None:
    """Start this program again where it may mount; return why it may not, or None where it may already."""
    if os.environ.get(_INSIDE):
        return None
    command = ["unshare", "--mount"] if os.geteuid() == 0 else ["unshare", "--user", "--map-root-user", "--mount"]
    if shutil.which("unshare") is None:
        return "there is no unshare"
    tried = subprocess.run([*command, "mount", "-t", "tmpfs", "tmpfs", "/mnt"], capture_output=True, text=True)
    if tried.returncode != 0:
        return tried.stderr.strip()
    os.environ[_INSIDE] = "1"
    os.execvp("unshare", [*command, sys.executable, "-m", "experiments.soak", *arguments])
