"""`flux controller`, `site`, `ingress` and `egress`: the processes of a run on several machines, one command each."""

from __future__ import annotations

import argparse
import contextlib
import logging
import signal
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import trio

from ..driver.launcher import Runnable
from ..driver.metrics_endpoint import listen as listen_for_metrics
from ..driver.metrics_endpoint import metrics_address, metrics_url
from ..driver.remote.exit_monitor import ExitMonitor
from ..driver.remote.importable import check_module
from ..driver.remote.join_request import RemoteProcess
from ..driver.remote.remote_config import RemoteConfig
from ..driver.remote.remote_controller import RemoteController
from ..driver.remote.remote_flow import RemoteFlow
from ..plan.logical_flow import LogicalFlow
from ..plan.plan import EGRESS, INGRESS
from ..protocols.view import number_of
from ..site.config import LEASE_S
from ..storage.private import JOURNAL_ADVICE, private_directory
from ..system.memory import keep_freed_memory
from ..types.errors import FluxError
from ..wire import address
from . import credentials
from .flow_loader import find_flow
from .policy_options import add_policy, policy_of
from .subcommand import WrongCall

log = logging.getLogger("flux")

if TYPE_CHECKING:
    from .subcommand import Commands


def add(commands: Commands) -> None:
    """Add the four commands to the parser."""
    controller = commands.add_parser("controller", help="lead a run whose processes are on several machines")
    _add_flow(controller)
    controller.add_argument("--listen", required=True, metavar="HOST:PORT", help="where the others reach it")
    controller.add_argument("--sites", type=int, default=2, metavar="N", help="sites that hold partitions (default 2)")
    controller.add_argument("--standby", type=int, default=0, metavar="N", help="spare sites (default 0)")
    controller.add_argument("--availability", choices=("pairs", "none"), default="pairs")
    controller.add_argument(
        "--metrics-port",
        metavar="[HOST:]PORT",
        help="serve metrics for Prometheus there; of a port alone, at the host of --listen",
    )
    add_policy(controller)
    _add_journal(controller)
    controller.set_defaults(command=_controller)
    for role, what in (("site", "hold partitions"), (INGRESS, "read the source"), (EGRESS, "write to the sink")):
        parser = commands.add_parser(role, help=f"{what} for a run that a controller leads")
        _add_flow(parser)
        parser.add_argument("--controller", required=True, metavar="HOST:PORT", help="where its controller listens")
        parser.add_argument(
            "--listen", metavar="HOST:PORT", help="where other processes reach this one (default: any port)"
        )
        parser.add_argument(
            "--patience",
            type=float,
            default=60.0,
            metavar="SECONDS",
            help="how long to wait for a controller (default 60)",
        )
        parser.add_argument(
            "--lease",
            type=float,
            default=LEASE_S,
            metavar="SECONDS",
            help=f"it ends after this time without contact to the controller or any other process "
            f"(default {LEASE_S:g})",
        )
        if role == "site":
            parser.add_argument(
                "--name",
                metavar="site-N",
                help="the preferred name; that of a dead site is not given again",
            )
        else:
            _add_journal(parser)
        parser.set_defaults(command=_join, role=role)


def tcp(text: str) -> str:
    """Return HOST:PORT as an address."""
    try:
        return address.tcp_address(*address.host_and_port(text))
    except ValueError as error:
        raise WrongCall(str(error)) from error


def _site_name(text: str | None) -> str | None:
    if text is not None and not number_of(text):
        raise WrongCall(f"sites are called site-1, site-2 and so on, got {text!r}")
    return text


def _add_flow(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("flow", metavar="MODULE:FLOW", help="a module and the name of the Dataflow in it")
    credentials.add(parser)


def _add_journal(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--journal", required=True, metavar="DIR", help="a directory of its own, which must persist across restarts"
    )


def _flow_of(options: argparse.Namespace) -> LogicalFlow:
    flow = find_flow(options.flow)
    check_module(options.flow)
    return flow._logical


def _controller(options: argparse.Namespace) -> int:
    where, own, policy = tcp(options.listen), credentials.of(options), policy_of(options)
    flow = RemoteFlow.of(_flow_of(options), options.sites, options.standby, options.availability, policy)
    for warning in flow.plan.warnings():
        log.warning("%s", warning)
    directory = Path(options.journal)
    try:
        private_directory(directory, JOURNAL_ADVICE)
    except OSError as error:
        raise FluxError(f"the controller's journal cannot be kept in {directory}: {error.strerror}") from error
    settings = {"sites": options.sites, "standby": options.standby, "availability": options.availability}
    settings["policy"] = asdict(policy)
    config = RemoteConfig(
        plan=flow.plan, directory=directory, run=own.run, secret=own.secret, tls=own.tls, controller=where, here=where
    )
    with contextlib.ExitStack() as listening:
        listener = listening.enter_context(address.listen(where))
        metrics_listener = None
        if options.metrics_port is not None:
            at = metrics_address(options.metrics_port, address.host_and_port(options.listen)[0])
            metrics_listener = listening.enter_context(listen_for_metrics(at))
            log.info("metrics are at %s", metrics_url(metrics_listener))
        return _run_process(RemoteController(config, listener, settings, flow.sinks, metrics_listener))


def _join(options: argparse.Namespace) -> int:
    controller, own = tcp(options.controller), credentials.of(options)
    name = _site_name(options.name) if options.role == "site" else None
    with ExitMonitor(controller, own) as exit_monitor:
        remote = RemoteProcess(
            flow=_flow_of(options),
            role=options.role,
            controller=controller,
            own=own,
            exit_monitor=exit_monitor,
            listen=None if options.listen is None else tcp(options.listen),
            patience_s=options.patience,
            lease_s=options.lease,
        )
        return _run_process(remote.process(None if options.role == "site" else Path(options.journal), name))


def _run_process(process: Runnable) -> int:
    """Run it to its end. A signal kills it without cleanup: the other processes go on without it."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    pa.set_cpu_count(1)
    keep_freed_memory()
    try:
        trio.run(process.run)
    except BaseExceptionGroup as group:
        error: BaseException = group
        while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
            error = error.exceptions[0]
        raise error from None
    return 0
