"""The requests that a local run answers: status, metrics, kill, drain, add-site, reconfigure and stop."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ...types.errors import FluxError
from ...wire import requests


@dataclass(frozen=True, kw_only=True)
class RequestHandlers:
    """What a run does for each request. A handler runs in a thread of its own and may block."""

    status: Callable[[], dict[str, Any]]
    metrics: Callable[[], dict[str, Any]]
    kill: Callable[[str], None]
    reconfigure: Callable[[requests.ReconfigureRequest], dict[str, Any]]
    drain: Callable[[str, float], None]  # A site, and the timeout in seconds.
    add_site: Callable[[bool], str]  # Whether it is a standby.
    stop: Callable[[], None]

    def answer(self, request: requests.Request) -> dict[str, Any]:
        """Return the frame that answers a request; it may take as long as a site takes to drain."""
        try:
            return requests.answer_frame(self._answer(request))
        except Exception as error:
            return requests.failure_frame(error)

    def _answer(self, request: requests.Request) -> dict[str, Any]:
        match request:
            case requests.StatusRequest():
                return self.status()
            case requests.MetricsRequest():
                return self.metrics()
            case requests.KillRequest(process=process):
                self.kill(process)
            case requests.DrainRequest(site=site, within_s=within_s):
                self.drain(site, within_s)
            case requests.AddSiteRequest(standby=standby):
                return {"site": self.add_site(standby)}
            case requests.ReconfigureRequest():
                return self.reconfigure(request)
            case requests.StopRequest():
                self.stop()
            case _:
                what = type(request).__name__
                raise FluxError(
                    "a local run can be asked for status, metrics, kill, drain, add-site, reconfigure and stop, not "
                    f"for {what}"
                )
        return {}
