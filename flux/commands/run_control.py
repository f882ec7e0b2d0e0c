"""`flux status`, `top`, `metrics`, `kill`, `drain`, `add-site` and `stop`: commands for a run that is in progress."""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..driver.local import registry
from ..driver.metrics import Metrics
from ..types.errors import FluxError
from ..wire import requests
from ..wire.connections import Identity
from . import credentials
from .remote_processes import tcp
from .subcommand import print_result
from .top import screen, watch

if TYPE_CHECKING:
    from .subcommand import Commands

_STATUS_TIMEOUT_S = 10.0
_KILL_TIMEOUT_S = 30.0
_ADD_TIMEOUT_S = 90.0
_DRAIN_TIMEOUT_S = 600.0
_STOP_TIMEOUT_S = 60.0
_LOOK_EVERY_S = 0.1
_EVERY_MAX_S = 86_400.0


def add(commands: Commands) -> None:
    """Add the seven commands to the parser."""
    status = commands.add_parser("status", help="print what a run is doing")
    _add_target(status)
    add_json(status)
    status.set_defaults(command=_status)
    top = commands.add_parser("top", help="watch a run: processes, rates, latency, buffers, recovery")
    _add_target(top)
    top.add_argument("--once", action="store_true", help="print once and end; also if the output is not a terminal")
    top.add_argument("--json", action="store_true", help="print one JSON document and end")
    top.add_argument("--every", type=_seconds, default=1.0, metavar="SECONDS", help="how often to look (default 1)")
    top.add_argument(
        "--wait",
        type=_seconds,
        metavar="SECONDS",
        help="how long to wait for a run that is not there yet (default: until Ctrl-C, or with --once and --json not)",
    )
    top.set_defaults(command=_top)
    metrics = commands.add_parser("metrics", help="print the metrics of a run, as Prometheus reads them")
    _add_target(metrics)
    add_json(metrics)
    metrics.set_defaults(command=_metrics)
    kill = commands.add_parser("kill", help="SIGKILL a process of a run, to see what happens")
    _add_target(kill)
    kill.add_argument("process", metavar="PROCESS", help="a site, ingress, egress or controller")
    add_json(kill)
    kill.set_defaults(command=_kill)
    drain = commands.add_parser("drain", help="move everything off a site and stop it")
    _add_target(drain)
    drain.add_argument("site", metavar="SITE")
    add_json(drain)
    drain.set_defaults(command=_drain)
    add_site = commands.add_parser("add-site", help="start a further site")
    _add_target(add_site)
    add_site.add_argument("--standby", action="store_true", help="a spare: it takes copies only when some are lost")
    add_json(add_site)
    add_site.set_defaults(command=_add_site)
    stop = commands.add_parser("stop", help="end a run now; its output up to then is right")
    _add_target(stop)
    add_json(stop)
    stop.set_defaults(command=_stop)


def _add_target(parser: argparse.ArgumentParser) -> None:
    Target.add_options(parser)
    parser.add_argument(
        "name",
        nargs="?",
        metavar="NAME",
        help="the dataflow's name, or the process id of its program; may be left out if there is one run",
    )


def add_json(parser: argparse.ArgumentParser) -> None:
    """Add `--json` to a command."""
    parser.add_argument("--json", action="store_true", help="print one JSON document")


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds <= _EVERY_MAX_S:
        raise argparse.ArgumentTypeError(
            f"expected seconds above 0 and up to {_EVERY_MAX_S:g}, such as 0.5, got {text!r}"
        )
    return seconds


@dataclass(frozen=True)
class Target:
    """A run that answers commands."""

    address: str
    own: Identity

    @staticmethod
    def add_options(parser: argparse.ArgumentParser) -> None:
        """Add the options of a command that may be for a remote run."""
        parser.add_argument("--controller", metavar="HOST:PORT", help="ask the controller of a remote run")
        credentials.add(parser)

    @staticmethod
    def of(options: argparse.Namespace) -> Target:
        """Return the run that a command is for."""
        if options.controller is not None:
            return Target(tcp(options.controller), credentials.of(options))
        entry = registry.find(options.name)
        return Target(entry.address, requests.command(bytes.fromhex(entry.secret)))

    def ask(self, request: requests.Request, timeout_s: float) -> dict[str, Any]:
        """Send a request and return the answer."""
        return requests.ask(self.address, self.own, request, timeout_s)

    def status(self) -> dict[str, Any]:
        """Return what the run is doing."""
        return self.ask(requests.StatusRequest(), _STATUS_TIMEOUT_S)

    def outcome(self) -> dict[str, Any]:
        """Wait for the end of a remote run; return its last `status`, and the `error` if it has failed."""
        return self.ask(requests.OutcomeRequest(), math.inf)


def _status(options: argparse.Namespace) -> int:
    _print_status(Target.of(options).status(), options.json)
    return 0


def _top(options: argparse.Namespace) -> int:
    target = _await_run(options)
    outcome = None if options.controller is None else target.outcome
    if options.json or options.once or not watch(target.status, options.every, outcome):
        _print_status(target.status(), options.json)
    return 0


def _metrics(options: argparse.Namespace) -> int:
    document = Target.of(options).ask(requests.MetricsRequest(), _STATUS_TIMEOUT_S)
    print_result(json.dumps(document) if options.json else Metrics.from_dict(document).to_text().rstrip("\n"))
    return 0


def _await_run(options: argparse.Namespace) -> Target:
    """Return the run when it answers: it may not have started yet."""
    prints_once = options.json or options.once or not sys.stdout.isatty()
    wait_s = options.wait or (0.0 if prints_once else math.inf)
    deadline, is_said = time.monotonic() + wait_s, False
    while True:
        try:
            target = Target.of(options)
            target.status()
            return target
        except (registry.NoRun, requests.Unanswered) as error:
            if time.monotonic() >= deadline:
                raise
            if not is_said:
                print(f"flux: {error}. Waiting for it", file=sys.stderr, flush=True)
            is_said = True
        time.sleep(_LOOK_EVERY_S)


def _kill(options: argparse.Namespace) -> int:
    Target.of(options).ask(requests.KillRequest(process=options.process), _KILL_TIMEOUT_S)
    _report(options, f"{options.process} is killed", killed=options.process)
    return 0


def _drain(options: argparse.Namespace) -> int:
    Target.of(options).ask(requests.DrainRequest(site=options.site, within_s=_DRAIN_TIMEOUT_S), _DRAIN_TIMEOUT_S)
    _report(options, f"{options.site} is drained: nothing is on it any more, and it has ended", drained=options.site)
    return 0


def _add_site(options: argparse.Namespace) -> int:
    site = Target.of(options).ask(requests.AddSiteRequest(standby=options.standby), _ADD_TIMEOUT_S)["site"]
    _report(options, site, added=site)
    return 0


def _stop(options: argparse.Namespace) -> int:
    target = Target.of(options)
    name = target.status()["name"]
    try:
        target.ask(requests.StopRequest(), _STOP_TIMEOUT_S)
    except requests.RequestTimeout:
        raise
    except requests.Unanswered:
        pass  # What answers commands ends with the run.
    deadline = time.monotonic() + _STOP_TIMEOUT_S
    while requests.listens(target.address):
        if time.monotonic() > deadline:
            raise FluxError(f"{name} did not end within {_STOP_TIMEOUT_S:g} s; it is stopping")
        time.sleep(_LOOK_EVERY_S)
    _report(options, f"{name} is stopped", stopped=name)
    return 0


def _report(options: argparse.Namespace, text: str, **document: str) -> None:
    """Print what was done, as text or as JSON."""
    print_result(json.dumps(document) if options.json else text)


def _print_status(status: dict[str, Any], as_json: bool) -> None:
    print_result(json.dumps(status) if as_json else "\n".join(screen(status)))
