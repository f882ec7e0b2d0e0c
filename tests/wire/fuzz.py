"""The fuzzer of the wire: `python -m tests.wire.fuzz --frames 100000`, or `make fuzz`.

Each codec is tried in a process of its own, which may use only so much memory and time: it must not crash, hang,
use more, or raise what it did not declare. A frame is drawn from its number alone, so a failure is replayed by

    python -m tests.wire.fuzz --codec NAME --first NUMBER --frames 1
"""

from __future__ import annotations

import argparse
import mmap
import os
import resource
import signal
import sys
import time
import traceback
from dataclasses import dataclass
from random import Random
from typing import NoReturn

import pyarrow as pa
import trio

from .codecs import CODECS, Codec

MEMORY_BYTES = 1 << 30  # More than it had when it began.
HANG_S = 60
_BETWEEN_ALARMS = 256


@dataclass(frozen=True)
class Outcome:
    """What came of one codec; `failure` is empty if nothing went wrong."""

    accepted: int
    refused: int
    seconds: float
    failure: str


def fuzz(codec: Codec, frames: int, first: int = 0) -> Outcome:
    """Try `frames` inputs, beginning with number `first`, in a process of their own."""
    shared = mmap.mmap(-1, 1 << 16)  # The child's notes: number, accepted, refused, what it said of a failure.
    began = time.monotonic()
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        _try_all(codec, frames, first, shared)
    _, status = os.waitpid(child, 0)
    number, accepted, refused, said = _noted(shared)
    failure = ""
    if status != 0:
        code = os.waitstatus_to_exitcode(status)
        why = f"the process ended by {signal.Signals(-code).name}" if code < 0 else said
        replay = f"python -m tests.wire.fuzz --codec {codec.name} --first {number} --frames 1"
        failure = f"{codec.name}, frame {number}: {why}\nReplay: {replay}"
    return Outcome(accepted, refused, time.monotonic() - began, failure)


def _try_all(codec: Codec, frames: int, first: int, shared: mmap.mmap) -> NoReturn:
    code = 1
    try:
        pa.set_cpu_count(1)
        _limit_memory()
        trio.run(_attempts, codec, frames, first, shared)
        code = 0
    except BaseException:
        said = traceback.format_exc().encode()[-8_000:]
        shared[24 : 24 + len(said)] = said
    finally:
        os._exit(code)


def _limit_memory() -> None:
    with open("/proc/self/statm") as file:
        pages = int(file.read().split()[0])
    limit = pages * resource.getpagesize() + MEMORY_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    signal.signal(signal.SIGALRM, signal.SIG_DFL)


async def _attempts(codec: Codec, frames: int, first: int, shared: mmap.mmap) -> None:
    accepted = refused = 0
    for number in range(first, first + frames):
        if (number - first) % _BETWEEN_ALARMS == 0:
            signal.alarm(HANG_S)
        _note(shared, number, accepted, refused)
        try:
            accepted += await codec.attempt(Random(f"{codec.name} {number}"))
        except codec.declared as error:
            _refuse_lack_of_memory(error)
            refused += 1
    _note(shared, first + frames, accepted, refused)


def _refuse_lack_of_memory(error: BaseException | None) -> None:
    """That memory ran out is no refusal, whatever it was turned into."""
    while error is not None:
        if isinstance(error, MemoryError):
            raise AssertionError(f"more than {MEMORY_BYTES:,} bytes were asked for: {error}") from error
        error = error.__cause__ or error.__context__


def _note(shared: mmap.mmap, *numbers: int) -> None:
    shared[:24] = b"".join(number.to_bytes(8, "little") for number in numbers)


def _noted(shared: mmap.mmap) -> tuple[int, int, int, str]:
    number, accepted, refused = (int.from_bytes(shared[at : at + 8], "little") for at in (0, 8, 16))
    return number, accepted, refused, shared[24:].rstrip(b"\0").decode(errors="replace")


def main(arguments: list[str] | None = None) -> int:
    """Fuzz one codec or all; the exit code is the number of those that failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.wire.fuzz", description=__doc__.splitlines()[0])
    parser.add_argument("--codec", choices=CODECS, help="only this one")
    parser.add_argument("--frames", type=int, default=100_000, help="how many for each codec")
    parser.add_argument("--first", type=int, default=0, help="the number of the first")
    options = parser.parse_args(arguments)
    failed = 0
    for name in [options.codec] if options.codec else CODECS:
        outcome = fuzz(CODECS[name], options.frames, options.first)
        print(
            f"{name:10} {outcome.accepted:9,} accepted {outcome.refused:9,} refused {outcome.seconds:7.1f} s"
            f"{'  FAILED' if outcome.failure else ''}",
            flush=True,
        )
        if outcome.failure:
            failed += 1
            print(outcome.failure, flush=True)
    return failed


if __name__ == "__main__":
    sys.exit(main())
