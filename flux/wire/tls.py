"""TLS: encrypted and authenticated connections, for networks that are not trusted.

Each process has a certificate, and trusts those that one authority has signed, both ways. Names in certificates are not
checked: every process of a run is trusted alike, and the handshake on top says which one it is.

A TLS socket is used like a plain one, so that a link has one code for both: the exceptions of `recv_into` and `sendmsg`
say which direction to wait for. A part given to `sendmsg` is sent whole or, as far as the caller can see, not at all.
Then the next call must begin with the same part, as links do anyway.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from socket import socket

import trio

from ..types.errors import AuthError
from .sockets import BLOCKED, close_gently, until_ready

DEADLINE_S = 5.0
HANDSHAKE = b"\x16"  # The first byte of a connection with TLS.
VARIABLES = ("FLUX_TLS_CERT", "FLUX_TLS_KEY", "FLUX_TLS_CA")
OPTIONS = ("--tls-cert", "--tls-key", "--tls-ca")
TLS_OPTIONS = "--tls-cert, --tls-key and --tls-ca"


@dataclass(frozen=True, kw_only=True)
class Tls:
    """The setting: files in PEM format. The key must not be protected by a pass phrase."""

    certificate: str
    key: str
    ca: str


def tls_from(
    certificate: str | None, key: str | None, ca: str | None, environ: Mapping[str, str] = os.environ
) -> Tls | None:
    """Return the setting of three files, each given or else named by a variable; None if none of them is.

    Unusable files, and one or two without the others, are an `AuthError`.
    """
    given = zip((certificate, key, ca), VARIABLES, strict=True)
    paths = [path or environ.get(variable) or "" for path, variable in given]
    missing = [option for path, option in zip(paths, OPTIONS, strict=True) if not path]
    if len(missing) == len(paths):
        return None
    if missing:
        raise AuthError(
            f"TLS needs a certificate, its key and the authority that signed it; give {' and '.join(missing)}, too (or "
            f"name all three in {', '.join(VARIABLES)})"
        )
    tls = Tls(certificate=paths[0], key=paths[1], ca=paths[2])
    context(tls, listening=True)
    return tls


class TlsSocket(ssl.SSLSocket):
    """A connection with TLS, with as much of a socket's interface as links use."""

    def sendmsg(self, buffers: Iterable[memoryview]) -> int:  # type: ignore[override]  # That of ssl only raises.
        """Send the parts in order until one would block; return the bytes sent."""
        sent = 0
        for part in buffers:
            try:
                sent += self.send(part)
            except BLOCKED:
                if sent:
                    return sent
                raise
        return sent

    def shutdown(self, how: int) -> None:
        """Shut the connection down; what has arrived is still decrypted, where that of ssl returns it encrypted."""
        socket.shutdown(self, how)


async def secure(sock: socket, tls: Tls, *, listening: bool, deadline_s: float = DEADLINE_S) -> socket:
    """Return the same connection with TLS, once both ends have shown their certificates.

    `AuthError` says which end's certificate was not accepted, if that is known; `OSError`, that the connection broke or
    timed out. When anything is raised it is closed.
    """
    try:
        secured = context(tls, listening).wrap_socket(sock, server_side=listening, do_handshake_on_connect=False)
    except BaseException:
        sock.close()
        raise
    try:
        with trio.fail_after(deadline_s):
            while True:
                try:
                    secured.do_handshake()
                    return secured
                except BLOCKED as blocked:
                    await until_ready(secured, blocked, reading=True)
    except BaseException as error:
        if isinstance(error, ssl.SSLError):
            await close_gently(secured)  # The other end has been sent an alert that says why.
        secured.close()
        if isinstance(error, ssl.SSLCertVerificationError):
            raise AuthError(
                f"the other end's certificate is not trusted: {error.verify_message}. It must be signed by the "
                f"authority in {tls.ca}"
            ) from error
        if isinstance(error, ssl.SSLError) and not isinstance(error, ssl.SSLEOFError | ssl.SSLZeroReturnError):
            raise AuthError(
                f"no TLS with the other end: {error.reason}. Both ends need TLS switched on, and certificates signed "
                "by an authority that the other trusts"
            ) from error
        if isinstance(error, ssl.SSLError | ConnectionResetError):
            raise ConnectionResetError(
                "the other end closed the connection during the TLS handshake; was it given TLS, and a certificate "
                "that this run's authority has signed?"
            ) from error
        if isinstance(error, trio.TooSlowError):
            raise TimeoutError(f"no TLS with the other end within {deadline_s:g} s") from error
        raise


@cache
def context(tls: Tls, listening: bool) -> ssl.SSLContext:
    """Return the `ssl` context of a setting; an `AuthError` names the file that is unusable."""
    for what, path in (("certificate", tls.certificate), ("key", tls.key), ("authority", tls.ca)):
        try:
            Path(path).read_bytes()
        except OSError as error:
            raise AuthError(f"TLS: cannot read the {what} in {path}: {error.strerror}") from error
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if listening else ssl.PROTOCOL_TLS_CLIENT)
    made.sslsocket_class = TlsSocket
    made.minimum_version = ssl.TLSVersion.TLSv1_2
    made.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
    made.check_hostname = False
    made.verify_mode = ssl.CERT_REQUIRED
    try:
        made.load_verify_locations(tls.ca)
    except ssl.SSLError as error:
        raise AuthError(f"TLS: there is no certificate of an authority in {tls.ca}: {error.reason}") from error
    try:
        # Without a password OpenSSL would ask for one at the terminal, and wait.
        made.load_cert_chain(tls.certificate, tls.key, password="")
    except (ssl.SSLError, ValueError) as error:
        raise AuthError(
            f"TLS: {tls.certificate} and {tls.key} are not a certificate and its key, in PEM format and without a "
            f"pass phrase: {error}"
        ) from error
    return made
