"""The command line: `flux run MODULE:FLOW` runs a dataflow, `flux status` reports on it, `flux spec` checks Flux.

Each command is in `flux.commands`. An error is one message on standard error that says what to do.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Sequence

from .. import __version__
from ..model.error_location import traceback_of
from ..types.errors import FluxError
from . import (
    crash_point_list,
    experiment_runs,
    log_output,
    reconfigure_run,
    remote_processes,
    run_control,
    run_flow,
    spec_commands,
)
from .subcommand import WrongCall, discard

DONE, FAILED, WRONG_CALL, INTERRUPTED, READER_GONE = 0, 1, 2, 130, 141


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit status: 0 done, 1 it failed, 2 the call is wrong, 130 it was interrupted.

    141 says that the reader of its output went before the command was done.
    """
    options = _parsed(_parser(), arguments)
    log_output.set_up(options)
    try:
        return int(options.command(options))
    except FluxError as error:
        text = f"{error}\n{error.traceback or traceback_of(error)}" if options.traceback else str(error)
        with contextlib.suppress(BrokenPipeError):
            print(f"flux: {text}", file=sys.stderr)
        return WRONG_CALL if isinstance(error, WrongCall) else FAILED
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        discard(sys.stdout, sys.stderr)
        return READER_GONE


def _parsed(parser: argparse.ArgumentParser, arguments: Sequence[str] | None) -> argparse.Namespace:
    """Return the options; the words of a command that takes any number of them may stand after its options too."""
    options, rest = parser.parse_known_args(arguments)
    if rest and (not hasattr(options, "words") or any(word.startswith("-") for word in rest)):
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    if rest:
        options.words += rest
    return options


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="flux", description="Stateful Python dataflows that do not stop.")
    parser.add_argument("--version", action="version", version=f"flux {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    parts = (
        run_flow,
        run_control,
        reconfigure_run,
        remote_processes,
        crash_point_list,
        spec_commands,
        experiment_runs,
    )
    for part in parts:
        part.add(commands)
    for name, command in commands.choices.items():
        if name != "spec":  # It runs nothing that logs.
            log_output.add(command)
        command.add_argument("--traceback", action="store_true", help="print where in Flux an error arose, too")
    return parser
