"""`flux spec`: check the protocol's machines against their specification, show, replay and mutate them.

The modules of `flux.spec` are imported when they are needed, so that no other command waits for them.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from ..types.errors import FluxError
from .subcommand import WrongCall, print_result

if TYPE_CHECKING:
    from .subcommand import Commands

_WORLDS = 50  # Of `simulate`, if nothing is said.


def add(commands: Commands) -> None:
    """Add `flux spec` to the parser."""
    spec = commands.add_parser("spec", help="check the protocol's machines against their specification")
    parts = spec.add_subparsers(metavar="COMMAND", required=True)
    check = parts.add_parser("check", help="explore small worlds to the end and large ones at random")
    depth = check.add_mutually_exclusive_group()
    depth.add_argument("--quick", action="store_true", help="under a minute (the default)")
    depth.add_argument("--deep", action="store_true", help="minutes: more and larger worlds")
    check.add_argument("--seed", type=int, default=0, metavar="N", help="the first of the random worlds")
    check.add_argument("--json", action="store_true", help="print one JSON document")
    check.set_defaults(command=_check)
    show = parts.add_parser("show", help="print a machine's table as the thesis prints it")
    show.add_argument("machine", metavar="MACHINE")
    show.set_defaults(command=_show)
    replay = parts.add_parser("replay", help="walk the world of a seed again; print the story of its failure")
    replay.add_argument("seed", type=int, metavar="SEED")
    replay.add_argument("--changes", action="store_true", help="the code of stages changes meanwhile")
    replay.add_argument("--scale", type=int, default=1, metavar="N", help="20 for a world of `check --deep`")
    replay.add_argument("--full", action="store_true", help="print the whole run, not a shrunk one")
    replay.set_defaults(command=_replay)
    rules = parts.add_parser("rules", help="remove one rule of the protocol at a time; show what fails without it")
    rules.add_argument("numbers", nargs="*", type=int, metavar="N", help="numbers of rules (default: all)")
    rules.add_argument("--json", action="store_true", help="print one JSON document")
    rules.set_defaults(command=_rules)
    simulate = parts.add_parser("simulate", help="run whole processes on a simulated network, disk and clock")
    simulate.add_argument("--seed", type=int, default=0, metavar="N", help="the first of the worlds")
    length = simulate.add_mutually_exclusive_group()
    length.add_argument("--worlds", type=int, metavar="N", help=f"so many worlds (default: {_WORLDS})")
    length.add_argument("--minutes", type=float, metavar="M", help="as many worlds as M minutes allow")
    simulate.add_argument("--faults", metavar="KIND,...", help="only faults of these kinds; `--faults list` lists them")
    simulate.add_argument("--jobs", type=int, default=1, metavar="N", help="worlds at once (default: 1)")
    simulate.add_argument("--trace", action="store_true", help="print every effect of the first world, and end")
    simulate.add_argument("--without", metavar="N,...", help="with --trace: leave out the faults of these numbers")
    simulate.add_argument("--rows-max", type=int, metavar="N", help="with --trace: most rows of a source")
    simulate.add_argument("--sites-max", type=int, metavar="N", help="with --trace: most sites at the start")
    simulate.add_argument("--json", action="store_true", help="print one JSON document")
    simulate.set_defaults(command=_simulate)
    mutate = parts.add_parser("mutate", help="spoil one guard or state change at a time; does the check notice?")
    mutate.add_argument(
        "machine",
        nargs="?",
        metavar="MACHINE",
        help="one module of protocols/, or with --shell or --library of flux/ (default: all)",
    )
    which = mutate.add_mutually_exclusive_group()
    which.add_argument("--shell", action="store_true", help="mutate the code around the machines; try tests and worlds")
    which.add_argument("--library", action="store_true", help="mutate the operators of the library; try tests")
    mutate.add_argument(
        "--sample", type=int, metavar="N", help="with --shell or --library: try so many, drawn at random"
    )
    mutate.add_argument("--seed", type=int, default=0, metavar="N", help="of the sample")
    mutate.add_argument("--jobs", type=int, metavar="N", help="mutants at once (default: as many as there are cores)")
    mutate.add_argument("--results", metavar="FILE", help="go on where an earlier run with this file stopped")
    mutate.add_argument("--json", action="store_true", help="print one JSON document")
    mutate.set_defaults(command=_mutate)


def _check(options: argparse.Namespace) -> int:
    from ..spec.check import check

    checked = check(options.deep, options.seed, _progress(options.json))
    if options.json:
        print_result(json.dumps(dataclasses.asdict(checked)))
    else:
        print_result(
            f"{checked.worlds:,} worlds ({checked.large:,} of them large), {checked.states:,} states, "
            f"{checked.transitions:,} transitions, "
            f"{checked.events:,} random events, {checked.faults:,} faults, {checked.probes:,} worlds with bad input, "
            f"{checked.walked / checked.walking_s:,.0f} events/s on one core in large ones, {checked.seconds:.0f} s: "
            f"{len(checked.violations)} violations"
        )
        for violation in checked.violations:
            print_result("\n".join(violation.values()))
    return 1 if checked.violations else 0


def _show(options: argparse.Namespace) -> int:
    from ..spec.show import MACHINES, show

    if options.machine not in MACHINES:
        raise WrongCall(f"no machine is called {options.machine!r}; there are {', '.join(MACHINES)}")
    print_result(show(options.machine))
    return 0


def _replay(options: argparse.Namespace) -> int:
    from ..spec.replay import main as replay

    scale = ["--scale", str(options.scale)]
    flags = [flag for flag in ("--changes", "--full") if getattr(options, flag[2:])]
    return replay([str(options.seed), *scale, *flags])


def _rules(options: argparse.Namespace) -> int:
    from ..spec.rules import RULES
    from ..spec.rules.rules_report import report

    unknown = set(options.numbers) - {rule.number for rule in RULES}
    if unknown:
        raise WrongCall(f"no rule has the number {min(unknown)}; there are 1 to {RULES[-1].number}")
    reports = report(options.numbers, lambda line: print(line, file=sys.stderr, flush=True))
    if options.json:
        print_result(json.dumps([dataclasses.asdict(rule) for rule in reports]))
    else:
        print_result("\n\n\n".join(map(str, reports)))
    return 0 if all(rule.is_settled for rule in reports) else 1


def _simulate(options: argparse.Namespace) -> int:
    from ..simulation.fault_injector import FAULTS
    from ..simulation.swarm import Smaller, run_world, simulate_worlds

    kinds = tuple(options.faults.split(",")) if options.faults else ()
    if kinds == ("list",):
        print_result("\n".join(f"{kind:8} {text}" for kind, text in FAULTS.items()))
        return 0
    unknown = [kind for kind in kinds if kind not in FAULTS]
    if unknown:
        raise WrongCall(f"no kind of fault is called {unknown[0]!r}; there are {', '.join(FAULTS)}")
    if options.jobs < 1:
        raise WrongCall(f"--jobs is how many worlds run at once, at least 1; got {options.jobs}")
    smaller = Smaller(left_out=_numbers(options.without), rows_max=options.rows_max, sites_max=options.sites_max)
    if smaller != Smaller() and not options.trace:
        raise WrongCall("--without, --rows-max and --sites-max make one world smaller: give --trace too")
    if options.trace:
        result = run_world(options.seed, kinds, keeps_trace=True, **smaller.settings())
        print_result(json.dumps(dataclasses.asdict(result)) if options.json else "\n".join(result.trace))
        return 1 if result.violations else 0
    worlds = _WORLDS if options.worlds is None and options.minutes is None else options.worlds
    say = _progress(options.json)
    swarm = simulate_worlds(options.seed, worlds, options.minutes, say, kinds=kinds, jobs=options.jobs)
    if options.json:
        print_result(json.dumps(dataclasses.asdict(swarm)))
    else:
        print_result(str(swarm))
        for failure in swarm.failures:
            story = ["", f"The world of seed {failure['seed']} failed:", *failure["violations"]]
            size = f"with {failure['rows']} rows of each source on {failure['sites']} sites, and these faults:"
            again = ["To see it, and the world as it was:", failure["replay"], failure["replay_whole"]]
            print_result("\n".join([*story, size, *failure["faults"], *again]))
    return 1 if swarm.failures else 0


def _numbers(text: str | None) -> frozenset[int]:
    """Return the numbers in a list with commas."""
    try:
        return frozenset(map(int, text.split(","))) if text else frozenset()
    except ValueError:
        raise WrongCall(f"--without has numbers of faults, such as 2,5; got {text!r}") from None


def _mutate(options: argparse.Namespace) -> int:
    from ..spec.mutants import MODULES
    from ..spec.mutate import NothingToCompareWith, mutate

    is_sampled = options.shell or options.library
    if options.sample is not None and not is_sampled:
        raise WrongCall("--sample is for --shell and --library; without them every mutant is tried")
    if is_sampled:
        from ..mutation.library_mutation import LIBRARY_MODULES, mutate_library
        from ..mutation.shell_mutation import SHELL_MODULES, mutate_shell

        known, mutate_some = (SHELL_MODULES, mutate_shell) if options.shell else (LIBRARY_MODULES, mutate_library)
    else:
        known = MODULES
    if options.machine is not None and options.machine not in known:
        folder = "flux/" if is_sampled else "protocols/"
        raise WrongCall(f"no module of {folder} is called {options.machine!r}; there are {', '.join(known)}")
    modules = known if options.machine is None else (options.machine,)
    results = None if options.results is None else Path(options.results)
    try:
        if is_sampled:
            mutated = mutate_some(modules, options.sample, options.seed, results, _progress(options.json), options.jobs)
        else:
            mutated = mutate(modules, results, _progress(options.json), options.jobs)
    except NothingToCompareWith as error:
        raise FluxError(str(error)) from error
    if options.json:
        print_result(json.dumps(dataclasses.asdict(mutated)))
    else:
        print_result(
            f"{mutated.mutants} mutants, {mutated.noticed} noticed, {len(mutated.survivors)} survivors, of which "
            f"{len(mutated.not_argued)} are not argued"
        )
    return 1 if mutated.not_argued else 0


def _progress(quiet: bool) -> Callable[[str], None]:
    """Return what prints progress on standard error; with a JSON document it prints nothing."""
    return (lambda line: None) if quiet else (lambda line: print(line, file=sys.stderr, flush=True))
