"""Elsewhere: the operator in other processes, to see whether it depends on the order of a set, or on the process.

Python draws the hash of text anew for each process. Two processes with seeds of our choice are given the same input;
what they give must be the same. And the second goes on from the states that the first had in the middle: what is kept
outside of the state, in a class attribute, a global or a cache, does not come along. They import the operator by its
name, so it must have one: what is defined inside a function cannot be checked in this way, and that is said.

`main` is such a process: it reads and writes msgpack on the descriptors it was given. It has itself forked for each
question, so that who answers has seen nothing: what an earlier question has left somewhere cannot be there.
"""

from __future__ import annotations

import functools
import importlib
import os
import subprocess
import sys
import traceback
from collections.abc import Callable
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from typing import Any, BinaryIO

import msgpack
import numpy as np
import pyarrow as pa

from ..model.batch import Batch
from ..model.operator import Operator
from ..model.punctuation import Punctuation
from ..types.errors import FluxError, from_dict
from ..wire.batches import batch_bytes
from .harness import Begun, GivenInput, Output, Subject, Way, play, play_and_take
from .hidden_state import HiddenState

__all__ = ["SubprocessRun", "name_of"]

SEEDS = ("1", "2")
_AGAIN = 3
# Instead of a number: what is asked is where it writes to, or what comes the second time.
_CHANGED, _TWICE, _PUT_BACK = -1, -2, -3
_PROGRAM = "from flux.testing.subprocess_run import main; main()"


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
class SubprocessRun:
    """Processes that have the operator of `subject`, which can be imported as `named`."""

    subject: Subject
    named: tuple[str, str]

    def __post_init__(self) -> None:
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def _process(self, seed: str) -> subprocess.Popen[bytes]:
        if seed not in self._processes:
            self._processes[seed] = self._started(seed)
        return self._processes[seed]

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

    def play(self, given: GivenInput, number: int) -> tuple[list[Output], list[Output], list[Output] | None]:
        """What the first gives, what the second, and what a third gives behind `number` with the first's states."""
        first, second = map(self._process, SEEDS)
        for process in (first, second):
            self._ask(process, given, number)
        # All that was asked is heard before any of it is looked at, for what it says may be an error.
        (one, begun), (other, _) = map(_outputs, [self._said(process) for process in (first, second)])
        if not 0 < number < len(given.sn) + len(given.punctuations):
            return one, other, None
        self._ask(second, given, number, begun)
        return one, other, _outputs(self._said(second))[0]

    def again(self, given: GivenInput) -> list[list[Output]]:
        """What processes with the same hashes give. Several: two may agree by chance, as in odd numbers."""
        return [self._asked_afresh(given, 0) for _ in range(_AGAIN)]

    def twice(self, given: GivenInput, put_back: bool = False) -> list[list[Output]]:
        """What these give when they are given it once more; what is outside of instances may be put back between."""
        return [self._asked_afresh(given, _PUT_BACK if put_back else _TWICE) for _ in range(_AGAIN)]

    def changed(self, given: GivenInput) -> list[str]:
        """Which places outside of its instances the operator writes to, where nobody has written to them before."""
        second = self._process(SEEDS[1])
        self._ask(second, given, _CHANGED)
        places: list[str] = _document(self._said(second))["changed"]
        return places

    def _asked_afresh(self, given: GivenInput, number: int) -> list[Output]:
        second = self._process(SEEDS[1])
        self._ask(second, given, number)
        return _outputs(self._said(second))[0]

    def _ask(
        self, process: subprocess.Popen[bytes], given: GivenInput, number: int, begun: Begun | None = None
    ) -> None:
        punctuations = [[mark.sn, mark.kind, mark.value] for mark in given.punctuations]
        states = None if begun is None else list(begun.states.items())
        assert process.stdin is not None
        with suppress(BrokenPipeError):  # That it has ended is said where it is listened to.
            _say(
                process.stdin, msgpack.packb([batch_bytes(given.rows), given.sn.tolist(), punctuations, number, states])
            )

    def _said(self, process: subprocess.Popen[bytes]) -> bytes:
        assert process.stdout is not None
        said = _hear(process.stdout)
        if said is None:
            raise FluxError(
                f"the process that was to run {self.subject.name} with other hashes ended with status "
                f"{process.wait()}: can {'.'.join(self.named)} be imported there?"
            )
        return said

    def close(self) -> None:
        """End them."""
        for process in self._processes.values():
            assert process.stdin is not None and process.stdout is not None
            process.stdin.close()
            process.wait()
            process.stdout.close()


def _document(said: bytes) -> Any:
    document = msgpack.unpackb(said)
    if "error" in document:
        raise from_dict(document)
    return document


def _outputs(said: bytes) -> tuple[list[Output], Begun]:
    document = _document(said)
    begun = Begun(document["number"], dict(document["states"]))
    return [Output(sn, sub, pid, {"": text}) for sn, sub, pid, text in document["outputs"]], begun


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
    _warm_up()
    while (asked := _hear(asks)) is not None:
        _have_answered(subject, asked, answers)


class _Nothing(Operator):
    def process(self, batch: Batch) -> None:
        return None


def _warm_up() -> None:
    """What is loaded at the first run of any operator is loaded here, and not in each who answers."""
    given = GivenInput.of([{"k": 0}, Punctuation(0, "end")])
    play_and_take(Subject(_Nothing, ("k",), {}, 1, "nothing"), given, 1)


def _have_answered(subject: Subject, asked: bytes, answers: BinaryIO | Any) -> None:
    """Let a fork answer; and if it ends without, say so."""
    child = os.fork()
    if child:
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if status:
            ended = FluxError(f"the process in which {subject.name} ran ended with status {status}, and said nothing")
            _say(answers, msgpack.packb(ended.to_dict()))
        return
    status = 1
    try:
        np.random.seed()  # Each draws its own numbers, as forks do by themselves with those of `random`.
        _say(answers, _answered(subject, asked))
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _answered(subject: Subject, asked: bytes) -> bytes:
    try:
        said = _answer(subject, *msgpack.unpackb(asked))
    except FluxError as error:
        said = error.to_dict()
    packed: bytes = msgpack.packb(said)
    return packed


def _answer(
    subject: Subject, rows: bytes, sn: list[int], punctuations: Any, number: int, states: Any
) -> dict[str, Any]:
    batch = pa.ipc.open_stream(pa.py_buffer(rows)).read_next_batch()
    given = GivenInput(batch, np.array(sn, np.int64), tuple(Punctuation(*mark) for mark in punctuations))
    outside = HiddenState(subject.factory, subject.parameters)
    if number == _CHANGED:
        return {"changed": outside.changed_by(lambda: play(subject, given, Way()))}
    if number in (_TWICE, _PUT_BACK):
        with outside.copied() if number == _PUT_BACK else nullcontext():
            play(subject, given, Way())
    if states is None:
        outputs, begun = play_and_take(subject, given, number)
    else:
        begun = Begun(number, {})
        outputs = play(subject, given, Way(), Begun(number, dict(states)))
    return {
        "outputs": [[o.sn, o.sub, o.partition, repr(o.values)] for o in outputs],
        "number": begun.number,
        "states": list(begun.states.items()),
    }
