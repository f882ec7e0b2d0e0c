"""Elsewhere: the operator in processes with other hashes, to see whether it depends on the order of a set.

Python draws the hash of text anew for each process. Two processes with seeds of our choice are given the same input;
what they give must be the same. They import the operator by its name, so it must have one: what is defined inside a
function cannot be checked in this way, and that is said.

`main` is such a process: it reads and writes msgpack on the descriptors it was given.
"""

from __future__ import annotations

import functools
import importlib
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, BinaryIO

import msgpack
import numpy as np
import pyarrow as pa

from ..errors import FluxError, from_dict
from ..punctuation import Punctuation
from ..wire.batches import batch_bytes
from .playing import Given, Output, Subject, Way, play

__all__ = ["Elsewhere", "name_of"]

SEEDS = ("1", "2")
_PROGRAM = "from flux.testing.elsewhere import main; main()"


def name_of(factory: Any) -> tuple[str, str] | None:
    """The module and the name in it under which a callable can be imported; None if there is none."""
    own = (str(getattr(factory, "__module__", "")), str(getattr(factory, "__qualname__", "")))
    places = (own, *_holders(factory))
    return next((place for place in places if place[0] != "__main__" and _found(*place) is factory), None)


def _holders(factory: Any) -> list[tuple[str, str]]:
    """Modules that hold it under some name: what `wrap` made has no name but the variable it was put into."""
    return [
        (module, name)
        for module, loaded in list(sys.modules.items())
        for name, value in list(getattr(loaded, "__dict__", {}).items())
        if value is factory
    ]


def _found(module: str, name: str) -> Any:
    try:
        return functools.reduce(getattr, name.split("."), sys.modules[module])
    except (AttributeError, KeyError):
        return None


@dataclass
class Elsewhere:
    """Two processes that have the operator of `subject`, which can be imported as `named`."""

    subject: Subject
    named: tuple[str, str]

    def __post_init__(self) -> None:
        self._processes = [self._started(seed) for seed in SEEDS]

    def _started(self, seed: str) -> subprocess.Popen[bytes]:
        # What an operator prints must not come between: the pipes of the answers are others than those of the streams.
        asks, answers = os.pipe(), os.pipe()
        command = [sys.executable, "-c", _PROGRAM, str(asks[0]), str(answers[1])]
        paths = os.pathsep.join(path or os.getcwd() for path in sys.path)
        environment = os.environ | {"PYTHONHASHSEED": seed, "PYTHONPATH": paths}
        process = subprocess.Popen(command, env=environment, pass_fds=(asks[0], answers[1]), stdin=subprocess.DEVNULL)
        os.close(asks[0])
        os.close(answers[1])
        process.stdin, process.stdout = os.fdopen(asks[1], "wb"), os.fdopen(answers[0], "rb")
        subject = self.subject
        plain = [*self.named, list(subject.key), subject.parameters, subject.partitions, subject.name]
        _say(process.stdin, msgpack.packb(plain))
        return process

    def play(self, given: Given, way: Way) -> list[list[Output]]:
        """What each of them gives."""
        marks = [[mark.sn, mark.kind, mark.value] for mark in given.marks]
        asked = msgpack.packb([batch_bytes(given.rows), given.sn.tolist(), marks, sorted(way.cuts)])
        for process in self._processes:
            assert process.stdin is not None
            _say(process.stdin, asked)
        return [self._heard(process) for process in self._processes]

    def _heard(self, process: subprocess.Popen[bytes]) -> list[Output]:
        assert process.stdout is not None
        said = _hear(process.stdout)
        if said is None:
            raise FluxError(
                f"the process that was to run {self.subject.name} with other hashes ended with status "
                f"{process.wait()}: can {'.'.join(self.named)} be imported there?"
            )
        document = msgpack.unpackb(said)
        if "error" in document:
            raise from_dict(document)
        return [Output(sn, sub, pid, {"": text}) for sn, sub, pid, text in document["outputs"]]

    def close(self) -> None:
        """End them."""
        for process in self._processes:
            assert process.stdin is not None and process.stdout is not None
            process.stdin.close()
            process.wait()
            process.stdout.close()


def _say(to: BinaryIO | Any, packed: bytes) -> None:
    to.write(len(packed).to_bytes(8, "little") + packed)
    to.flush()


def _hear(of: BinaryIO | Any) -> bytes | None:
    head = of.read(8)
    return of.read(int.from_bytes(head, "little")) if len(head) == 8 else None


def main() -> None:
    """Answer until there is nothing more to answer."""
    asks, answers = (os.fdopen(int(number), mode) for number, mode in zip(sys.argv[1:], ("rb", "wb"), strict=True))
    module, name, key, parameters, partitions, called = msgpack.unpackb(_hear(asks))
    found: Any = importlib.import_module(module)
    factory: Callable[[], Any] = functools.reduce(getattr, name.split("."), found)
    subject = Subject(factory, tuple(key), parameters, partitions, called)
    while (asked := _hear(asks)) is not None:
        rows, sn, marks, cuts = msgpack.unpackb(asked)
        batch = pa.ipc.open_stream(pa.py_buffer(rows)).read_next_batch()
        given = Given(batch, np.array(sn, np.int64), tuple(Punctuation(*mark) for mark in marks))
        try:
            outputs = play(subject, given, Way(cuts=frozenset(cuts)))
            said: dict[str, Any] = {"outputs": [[o.sn, o.sub, o.partition, repr(o.values)] for o in outputs]}
        except FluxError as error:
            said = error.to_dict()
        _say(answers, msgpack.packb(said))
