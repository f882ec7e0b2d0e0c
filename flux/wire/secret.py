"""The secret of a run: whoever knows it is one of its processes.

A local run makes one and hands it to the processes it starts. Processes on other machines are given it in a
file, or in the environment; never on a command line, which every user of a machine can read.
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
_LEAST_BYTES = 16  # Shorter ones can be guessed by who has overheard one greeting.


def new_secret() -> bytes:
    """A secret that nobody can guess."""
    return secrets.token_bytes(_NEW_BYTES)


def secret_from(path: str | Path | None = None, environ: Mapping[str, str] = os.environ) -> bytes:
    """The secret in the file at `path`, or else in the variable FLUX_SECRET. Blanks around it do not count.

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
    if len(secret) < _LEAST_BYTES:
        raise AuthError(
            f"the secret in {source} has only {len(secret)} bytes and may be guessed; {_LEAST_BYTES} are the least: "
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
    if mode & (stat.S_IWGRP | stat.S_IRWXO):  # A group may read it: somebody has made the group for that.
        raise AuthError(f"others than its owner can open {path}, which holds the run's secret: `chmod 600 {path}`")
    return secret
