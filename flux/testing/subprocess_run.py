"""Runs of the operator in other processes, to see whether it depends on the order of a set, or on the process.

Python seeds the hash of text anew for each process. Two processes with seeds of our choice get the same input and must
give the same output. The second also resumes from the states that the first had in the middle: what is kept outside of
the state, in a class attribute, a global or a cache, is missing there. The processes import the operator by its name.
So an operator that is defined inside a function cannot be checked in this way, and the result says so.

`main` is such a process: it reads requests and writes answers in msgpack, on the descriptors in its arguments. Each
request is served by a new fork, so that nothing left by an earlier request can affect it.
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
from .harness import GivenInput, Output, StatesAt, Subject, Way, play, play_and_take
from .hidden_state import HiddenState

__all__ = ["SubprocessRun", "name_of"]

SEEDS = ("1", "2")
_REPEATS = 3
# Instead of a number: return where the operator writes to, or the output of a second run.
_CHANGED, _TWICE, _RESTORED = -1, -2, -3
_PROGRAM = "from flux.testing.subprocess_run import main; main()"


def name_of(factory: Any) -> tuple[str, str] | None:
    """Return the module and the name in it under which a callable can be imported; None if there is none."""
    own = (str(getattr(factory, "__module__", "")), str(getattr(factory, "__qualname__", "")))
    places = (own, *_holders(factory))
    return next((place for place in places if place[0] != "__main__" and _found(*place) is factory), None)


def _holders(factory: Any) -> list[tuple[str, str]]:
    """Return the modules that hold it under some name: what `wrap` returns has only the name of its variable."""
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
    """Processes that run the operator of `subject`, which can be imported as `named`."""

    subject: Subject
    named: tuple[str, str]

    def __post_init__(self) -> None:
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def _process(self, seed: str) -> subprocess.Popen[bytes]:
        if seed not in self._processes:
            self._processes[seed] = self._start(seed)
        return self._processes[seed]

    def _start(self, seed: str) -> subprocess.Popen[bytes]:
        # An operator may print: requests and answers have pipes of their own, apart from the standard streams.
        requests, answers = os.pipe(), os.pipe()
        command = [sys.executable, "-c", _PROGRAM, str(requests[0]), str(answers[1])]
        paths = os.pathsep.join(path or os.getcwd() for path in sys.path)
        environment = os.environ | {"PYTHONHASHSEED": seed, "PYTHONPATH": paths}
        fds = (requests[0], answers[1])
        process = subprocess.Popen(command, env=environment, pass_fds=fds, stdin=subprocess.DEVNULL)
        os.close(requests[0])
        os.close(answers[1])
        process.stdin, process.stdout = os.fdopen(requests[1], "wb"), os.fdopen(answers[0], "rb")
        subject = self.subject
        plain = [*self.named, list(subject.key), subject.parameters, subject.partitions, subject.name]
        _write(process.stdin, msgpack.packb(plain))
        return process

    def play(self, given: GivenInput, number: int) -> tuple[list[Output], list[Output], list[Output] | None]:
        """Return the outputs of two processes, and of a third that resumes after `number` with the first's states."""
        first, second = map(self._process, SEEDS)
        for process in (first, second):
            self._request(process, given, number)
        # Both answers are read before either is decoded, because decoding may raise an error.
        (one, states), (other, _) = map(_outputs, [self._answer(process) for process in (first, second)])
        if not 0 < number < len(given.sn) + len(given.punctuations):
            return one, other, None
        self._request(second, given, number, states)
        return one, other, _outputs(self._answer(second))[0]

    def run_again(self, given: GivenInput) -> list[list[Output]]:
        """Return the outputs of several forks with the same hashes; only two might agree by chance."""
        return [self._run_in_fork(given, 0) for _ in range(_REPEATS)]

    def run_twice(self, given: GivenInput, is_restored: bool = False) -> list[list[Output]]:
        """Return the outputs of second runs; hidden state may be restored between the first run and the second."""
        return [self._run_in_fork(given, _RESTORED if is_restored else _TWICE) for _ in range(_REPEATS)]

    def changed_places(self, given: GivenInput) -> list[str]:
        """Return the places outside of its instances that the operator writes to in its first run."""
        second = self._process(SEEDS[1])
        self._request(second, given, _CHANGED)
        places: list[str] = _document(self._answer(second))["changed"]
        return places

    def _run_in_fork(self, given: GivenInput, number: int) -> list[Output]:
        second = self._process(SEEDS[1])
        self._request(second, given, number)
        return _outputs(self._answer(second))[0]

    def _request(
        self, process: subprocess.Popen[bytes], given: GivenInput, number: int, start: StatesAt | None = None
    ) -> None:
        punctuations = [[mark.sn, mark.kind, mark.value] for mark in given.punctuations]
        states = None if start is None else list(start.states.items())
        request = [batch_bytes(given.rows), given.sn.tolist(), punctuations, number, states]
        assert process.stdin is not None
        with suppress(BrokenPipeError):  # The process has ended; `_answer` reports that.
            _write(process.stdin, msgpack.packb(request))

    def _answer(self, process: subprocess.Popen[bytes]) -> bytes:
        assert process.stdout is not None
        answer = _read(process.stdout)
        if answer is None:
            raise FluxError(
                f"the process for {self.subject.name} with other hashes ended with status {process.wait()}: can "
                f"{'.'.join(self.named)} be imported there?"
            )
        return answer

    def close(self) -> None:
        """End the processes."""
        for process in self._processes.values():
            assert process.stdin is not None and process.stdout is not None
            process.stdin.close()
            process.wait()
            process.stdout.close()


def _document(answer: bytes) -> Any:
    document = msgpack.unpackb(answer)
    if "error" in document:
        raise from_dict(document)
    return document


def _outputs(answer: bytes) -> tuple[list[Output], StatesAt]:
    document = _document(answer)
    states = StatesAt(document["number"], dict(document["states"]))
    return [Output(sn, sub, pid, {"": text}) for sn, sub, pid, text in document["outputs"]], states


def _write(pipe: BinaryIO | Any, packed: bytes) -> None:
    pipe.write(len(packed).to_bytes(8, "little") + packed)
    pipe.flush()


def _read(pipe: BinaryIO | Any) -> bytes | None:
    head = pipe.read(8)
    return pipe.read(int.from_bytes(head, "little")) if len(head) == 8 else None


def main() -> None:
    """Answer requests until their pipe is closed."""
    requests, answers = (os.fdopen(int(number), mode) for number, mode in zip(sys.argv[1:], ("rb", "wb"), strict=True))
    module, name, key, parameters, partitions, title = msgpack.unpackb(_read(requests))
    found: Any = importlib.import_module(module)
    factory: Callable[[], Any] = functools.reduce(getattr, name.split("."), found)
    subject = Subject(factory, tuple(key), parameters, partitions, title)
    _warm_up()
    while (request := _read(requests)) is not None:
        _fork_and_answer(subject, request, answers)


class _Nothing(Operator):
    def process(self, batch: Batch) -> None:
        return None


def _warm_up() -> None:
    """Load here what the first run of any operator loads, and not again in each fork."""
    given = GivenInput.of([{"k": 0}, Punctuation(0, "end")])
    play_and_take(Subject(_Nothing, ("k",), {}, 1, "nothing"), given, 1)


def _fork_and_answer(subject: Subject, request: bytes, answers: BinaryIO | Any) -> None:
    """Let a fork answer a request; if it ends without an answer, answer with an error."""
    child = os.fork()
    if child:
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if status:
            error = FluxError(f"the process that ran {subject.name} ended with status {status} and without an answer")
            _write(answers, msgpack.packb(error.to_dict()))
        return
    status = 1
    try:
        np.random.seed()  # Each fork draws its own numbers; Python reseeds `random` in forks by itself.
        _write(answers, _answer_or_error(subject, request))
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _answer_or_error(subject: Subject, request: bytes) -> bytes:
    try:
        answer = _run(subject, *msgpack.unpackb(request))
    except FluxError as error:
        answer = error.to_dict()
    packed: bytes = msgpack.packb(answer)
    return packed


def _run(subject: Subject, rows: bytes, sn: list[int], punctuations: Any, number: int, states: Any) -> dict[str, Any]:
    batch = pa.ipc.open_stream(pa.py_buffer(rows)).read_next_batch()
    given = GivenInput(batch, np.array(sn, np.int64), tuple(Punctuation(*mark) for mark in punctuations))
    hidden = HiddenState(subject.factory, subject.parameters)
    if number == _CHANGED:
        return {"changed": hidden.changed_by(lambda: play(subject, given, Way()))}
    if number in (_TWICE, _RESTORED):
        with hidden.replaced_by_copies() if number == _RESTORED else nullcontext():
            play(subject, given, Way())
    if states is None:
        outputs, taken = play_and_take(subject, given, number)
    else:
        taken = StatesAt(number, {})
        outputs = play(subject, given, Way(), StatesAt(number, dict(states)))
    return {
        "outputs": [[o.sn, o.sub, o.partition, repr(o.values)] for o in outputs],
        "number": taken.number,
        "states": list(taken.states.items()),
    }
