"""Greetings: who knows the secret is let in by name; nothing overheard, turned round or changed is of any use."""

from __future__ import annotations

import socket
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import trio
import trio.testing

from flux import AuthError
from flux.protocols.messages import VERSION
from flux.wire import frames, handshake, sockets
from flux.wire.handshake import Dialler, HandshakeRefused, Listener, answer_handshake, dial_handshake
from flux.wire.link import tune

SECRET = b"0123456789abcdef0123456789abcdef"
RUN = "dmz"


def dialler(name: str = "site-1", secret: bytes = SECRET, run: str = RUN) -> Dialler:
    return Dialler(name, secret, run)


def listener(name: str = "controller", secret: bytes = SECRET, run: str = RUN) -> Listener:
    return Listener(name, secret, run)


def converse(one: Dialler, other: Listener, refuse: handshake.Refuse = handshake.refuse_none) -> tuple[str, str]:
    """The whole greeting; the names that both ends have learnt."""
    name, verdict = other.judge(one.prove(other.challenge(one.greet())), refuse)
    return name, one.conclude(verdict)


def test_both_ends_learn_the_name_of_the_other() -> None:
    assert converse(dialler(), listener()) == ("site-1", "controller")


def test_a_dialler_with_another_secret_is_told_so() -> None:
    one, other = dialler(secret=b"guessed"), listener()
    with pytest.raises(AuthError, match=r"'site-1' does not know the secret of run 'dmz'; .* start it with the same"):
        converse(one, other)
    assert other.refusal is not None
    with pytest.raises(AuthError, match="this process has another secret than run 'dmz'; give both the same"):
        one.conclude(other.refusal)


def test_a_listener_with_another_secret_is_not_trusted() -> None:
    """It cannot judge our proof, and claims that it was good."""
    one, other = dialler(), listener(secret=b"guessed")
    one.prove(other.challenge(one.greet()))
    for claimed in (other._prove(""), b"", None, "text"):
        with pytest.raises(AuthError, match="does not know the secret of run 'dmz', and is not trusted"):
            one.conclude({"kind": "welcome", "proof": claimed})


def test_a_process_of_another_run_is_told_so() -> None:
    one, other = dialler(run="other"), listener()
    with pytest.raises(AuthError, match="greeted for run 'other', and this is run 'dmz'"):
        other.challenge(one.greet())
    assert other.refusal is not None
    with pytest.raises(AuthError, match="the other end is of another run, not of run 'other'"):
        one.prove(other.refusal)


def test_another_version_is_refused_by_both_ends() -> None:
    one, other = dialler(), listener()
    with pytest.raises(AuthError, match=f"speaks protocol version 99, this process {VERSION}; run one release"):
        other.challenge({**one.greet(), "protocol": 99, "run": None})
    assert other.refusal is not None
    with pytest.raises(AuthError, match="run one release everywhere"):
        one.prove(other.refusal)
    with pytest.raises(AuthError, match="speaks protocol version 99"):
        one.prove({**listener().challenge(one.greet()), "protocol": 99})


def test_one_that_was_declared_dead_is_told_so_and_can_believe_it() -> None:
    one, other = dialler(), listener()
    with pytest.raises(HandshakeRefused, match="'site-1' was refused: declared dead in view 7"):
        converse(one, other, lambda name: f"declared dead in view 7 ({name})")
    assert other.refusal is not None
    with pytest.raises(HandshakeRefused, match="'controller' refused this process, 'site-1': declared dead") as caught:
        one.conclude(other.refusal)
    assert caught.value.reason == "declared dead in view 7 (site-1)"


def test_a_stranger_cannot_make_a_process_believe_that_it_is_dead() -> None:
    one, other = dialler(), listener()
    one.prove(other.challenge(one.greet()))
    with pytest.raises(AuthError):
        one.conclude({"kind": "refused", "reason": "you are dead", "proof": other._prove("you are late")})
    with pytest.raises(frames.BadFrame):
        one.conclude({"kind": "refused", "reason": "you are dead"})


def test_a_proof_cannot_be_used_again() -> None:
    one, first = dialler(), listener()
    challenge = first.challenge(one.greet())
    proof = one.prove(challenge)
    first.judge(proof)
    second = listener()
    second.challenge(one.greet())
    with pytest.raises(AuthError):
        second.judge(proof)


def test_a_process_cannot_be_made_to_answer_itself() -> None:
    """Everything it says as a dialler comes back to it, and what it says as a listener."""
    one = dialler("site-1")
    own = one.greet()
    proof = one.prove({"kind": "challenge", "protocol": VERSION, "name": "site-1", "nonce": own["nonce"]})
    with pytest.raises(AuthError):
        one.conclude({"kind": "welcome", "proof": proof["proof"]})
    with pytest.raises(frames.BadFrame):
        one.prove(own)


@pytest.mark.parametrize("field", ["name", "nonce"])
@pytest.mark.parametrize("end", ["greet", "challenge"])
def test_nothing_said_can_be_changed_on_the_way(end: str, field: str) -> None:
    one, other = dialler(), listener()
    changed = {"name": "site-9", "nonce": bytes(32)}[field]
    hello = one.greet()
    challenge = other.challenge({**hello, field: changed} if end == "greet" else hello)
    proof = one.prove({**challenge, field: changed} if end == "challenge" else challenge)
    with pytest.raises(AuthError):
        other.judge(proof)


@pytest.mark.parametrize(
    "change",
    [
        {"name": ""},
        {"name": "x" * 201},
        {"name": b"site"},
        {"run": 7},
        {"nonce": b"short"},
        {"nonce": "text"},
        {"kind": "x"},
    ],
)
def test_a_malformed_greeting_is_a_bad_frame(change: dict[str, Any]) -> None:
    with pytest.raises(frames.BadFrame):
        listener().challenge({**dialler().greet(), **change})


# Over connections.


def connection() -> tuple[socket.socket, socket.socket]:
    one, other = socket.socketpair()
    tune(one)
    tune(other)
    return one, other


async def outcome(call: Awaitable[str], into: list[Any]) -> None:
    try:
        into.append(await call)
    except Exception as error:
        into.append(error)


def both(dialling: dict[str, Any], listening: dict[str, Any]) -> tuple[Any, Any, tuple[socket.socket, socket.socket]]:
    """What came of a greeting at both ends."""
    socks = connection()
    got: tuple[list[Any], list[Any]] = [], []

    async def talk() -> None:
        with trio.fail_after(60):
            async with trio.open_nursery() as nursery:
                ends = (
                    {"name": "site-1", "secret": SECRET, "run": RUN, **dialling},
                    {
                        "name": "controller",
                        "secret": SECRET,
                        "run": RUN,
                        **listening,
                    },
                )
                nursery.start_soon(outcome, dial_handshake(socks[0], **ends[0]), got[0])
                nursery.start_soon(outcome, answer_handshake(socks[1], **ends[1]), got[1])

    trio.run(talk)
    return got[0][0], got[1][0], socks


def closed(socks: tuple[socket.socket, socket.socket]) -> bool:
    return all(sock.fileno() < 0 for sock in socks)


def test_a_greeting_over_a_connection_leaves_it_open_for_what_follows() -> None:
    listener_name, dialler_name, socks = both({}, {})
    assert (listener_name, dialler_name) == ("controller", "site-1")
    socks[0].send(b"what follows")
    assert socks[1].recv(100) == b"what follows"
    for sock in socks:
        sock.close()


@pytest.mark.parametrize(
    ("dialling", "says"),
    [({"secret": b"guessed"}, "another secret"), ({"run": "other"}, "another run")],
)
def test_both_ends_close_what_was_not_proved(dialling: dict[str, Any], says: str) -> None:
    here, there, socks = both(dialling, {})
    assert isinstance(here, AuthError) and says in str(here)
    assert isinstance(there, AuthError)
    assert closed(socks)


def test_a_dead_process_hears_why_it_is_refused() -> None:
    here, there, socks = both({}, {"refuse": lambda name: "declared dead in view 7"})
    assert isinstance(here, HandshakeRefused) and here.reason == "declared dead in view 7"
    assert isinstance(there, HandshakeRefused)
    assert closed(socks)


def test_one_that_is_silent_is_given_up() -> None:
    async def talk(call: Callable[..., Awaitable[str]]) -> None:
        ours, theirs = connection()
        with pytest.raises(TimeoutError, match="did not finish the handshake within 5 s"):
            await call(ours, name="site-1", secret=SECRET, run=RUN)
        assert ours.fileno() < 0
        theirs.close()

    for call in (dial_handshake, answer_handshake):
        trio.run(talk, call, clock=trio.testing.MockClock(autojump_threshold=0))


@pytest.mark.parametrize("call", [dial_handshake, answer_handshake])
@pytest.mark.parametrize(
    ("raw", "error"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", frames.BadFrame),
        (frames.PREFIX.pack(b"Fx", frames.VERSION, frames.STRANGER_MAX_BYTES + 1, 0), frames.BadFrame),
        (frames.PREFIX.pack(b"Fx", frames.VERSION, 10, 1), frames.BadFrame),
        (frames.encode({"kind": "greet"}), AuthError),
        (frames.encode({"kind": "challenge", "protocol": VERSION, "name": 1}), frames.BadFrame),
        (b"", ConnectionResetError),
    ],
)
def test_whatever_a_stranger_sends_the_connection_is_closed(
    call: Callable[..., Awaitable[str]], raw: bytes, error: type[Exception]
) -> None:
    expected: tuple[type[Exception], ...] = (error, frames.BadFrame) if error is AuthError else (error,)

    async def talk() -> None:
        ours, theirs = connection()
        await sockets.write_all(theirs, raw)
        theirs.shutdown(socket.SHUT_WR)
        with trio.fail_after(60), pytest.raises(expected):
            await call(ours, name="site-1", secret=SECRET, run=RUN)
        assert ours.fileno() < 0
        theirs.close()

    trio.run(talk)
