"""`flux experiment NAME`: measure what the thesis and Flux claim, with a picture and a check that the run was valid.

The experiments are in the repository and not in the installed package.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .subcommand import WrongCall, print_result

if TYPE_CHECKING:
    from .subcommand import Commands

_ROOT = Path(__file__).resolve().parents[2]


def add(commands: Commands) -> None:
    """Add `flux experiment` to the parser."""
    experiment = commands.add_parser("experiment", help="measure a claim of the thesis and of Flux")
    experiment.add_argument("name", metavar="NAME", nargs="?", help="one of the experiments; left out, they are listed")
    experiment.add_argument("--quick", action="store_true", help="a short form, to see that it works")
    experiment.add_argument("--json", action="store_true", help="print one JSON document")
    experiment.set_defaults(command=_experiment)


def _experiment(options: argparse.Namespace) -> int:
    perform, format_findings, known = _load()
    if options.name is None:
        listed = {name: {"claim": each.claim, "minutes": each.minutes} for name, each in known.items()}
        lines = [f"{name} ({each.minutes} minutes)\n    {each.claim}" for name, each in known.items()]
        print_result(json.dumps(listed) if options.json else "\n".join(lines))
        return 0
    if options.name not in known:
        raise WrongCall(f"no experiment is called {options.name!r}; there are {', '.join(known)}")

    def progress(line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    document = perform(known[options.name], options.quick, progress)
    print_result(json.dumps(document) if options.json else format_findings(document))
    return 0 if document["valid"] and all(finding["holds"] for finding in document["findings"]) else 1


def _load() -> tuple[Any, Any, Any]:
    """Import the experiments of the repository that this package is in."""
    if not (_ROOT / "experiments" / "catalog.py").exists():
        raise WrongCall(
            f"the experiments are in Flux's repository, and {_ROOT} is none: clone it, and call `make venv` and "
            "`.venv/bin/flux experiment` there"
        )
    if str(_ROOT) not in sys.path:
        sys.path.insert(0, str(_ROOT))
    from experiments.catalog import EXPERIMENTS  # type: ignore[import-not-found, unused-ignore]
    from experiments.experiment import format_findings, perform  # type: ignore[import-not-found, unused-ignore]

    return perform, format_findings, EXPERIMENTS
