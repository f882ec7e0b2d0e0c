"""TLS, and connections as processes make them: trusted both ways, the same link over them."""

from __future__ import annotations

import socket
import ssl
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import trio
import trio.testing

from flux import AuthError
from flux.wire import address
from flux.wire.connections import Identity, dial, let_in
from flux.wire.frames import BadFrame
from flux.wire.handshake import HandshakeRefused
from flux.wire.link import Link, tune
from flux.wire.tls import Tls, context, secure

from .linking import connection, run

FILES = Path(__file__).parent / "certificates"
SITE = Identity(name="site-1", run="dmz", secret=b"0123456789abcdef0123456789abcdef")
CONTROLLER = replace(SITE, name="controller")


def tls(who: str = "ours", trusts: str = "ours", key: str | None = None) -> Tls:
    return Tls(
        certificate=str(FILES / f"{who}.pem"), key=str(FILES / f"{key or who}.key"), ca=str(FILES / f"{trusts}-ca.pem")
    )


async def both(dialling: Tls, listening: Tls) -> tuple[Any, Any]:
    """What came of making one connection secure, at both ends."""
    got: dict[bool, Any] = {}
    socks = connection()

    async def one_end(sock: socket.socket, setting: Tls, is_listening: bool) -> None:
        try:
            got[is_listening] = await secure(sock, setting, listening=is_listening)
        except (AuthError, OSError) as error:
            got[is_listening] = error

    async with trio.open_nursery() as nursery:
        nursery.start_soon(one_end, socks[0], dialling, False)
        nursery.start_soon(one_end, socks[1], listening, True)
    return got[False], got[True]


def test_a_link_over_tls_carries_frames_of_any_size_both_ways() -> None:
    async def talk() -> None:
        socks = await both(tls(), tls())
        assert all(sock.version() in ("TLSv1.2", "TLSv1.3") for sock in socks)
        links = Link("other"), Link("one")
        draw = np.random.default_rng(0)
        bodies = [pa.py_buffer(draw.bytes(size)) for size in (1, 16_384, 3_000_000, 20_000_000, 5)]

        async def use(link: Link, sock: socket.socket) -> None:
            await link.resume(sock)
            for number, body in enumerate(bodies):
                link.send({"kind": "test", "number": number}, body)
                link.send({"kind": "small"})
            for number, body in enumerate(bodies):
                frame = await link.receive()
                assert frame is not None and frame[0]["number"] == number and frame[1].equals(body)
                assert await link.receive() == ({"kind": "small"}, None)
            await link.drain()

        async with trio.open_nursery() as writers:
            async with trio.open_nursery() as users:
                for link, sock in zip(links, socks, strict=True):
                    writers.start_soon(link.write)
                    users.start_soon(use, link, sock)
            for link in links:
                link.close()

    run(talk)


def test_a_link_goes_on_over_another_connection_with_tls() -> None:
    count, body = 60, pa.py_buffer(bytes(100_000))

    async def talk() -> None:
        one, other = Link("other"), Link("one")
        got: list[int] = []
        async with trio.open_nursery() as nursery:
            nursery.start_soon(one.write)
            for number in range(count):
                one.send({"kind": "test", "number": number}, body)
            while len(got) < count:
                here, there = await both(tls(), tls())
                async with trio.open_nursery() as ends:
                    ends.start_soon(one.resume, here)
                    ends.start_soon(other.resume, there)
                stop = len(got) + count // 3
                while len(got) < stop and (frame := await other.receive()) is not None:
                    got.append(frame[0]["number"])
                here.shutdown(socket.SHUT_RDWR)
            one.close()
            other.close()
        assert got == list(range(count))

    run(talk)


def test_what_has_come_is_decrypted_also_when_the_connection_is_given_up() -> None:
    """A link that cannot write any more does so, and still reads: what comes must not pass for plain text."""

    async def talk() -> None:
        here, there = await both(tls(), tls())
        there.send(b"before")
        here.shutdown(socket.SHUT_RDWR)
        buffer = bytearray(100)
        assert buffer[: here.recv_into(buffer)] == b"before"
        here.close()
        there.close()

    run(talk)


def test_what_goes_over_the_network_is_not_readable() -> None:
    async def talk() -> None:
        outer, inner = zip(connection(), connection(), strict=True)
        seen = bytearray()

        async def pass_on(here: socket.socket, there: socket.socket) -> None:
            while True:
                await trio.lowlevel.wait_readable(here)
                data = here.recv(65_536)
                if not data:
                    return
                seen.extend(data)
                there.sendall(data)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(pass_on, inner[0], inner[1])
            nursery.start_soon(pass_on, inner[1], inner[0])
            secured: list[socket.socket] = []

            async def one_end(sock: socket.socket, listening: bool) -> None:
                secured.append(await secure(sock, tls(), listening=listening))

            async with trio.open_nursery() as ends:
                ends.start_soon(one_end, outer[0], False)
                ends.start_soon(one_end, outer[1], True)
            secured[0].send(b"a secret that nobody else may know")
            await trio.lowlevel.wait_readable(secured[1])
            nursery.cancel_scope.cancel()
        assert len(seen) > 1_000 and b"nobody else may know" not in seen
        for sock in (*secured, *inner):
            sock.close()

    run(talk)


@pytest.mark.parametrize(
    ("dialling", "listening", "who", "says"),
    [
        (tls("theirs", trusts="ours"), tls(), 1, "the other end's certificate is not trusted"),
        (tls(), tls("theirs", trusts="ours"), 0, "the other end's certificate is not trusted"),
    ],
)
def test_a_certificate_of_another_authority_is_not_trusted(dialling: Tls, listening: Tls, who: int, says: str) -> None:
    async def talk() -> None:
        got = await both(dialling, listening)
        assert isinstance(got[who], AuthError) and says in str(got[who])
        for end in got:
            if isinstance(end, socket.socket):
                end.close()

    run(talk)


def test_an_end_without_tls_is_no_peer() -> None:
    async def talk() -> None:
        ours, theirs = connection()
        theirs.sendall(b"Fx this is not TLS at all, whatever it may be")
        with pytest.raises(AuthError, match="no TLS with the other end"):
            await secure(ours, tls(), listening=True)
        assert ours.fileno() < 0
        theirs.close()

    run(talk)


def test_a_silent_end_is_given_up() -> None:
    async def talk() -> None:
        ours, theirs = connection()
        with pytest.raises(TimeoutError, match="no TLS with the other end within 5 s"):
            await secure(ours, tls(), listening=True)
        theirs.close()

    trio.run(talk, clock=trio.testing.MockClock(autojump_threshold=0))


@pytest.mark.parametrize(
    ("setting", "says"),
    [
        (replace(tls(), certificate="/nowhere.pem"), "cannot read the certificate in /nowhere.pem: No such file"),
        (replace(tls(), key="/nowhere.key"), "cannot read the key in /nowhere.key"),
        (replace(tls(), ca="/nowhere.pem"), "cannot read the authority in /nowhere.pem"),
        (replace(tls(), ca=str(FILES / "ours.key")), "no certificate of an authority in .*ours.key"),
        (tls(key="theirs"), "are not a certificate and its key"),
        (tls(key="locked"), "without a pass phrase"),
    ],
)
def test_a_setting_of_no_use_is_an_error_that_names_the_file(setting: Tls, says: str) -> None:
    with pytest.raises(AuthError, match=says):
        context(setting, True)


def test_old_versions_and_strangers_are_ruled_out() -> None:
    for listening in (False, True):
        made = context(tls(), listening)
        assert made.minimum_version == ssl.TLSVersion.TLSv1_2
        assert made.verify_mode == ssl.CERT_REQUIRED


# Connections as processes make them.


async def meet(
    dialling: Identity, listening: Identity, refuse: Any = None, expected: str | None = None
) -> tuple[Any, Any, list[str]]:
    """What came of dialling at one end, of letting in at the other, and its log."""
    logged: list[str] = []
    let: list[Any] = []
    listener = address.listen("tcp:127.0.0.1:0")

    async def accept() -> None:
        await trio.lowlevel.wait_readable(listener)
        sock, _ = listener.accept()
        tune(sock)
        options = {} if refuse is None else {"refuse": refuse}
        let.append(await let_in(sock, listening, lambda _, text: logged.append(text), **options))

    made: Any
    async with trio.open_nursery() as nursery:
        nursery.start_soon(accept)
        try:
            made = await dial(address.bound(listener), dialling, expected)
        except (AuthError, HandshakeRefused, BadFrame, OSError) as error:
            made = error
    listener.close()
    return made, let[0], logged


@pytest.mark.parametrize("setting", [None, tls()], ids=["plain", "tls"])
def test_a_process_of_the_run_is_let_in_under_its_name(setting: Tls | None) -> None:
    async def talk() -> None:
        made, let, logged = await meet(replace(SITE, tls=setting), replace(CONTROLLER, tls=setting), None, "controller")
        peer, sock = let
        assert peer == "site-1" and not logged
        one, other = Link("controller"), Link("site-1")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(one.write)
            nursery.start_soon(one.resume, made)
            await other.resume(sock)
            one.send({"kind": "hello"})
            assert await other.receive() == ({"kind": "hello"}, None)
            one.close()
            other.close()

    run(talk)


@pytest.mark.parametrize("setting", [None, tls()], ids=["plain", "tls"])
@pytest.mark.parametrize(
    ("dialling", "refuse", "error", "says"),
    [
        (replace(SITE, secret=b"guessed"), None, AuthError, "does not know the secret of run 'dmz'"),
        (replace(SITE, run="other"), None, AuthError, "greeted for run 'other'"),
        (SITE, lambda name: "declared dead", HandshakeRefused, "'site-1' was refused: declared dead"),
    ],
    ids=["secret", "run", "dead"],
)
def test_others_are_sent_away_with_one_line_in_the_log(
    setting: Tls | None, dialling: Identity, refuse: Any, error: type[Exception], says: str
) -> None:
    async def talk() -> None:
        made, let, logged = await meet(replace(dialling, tls=setting), replace(CONTROLLER, tls=setting), refuse)
        assert isinstance(made, error)
        assert let is None
        [line] = logged
        assert line.startswith("closed a connection from 127.0.0.1:") and says in line and "\n" not in line

    run(talk)


def test_a_certificate_that_the_listener_does_not_trust_is_an_error_at_both_ends() -> None:
    """With TLS 1.3 the dialler hears of it only when it has begun to talk; it may then be cut off first."""

    async def talk() -> None:
        made, let, logged = await meet(
            replace(SITE, tls=tls("theirs", trusts="ours")), replace(CONTROLLER, tls=tls()), None
        )
        assert isinstance(made, AuthError | OSError)
        assert let is None and "certificate is not trusted" in logged[0]

    run(talk)


def test_another_process_than_the_one_expected_is_not_talked_to() -> None:
    async def talk() -> None:
        made, let, _ = await meet(SITE, CONTROLLER, None, "site-2")
        assert (
            isinstance(made, BadFrame)
            and "expected 'site-2'" in str(made)
            and "got an answer of 'controller'" in str(made)
        )
        let[1].close()

    run(talk)


def test_the_secret_is_not_shown() -> None:
    assert "0123456789abcdef" not in repr(SITE)
