"""`flux reconfigure`: change the parameters, the code and the state of a step of a run that is in progress."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING, Any

from ..driver.change_request import SCHEDULERS
from ..wire import requests
from .run_control import Target, add_json
from .subcommand import WrongCall, print_result

if TYPE_CHECKING:
    from .subcommand import Commands

_MARGIN_S = 600.0  # Beyond the time to the commit: each partition needs a row after it.


def add(commands: Commands) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "reconfigure",
        help="change a step of a run while rows flow",
        description="Change the parameters, the code and the state of a step while rows flow: rows up to a position "
        "are processed as before, all others by what is given here.",
    )
    Target.add_options(parser)
    parser.add_argument(
        "words",
        nargs="+",
        metavar="[RUN] STEP [KEY=VALUE ...]",
        help="the dataflow's name, which may be left out if there is one run; the step; parameters that are to have "
        "other values, as JSON or as text",
    )
    parser.add_argument("--operator", default="", metavar="MODULE:CLASS", help="the new class of the step")
    parser.add_argument(
        "--migrate", default="", metavar="MODULE:FUNCTION", help="makes new state of old, piece by piece"
    )
    parser.add_argument(
        "--module", action="append", default=[], metavar="MODULE", help="a further module to be read anew (repeatable)"
    )
    parser.add_argument(
        "--scheduler", choices=[*SCHEDULERS], default="sn", help="which position is chosen (default sn)"
    )
    parser.add_argument(
        "--timeout", type=float, default=60.0, metavar="SECONDS", help="give up if it is not agreed on by then (60)"
    )
    add_json(parser)
    parser.set_defaults(command=_reconfigure)


def _reconfigure(options: argparse.Namespace) -> int:
    names = [word for word in options.words if "=" not in word]
    most = 1 if options.controller is not None else 2
    if not 1 <= len(names) <= most:
        raise WrongCall(
            f"expected {'STEP' if most == 1 else '[RUN] STEP'} and parameters, got {' '.join(options.words)}"
        )
    options.name = names[0] if len(names) == 2 else None
    wanted = requests.StepWanted(
        step=names[-1],
        operator=options.operator,
        migrate=options.migrate,
        modules=tuple(options.module),
        parameters=dict(map(_parameter, (word for word in options.words if "=" in word))),
    )
    request = requests.ReconfigureRequest(changes=(wanted,), scheduler=options.scheduler, within_s=options.timeout)
    change = Target.of(options).ask(request, options.timeout + _MARGIN_S)
    print_result(json.dumps(change) if options.json else _described(change))
    return 0


def _parameter(word: str) -> tuple[str, Any]:
    name, _, text = word.partition("=")
    try:
        return name, json.loads(text)
    except ValueError:
        return name, text


def _described(change: dict[str, Any]) -> str:
    if change["delay_s"] is None:
        when = "the stream ended before all partitions had a row after that"
    else:
        when = f"each partition was past it {change['delay_s']:.3f} s after it was asked for"
    return f"change {change['number']} of {', '.join(change['steps'])}: from row {change['position'] + 1:,} on; {when}"
