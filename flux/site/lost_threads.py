"""Lost threads: threads of native libraries for which a fork of this process would wait without end.

A fork has only the thread that forked. Most libraries do without their threads there, or start them again: OpenBLAS,
Arrow, DuckDB and Python's own pools were measured. Two do not: the pool of Polars, and that of GNU OpenMP, which
scikit-learn and PyTorch use. Their first parallel call in a fork waits for ever.

Names of threads are not enough, because most have that of the program. The library of a thread that sleeps is found on
its stack: the return addresses there point into mapped files.
"""

from __future__ import annotations

import os
import re
import struct
import time
from bisect import bisect_right
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .code_references import first_with_package

_TASKS = Path("/proc/self/task")
_STACK_MAX_BYTES = 64 << 10  # What a thread that waits has on its stack is less.
_LOOKS_MAX = 5  # A thread that runs at this moment cannot be read: it is looked at again.
_LOOK_AGAIN_S = 0.01


@dataclass(frozen=True, kw_only=True)
class Library:
    """A library whose threads are lost in a fork: its file and threads, and the packages that call it."""

    name: str
    file: re.Pattern[str]
    thread: re.Pattern[str]
    packages: frozenset[str]
    remedy: str


_LIBRARIES = (
    Library(
        name="Polars",
        file=re.compile(r"polars"),
        thread=re.compile(r"polars-\d+$"),  # The pool. Other threads of Polars are not waited for.
        packages=frozenset({"polars"}),
        remedy="",
    ),
    Library(
        name="GNU OpenMP",
        file=re.compile(r"^libgomp\b"),
        thread=re.compile(""),
        packages=frozenset({"sklearn", "torch", "xgboost", "lightgbm"}),
        remedy="; or set OMP_NUM_THREADS=1 before the program starts",
    ),
)


@dataclass(frozen=True, kw_only=True)
class LostThreads:
    """The threads of one library that a fork of this process would lack."""

    library: Library
    file: str
    names: tuple[str, ...]

    def __str__(self) -> str:
        return f"{len(self.names)} threads of {self.library.name} ({self.file}: {', '.join(sorted(set(self.names)))})"


def lost_threads() -> list[LostThreads]:
    """Return the threads of this process for which code of a library would wait in a fork."""
    found: dict[tuple[str, str], tuple[Library, list[str]]] = {}
    for name, files in _threads_and_files():
        for library in _LIBRARIES:
            file = next(filter(library.file.search, files), None)
            if file is not None and library.thread.match(name):
                found.setdefault((library.name, file), (library, []))[1].append(name)
    return [LostThreads(library=each, file=file, names=tuple(names)) for (_, file), (each, names) in found.items()]


def _threads_and_files() -> list[tuple[str, list[str]]]:
    """Return the name of each other thread, and the mapped files to which the addresses on its stack point."""
    unread = {int(task.name) for task in _TASKS.iterdir()} - {os.getpid()}
    if not unread:
        return []
    found = []
    for look in range(_LOOKS_MAX):
        if look:
            time.sleep(_LOOK_AGAIN_S)
        mapped = _Mapped()
        for task in sorted(unread):
            try:
                pointer = (_TASKS / str(task) / "syscall").read_text().split()[-2:-1]
                name = (_TASKS / str(task) / "comm").read_text().strip()
                if pointer:  # Else it says only "running".
                    found.append((name, mapped.files_on_stack(int(pointer[0], 16))))
                    unread.discard(task)
            except OSError:  # It has ended, or the system does not let us look.
                unread.discard(task)
        if not unread:
            break
    return found


class _Mapped:
    """The memory of this process as it is mapped now."""

    def __init__(self) -> None:
        self._begins: list[int] = []
        self._areas: list[tuple[int, str]] = []  # End, and the name of the file whose code it holds.
        for line in Path("/proc/self/maps").read_text(errors="replace").splitlines():
            span, access, _, _, _, *path = line.split(None, 5)
            begin, end = (int(number, 16) for number in span.split("-"))
            self._begins.append(begin)
            self._areas.append((end, os.path.basename(path[0]) if path and "x" in access else ""))

    def files_on_stack(self, pointer: int) -> list[str]:
        end, _ = self._area(pointer)
        with open("/proc/self/mem", "rb", buffering=0) as memory:
            memory.seek(pointer)
            stack = memory.read(min(end - pointer, _STACK_MAX_BYTES) // 8 * 8)
        words = {word for (word,) in struct.iter_unpack("=Q", stack)}
        return sorted({file for word in words if (file := self._area(word)[1])})

    def _area(self, address: int) -> tuple[int, str]:
        at = bisect_right(self._begins, address) - 1
        return self._areas[at] if at >= 0 and address < self._areas[at][0] else (address, "")


def library_waited_for(code: Any) -> str | None:
    """Return the name of a library whose threads are lost in a fork, if the user's code refers to it; else None."""
    return next((each.name for each in _LIBRARIES if first_with_package(code, each.packages) is not None), None)
