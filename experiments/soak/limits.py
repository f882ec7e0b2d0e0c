"""Limits: a process that may open no more files, or get no more memory, for a while."""

from __future__ import annotations

import contextlib
import os
import resource
from collections.abc import Callable, Iterator
from pathlib import Path

from experiments.soak.striker import Fault, Striker

DESCRIPTORS = 64
LIMITED_MAX_S = 2.0
ROOM_MAX_BYTES = 2 << 20


class Limits:
    """Limits on processes of a run, by `striker`."""

    def __init__(self, striker: Striker) -> None:
        self._striker = striker
        self.faults: tuple[Fault, ...] = (
            self.limit_descriptors,
            self.take_all_descriptors,
            self.limit_memory_of_a_site,
        )

    def limit_descriptors(self) -> str | None:
        """Every process may have 64 files open."""
        return self._kill_with_limits(lambda pid: DESCRIPTORS, f"{DESCRIPTORS} descriptors")

    def take_all_descriptors(self) -> str | None:
        """Every process may open hardly any file, until it closes one."""
        spare = self._striker.draw.randrange(4)
        return self._kill_with_limits(lambda pid: open_files(pid) + spare, "no descriptors to spare")

    def _kill_with_limits(self, descriptors: Callable[[int], int], kind: str) -> str | None:
        """A site dies, and the others connect to its successor, while each may have so many files open."""
        site = self._striker.any_site()
        if site is None:
            return None
        with contextlib.ExitStack() as limited:
            for each in self._striker.run.status().processes:
                if each.state == "up" and each.pid is not None:
                    limited.enter_context(limit(each.pid, resource.RLIMIT_NOFILE, descriptors(each.pid)))
            self._striker.kill(site)
            self._striker.run.add_site()
            self._striker.pause(LIMITED_MAX_S)
        return kind

    def limit_memory_of_a_site(self) -> str | None:
        """A site gets almost no more memory, and another dies; if the first needs more, it ends too."""
        pairs = self._striker.to_spare(2)
        if not pairs:
            return None
        name, other = self._striker.draw.choice(pairs)
        pid = self._striker.pid(name)
        if pid is None:
            return None
        room_bytes = self._striker.draw.randrange(ROOM_MAX_BYTES)
        self._striker.note(name)
        with limit(pid, resource.RLIMIT_AS, address_space_bytes(pid) + room_bytes):
            self._striker.kill(other)
            self._striker.pause(LIMITED_MAX_S)
        return "memory limit"


@contextlib.contextmanager
def limit(pid: int, which: int, amount: int) -> Iterator[None]:
    """Lower a soft limit of a process in this block; it may end meanwhile."""
    try:
        soft, hard = resource.prlimit(pid, which)
        resource.prlimit(pid, which, (amount, hard))
    except ProcessLookupError:
        yield
        return
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            resource.prlimit(pid, which, (soft, hard))


def open_files(pid: int) -> int:
    """How many files a process has open; 0 if it is gone."""
    try:
        return len(os.listdir(f"/proc/{pid}/fd"))
    except (FileNotFoundError, ProcessLookupError):
        return 0


def address_space_bytes(pid: int) -> int:
    """The size of a process's address space; 0 if it is gone."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    except (FileNotFoundError, ProcessLookupError):
        return 0
