"""The command line: `flux run MODULE:FLOW` runs a dataflow on this machine, `flux spec` checks the protocol."""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from .dataflow import Dataflow
from .errors import FluxError, PlanError
from .report import Report
from .site.crash import crash_points


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
    points = commands.add_parser("crash-points", help="list where FLUX_CRASH_AT can kill a process of a run")
    points.add_argument("--json", action="store_true", help="print one JSON document")
    points.set_defaults(command=_crash_points)
    _add_spec(commands.add_parser("spec", help="check the protocol's machines against their specification"))
    return parser


def _add_spec(spec: argparse.ArgumentParser) -> None:
    commands = spec.add_subparsers(metavar="COMMAND", required=True)
    check = commands.add_parser("check", help="explore small worlds to the end and large ones at random")
    depth = check.add_mutually_exclusive_group()
    depth.add_argument("--quick", action="store_true", help="under a minute (the default)")
    depth.add_argument("--deep", action="store_true", help="minutes: more and larger worlds")
    check.add_argument("--seed", type=int, default=0, metavar="N", help="the first of the random worlds")
    check.add_argument("--json", action="store_true", help="print one JSON document")
    check.set_defaults(command=_spec_check)
    show = commands.add_parser("show", help="print a machine's table as the thesis prints it")
    show.add_argument("machine", metavar="MACHINE")
    show.set_defaults(command=_spec_show)
    replay = commands.add_parser("replay", help="walk the world of a seed again; print the story of its failure")
    replay.add_argument("seed", type=int, metavar="SEED")
    replay.add_argument("--scale", type=int, default=1, metavar="N", help="20 for a world of `check --deep`")
    replay.add_argument("--full", action="store_true", help="print the whole run, not a shrunk one")
    replay.set_defaults(command=_spec_replay)
    rules = commands.add_parser("rules", help="take each rule of the protocol out; tell what goes wrong without it")
    rules.add_argument("numbers", nargs="*", type=int, metavar="N", help="numbers of rules (default: all)")
    rules.add_argument("--json", action="store_true", help="print one JSON document")
    rules.set_defaults(command=_spec_rules)
    mutate = commands.add_parser("mutate", help="spoil one guard or state change at a time; does the check notice?")
    mutate.add_argument("machine", nargs="?", metavar="MACHINE", help="one module of protocols/ (default: all)")
    mutate.add_argument("--results", metavar="FILE", help="go on where an earlier run with this file stopped")
    mutate.add_argument("--json", action="store_true", help="print one JSON document")
    mutate.set_defaults(command=_spec_mutate)


def _spec_check(options: argparse.Namespace) -> int:
    from .spec.check import check

    checked = check(options.deep, options.seed, _progress(options.json))
    if options.json:
        print(json.dumps(dataclasses.asdict(checked)))
    else:
        print(
            f"{checked.worlds:,} worlds ({checked.large:,} of them large), {checked.states:,} states, "
            f"{checked.transitions:,} transitions, "
            f"{checked.events:,} random events, {checked.faults:,} faults, {checked.probes:,} worlds with bad input, "
            f"{checked.seconds:.0f} s: "
            f"{len(checked.violations)} violations"
        )
        for violation in checked.violations:
            print("\n".join(violation.values()))
    return 1 if checked.violations else 0


def _spec_show(options: argparse.Namespace) -> int:
    from .spec.show import MACHINES, show

    if options.machine not in MACHINES:
        raise PlanError(f"no machine is called {options.machine!r}; there are {', '.join(MACHINES)}")
    print(show(options.machine))
    return 0


def _spec_replay(options: argparse.Namespace) -> int:
    from .spec.replay import main as replay

    scale = ["--scale", str(options.scale)]
    return replay([str(options.seed), *scale, *(["--full"] if options.full else [])])


def _spec_rules(options: argparse.Namespace) -> int:
    from .spec.rules import RULES
    from .spec.rules.report import report

    unknown = set(options.numbers) - {rule.number for rule in RULES}
    if unknown:
        raise PlanError(f"no rule has the number {min(unknown)}; there are 1 to {RULES[-1].number}")
    reports = report(options.numbers, lambda line: print(line, file=sys.stderr, flush=True))
    if options.json:
        print(json.dumps([dataclasses.asdict(rule) for rule in reports]))
    else:
        print("\n\n\n".join(map(str, reports)))
    return 0 if all(rule.is_settled for rule in reports) else 1


def _spec_mutate(options: argparse.Namespace) -> int:
    from .spec.mutants import MODULES
    from .spec.mutate import mutate

    if options.machine is not None and options.machine not in MODULES:
        raise PlanError(f"no module of protocols/ is called {options.machine!r}; there are {', '.join(MODULES)}")
    modules = MODULES if options.machine is None else (options.machine,)
    results = None if options.results is None else Path(options.results)
    mutated = mutate(modules, results, _progress(options.json))
    if options.json:
        print(json.dumps(dataclasses.asdict(mutated)))
    else:
        print(f"{mutated.mutants} mutants, {mutated.noticed} noticed, {len(mutated.survivors)} survivors")
    return 0


def _progress(quiet: bool) -> Callable[[str], None]:
    """Lines for people on the error output; nothing beside a JSON document."""
    return (lambda line: None) if quiet else (lambda line: print(line, file=sys.stderr, flush=True))


def _crash_points(options: argparse.Namespace) -> int:
    points = crash_points()
    if options.json:
        print(json.dumps(points))
    else:
        for kind, of_kind in points.items():
            print("\n".join([f"{kind}:", *(f"  {point}" for point in of_kind)]))
    return 0


def _run(options: argparse.Namespace) -> int:
    flow = find_flow(options.flow)
    began = time.monotonic()
    try:
        report = flow.run(options.sites, options.standby, availability=options.availability, record=options.record)
    except OSError as error:
        raise FluxError(str(error)) from error
    print(json.dumps(report.to_dict()) if options.json else _summary(flow, report, time.monotonic() - began))
    if options.plot:
        try:
            report.plot(options.plot)
        except (OSError, ValueError) as error:
            raise FluxError(f"the run is complete, but its picture cannot be written: {error}") from error
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
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
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
