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
from . import crash_point_list, experiment_runs, log_output, remote_processes, run_control, run_flow, spec_commands
from .subcommand import WrongCall, discard

DONE, FAILED, WRONG_CALL, INTERRUPTED, READER_GONE = 0, 1, 2, 130, 141


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit status: 0 done, 1 it failed, 2 the call is wrong, 130 it was interrupted.

    141 says that the reader of its output went before the command was done.
    """
    options = _parser().parse_args(arguments)
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


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="flux", description="Stateful Python dataflows that do not stop.")
    parser.add_argument("--version", action="version", version=f"flux {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    for part in (run_flow, run_control, remote_processes, crash_point_list, spec_commands, experiment_runs):
        part.add(commands)
    for name, command in commands.choices.items():
        if name != "spec":  # It runs nothing that logs.
            log_output.add(command)
        command.add_argument("--traceback", action="store_true", help="print where in Flux an error arose, too")
    return parser
