"""The credentials of a command: the run's secret and TLS, which prove to remote processes that it belongs to the run.

Neither the secret nor a key is ever an argument itself, because every user of a machine sees arguments.
"""

from __future__ import annotations

import argparse

from ..wire import secret, tls
from ..wire.connections import Identity
from ..wire.requests import command


def add(parser: argparse.ArgumentParser) -> None:
    """Add the options for the secret that all processes of a run share, and for TLS."""
    group = parser.add_argument_group("trust between machines")
    where = f"a file with the run's secret (default: ${secret.VARIABLE})"
    group.add_argument("--secret-file", metavar="FILE", help=where)
    files = (
        "encrypt every connection: this process's certificate",
        "its key",
        "the authority that has signed every process's certificate",
    )
    for option, variable, what in zip(tls.OPTIONS, tls.VARIABLES, files, strict=True):
        group.add_argument(option, metavar="FILE", help=f"{what}, in PEM format (default: ${variable})")


def of(options: argparse.Namespace) -> Identity:
    """Return the identity of the command towards the run: it has the run's secret, and no process name."""
    trusted = tls.tls_from(options.tls_cert, options.tls_key, options.tls_ca)
    return command(secret.secret_from(options.secret_file), trusted)
