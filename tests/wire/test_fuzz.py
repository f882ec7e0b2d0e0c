"""A few thousand malformed inputs for each decoder; `make fuzz` tries many more. And that the fuzzer would notice."""

from __future__ import annotations

import os
import signal
from random import Random

import numpy as np
import pytest

from flux.wire.codec import from_plain
from flux.wire.frames import BadFrame

from . import fuzz
from .codecs import CODECS, MESSAGES, Codec

FRAMES = 2_000


@pytest.mark.parametrize("name", CODECS)
def test_nothing_malformed_does_harm(name: str) -> None:
    outcome = fuzz.fuzz(CODECS[name], FRAMES)
    assert not outcome.failure, outcome.failure
    assert outcome.accepted + outcome.refused == FRAMES
    # Else it tries only what is plainly wrong, or changes nothing.
    assert outcome.accepted > FRAMES // 100 and outcome.refused > FRAMES // 3


def test_every_message_that_is_changed_is_well_formed_to_begin_with() -> None:
    for message in MESSAGES:
        from_plain(message["m"], lambda body: ())


async def crash(draw: Random) -> bool:
    if draw.random() < 0.01:
        os.kill(os.getpid(), signal.SIGSEGV)
    return True


async def raise_another_error(draw: Random) -> bool:
    if draw.random() < 0.01:
        raise KeyError("kind")
    raise BadFrame


async def take_all_memory(draw: Random) -> bool:
    try:
        np.empty(2 * fuzz.MEMORY_BYTES, dtype=np.uint8)
    except MemoryError as error:
        raise BadFrame("it is the peer's fault") from error
    return True


async def hang(draw: Random) -> bool:
    while True:
        pass


@pytest.mark.parametrize(
    ("attempt", "says"),
    [
        (crash, "ended by SIGSEGV"),
        (raise_another_error, "KeyError: 'kind'"),
        (take_all_memory, "bytes were asked for"),
        (hang, "ended by SIGALRM"),
    ],
)
def test_what_does_harm_is_noticed_and_can_be_replayed(
    attempt: object, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fuzz, "HANG_S", 1)
    outcome = fuzz.fuzz(Codec("planted", attempt), 1_000)  # type: ignore[arg-type]
    assert says in outcome.failure
    number = outcome.accepted + outcome.refused
    assert f"planted, frame {number}:" in outcome.failure
    assert f"--codec planted --first {number} --frames 1" in outcome.failure
    again = fuzz.fuzz(Codec("planted", attempt), 1, first=number)  # type: ignore[arg-type]
    assert says in again.failure


def test_it_runs_from_the_command_line(capfd: pytest.CaptureFixture[str]) -> None:
    assert fuzz.main(["--codec", "message", "--frames", "50", "--first", "7"]) == 0
    assert "message" in capfd.readouterr().out
