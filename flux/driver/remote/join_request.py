"""Join request: how a process joins a remote run: it asks the controller for its name.

An ingress and an egress keep a journal in a directory of their own. A restart must find the journal again, and it must
not be that of another run. Both are checked, because otherwise rows would be lost or duplicated.
"""

from __future__ import annotations

import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...plan import Policy
from ...plan.logical_flow import LogicalFlow
from ...plan.plan import EGRESS, INGRESS
from ...site.config import LEASE_S, place_of
from ...site.egress.egress_process import EgressProcess
from ...site.ingress.ingress_process import IngressProcess
from ...site.worker import Worker
from ...storage.disk import replace_file
from ...storage.journal import InUse
from ...storage.private import JOURNAL_ADVICE, private_directory
from ...types.errors import FluxError
from ...wire import address
from ...wire.connections import Identity
from ...wire.requests import JoinRequest, Request, SettingsRequest, Unanswered, ask
from ..launcher import Runnable
from .exit_monitor import ExitMonitor
from .remote_config import RemoteConfig
from .remote_flow import RemoteFlow, description

_ASK_TIMEOUT_S = 30.0
_RETRY_S = 0.2
_RUN = "run"


@dataclass(frozen=True, kw_only=True)
class RemoteProcess:
    """A process that is to be the `role` of a run: "site", "ingress" or "egress"."""

    flow: LogicalFlow
    role: str
    controller: str
    own: Identity  # As a command: it has no name in the run yet.
    exit_monitor: ExitMonitor
    listen: str | None  # The address for its peers; None: that from which it connects to the controller.
    patience_s: float
    lease_s: float = LEASE_S

    def process(self, directory: Path | None, wish: str | None = None) -> Runnable:
        """Join the run and return the process to run; `wish` is the preferred name of a site."""
        settings = self._ask_until_answered(SettingsRequest())
        policy = Policy(**settings["policy"])
        flow = RemoteFlow.of(self.flow, settings["sites"], settings["standby"], settings["availability"], policy)
        joined = self._ask(JoinRequest(role=self.role, name=wish, flow=description(flow.plan)))
        if directory is None:
            directory = Path(tempfile.gettempdir())  # Files of a site are not needed after its end.
        else:
            _claim(self.role, directory, joined)
        config = RemoteConfig(
            plan=flow.plan,
            directory=directory,
            run=joined["run"],
            secret=self.own.secret,
            tls=self.own.tls,
            controller=self.controller,
            here=self._here(),
            lease_s=self.lease_s,
        )
        self.exit_monitor.joined(joined["name"], joined["run"])
        if self.role == INGRESS:
            for number, source in enumerate(flow.sources):
                place = place_of(directory, "source", number)
                place.mkdir(mode=0o700, exist_ok=True)
                source.bind(place)
            return _alone(IngressProcess(config, flow.sources, joined["incarnation"]))
        if self.role == EGRESS:
            return _alone(EgressProcess(config, flow.sinks, joined["incarnation"]))
        return Worker(config, joined["name"], self.exit_monitor.note)

    def _here(self) -> str:
        """Return the address at which peers reach this process."""
        if self.listen is None:
            return address.own_address(self.controller, _ASK_TIMEOUT_S)
        if address.is_wildcard(self.listen):
            own = address.own_address(self.controller, _ASK_TIMEOUT_S).removeprefix("tcp:").removesuffix("0")
            port = self.listen.rpartition(":")[2]
            raise FluxError(
                f"--listen {self.listen.removeprefix('tcp:')} is not an address at which others reach this machine: "
                f"they get it as it is. Give the machine's own, such as {own}{port}"
            )
        return self.listen

    def _ask_until_answered(self, request: Request) -> dict[str, Any]:
        """Ask a controller that may still be starting: supervisors start processes in any order."""
        deadline = time.monotonic() + self.patience_s
        while True:
            try:
                return self._ask(request)
            except Unanswered as error:
                if time.monotonic() > deadline:
                    raise Unanswered(
                        f"{error}. Is `flux controller` running there, and does a firewall let this machine through?"
                    ) from error
                time.sleep(_RETRY_S)

    def _ask(self, request: Request) -> dict[str, Any]:
        return ask(self.controller, self.own, request, _ASK_TIMEOUT_S)


def _alone(end: IngressProcess | EgressProcess) -> Runnable:
    """Return the process, or raise `InUse`: a second ingress or egress ends itself, and not the run."""
    if isinstance(end.unusable, InUse):
        raise end.unusable
    return end


def _claim(role: str, directory: Path, joined: dict[str, Any]) -> None:
    try:
        private_directory(directory, JOURNAL_ADVICE)
        path = directory / _RUN
        run = path.read_text() if path.exists() else None
        if run is None and joined["started"]:
            raise FluxError(
                f"the {role} of this run is started again, and {directory} does not hold what the last one wrote: give "
                "it the same --journal as before, on a disk that outlives the process"
            )
        if run is None:
            replace_file(path, joined["run"].encode(), fsync=True)
        elif run != joined["run"]:
            raise FluxError(f"{directory} holds the journal of another run: remove it, or give another --journal")
    except OSError as error:
        raise FluxError(f"the journal of the {role} cannot be kept in {directory}: {error}") from error
