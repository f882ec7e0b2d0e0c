"""`flux crash-points`: where FLUX_CRASH_AT can kill a process of a run."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING

from ..site.crash_points import crash_points
from .subcommand import print_result

if TYPE_CHECKING:
    from .subcommand import Commands


def add(commands: Commands) -> None:
    """Add `flux crash-points` to the parser."""
    points = commands.add_parser("crash-points", help="list where FLUX_CRASH_AT can kill a process of a run")
    points.add_argument("--json", action="store_true", help="print one JSON document")
    points.set_defaults(command=_crash_points)


def _crash_points(options: argparse.Namespace) -> int:
    points = crash_points()
    if options.json:
        print_result(json.dumps(points))
    else:
        for kind, of_kind in points.items():
            print_result("\n".join([f"{kind}:", *(f"  {point}" for point in of_kind)]))
    return 0
