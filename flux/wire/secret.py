"""The secret of a run, by which its processes authenticate each other.

A local run makes one and passes it to the processes it starts. Processes on other machines get it from a file or from
the environment; never from a command line, which every user of a machine can read.
"""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Mapping
from pathlib import Path

from ..types.errors import AuthError

VARIABLE = "FLUX_SECRET"

_NEW_BYTES = 32
_MIN_BYTES = 16  # A shorter one can be guessed from one recorded handshake.


def new_secret() -> bytes:
    """Return a random secret."""
    return secrets.token_bytes(_NEW_BYTES)


def secret_from(path: str | Path | None = None, environ: Mapping[str, str] = os.environ) -> bytes:
    """Return the secret in the file at `path`, or else in the variable FLUX_SECRET, without blanks around it.

    >>> secret_from(environ={"FLUX_SECRET": "correct horse battery staple"})
    b'correct horse battery staple'
    """
    if path is not None:
        source, secret = f"the file {path}", _read(Path(path))
    elif VARIABLE in environ:
        source, secret = f"the variable {VARIABLE}", os.fsencode(environ[VARIABLE])
    else:
        raise AuthError(
            f"there is no secret: name a file that holds it by --secret-file, or set the variable {VARIABLE}, to the "
            "same value for every process of the run; `openssl rand -hex 32` makes a good one"
        )
    secret = secret.strip()
    if not secret:
        raise AuthError(f"{source} is empty; write the run's secret into it, the same for every process of the run")
    if len(secret) < _MIN_BYTES:
        raise AuthError(
            f"the secret in {source} has only {len(secret)} bytes and may be guessed; {_MIN_BYTES} are the minimum: "
            "`openssl rand -hex 32` makes a good one"
        )
    return secret


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            secret = file.read()
    except OSError as error:
        raise AuthError(f"cannot read the run's secret from {path}: {error.strerror}") from error
    if mode & (stat.S_IWGRP | stat.S_IRWXO):  # A group may read it: it was made for that.
        raise AuthError(f"others than its owner can open {path}, which holds the run's secret: `chmod 600 {path}`")
    return secret
