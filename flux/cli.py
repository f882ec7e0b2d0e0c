"""The command line: `flux run MODULE:FLOW` runs a dataflow on this machine."""

from __future__ import annotations

import argparse
import importlib
import json
import os
import sys
import time
from collections.abc import Sequence

from .dataflow import Dataflow
from .errors import FluxError, PlanError
from .report import Report


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit status: 0 done, 1 the run failed, 2 the call is wrong."""
    parser = _parser()
    options = parser.parse_args(arguments)
    try:
        return int(options.command(options))
    except PlanError as error:
        print(f"flux: {error}", file=sys.stderr)
        return 2
    except FluxError as error:
        print(f"flux: the run failed: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("flux: stopped", file=sys.stderr)
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="flux", description="Stateful Python dataflows that do not stop.")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    run = commands.add_parser("run", help="run a dataflow on local processes until its source has ended")
    run.add_argument("flow", metavar="MODULE:FLOW", help="a module and the name of the Dataflow in it")
    run.add_argument("--sites", type=int, default=2, metavar="N", help="sites that hold partitions (default 2)")
    run.add_argument("--standby", type=int, default=0, metavar="N", help="spare sites (default 0)")
    run.add_argument("--availability", choices=("pairs", "none"), default="pairs")
    run.add_argument("--record", metavar="DIR", help="record every process's messages and effects there")
    run.add_argument("--plot", metavar="FILE", help="draw rates, latency and failures to FILE")
    run.add_argument("--json", action="store_true", help="print the report as one JSON document")
    run.set_defaults(command=_run)
    return parser


def _run(options: argparse.Namespace) -> int:
    flow = find_flow(options.flow)
    began = time.monotonic()
    report = flow.run(options.sites, options.standby, availability=options.availability, record=options.record)
    if options.plot:
        report.plot(options.plot)
    print(json.dumps(report.to_dict()) if options.json else _summary(flow, report, time.monotonic() - began))
    return 0


def find_flow(name: str) -> Dataflow:
    """The dataflow that MODULE:FLOW names, imported with the current directory on the path."""
    module_name, colon, attribute = name.partition(":")
    if not colon or not module_name or not attribute:
        raise PlanError(f"a flow is named MODULE:FLOW, such as myjob:flow, got {name!r}")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name != module_name.split(".")[0] and error.name != module_name:
            raise
        raise PlanError(f"no module {module_name!r} here or on the Python path; is it in {os.getcwd()}?") from error
    flow = getattr(module, attribute, None)
    if not isinstance(flow, Dataflow):
        there = sorted(key for key, value in vars(module).items() if isinstance(value, Dataflow))
        raise PlanError(
            f"{name}: {attribute!r} is not a Dataflow of {module_name}; it has {', '.join(there) or 'none'}"
        )
    return flow


def _summary(flow: Dataflow, report: Report, seconds: float) -> str:
    lines = [f"{flow.name}: {report.outputs:,} rows of output in {seconds:.1f} s"]
    for failure in report.failures:
        lines.append(
            f"  {failure.site} died at {failure.when_s:.2f} s; noticed after {failure.detected_after_s * 1e3:.0f} ms, "
            f"longest time without output {failure.output_gap_s * 1e3:.0f} ms"
        )
    return "\n".join(lines)
