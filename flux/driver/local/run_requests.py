"""The requests that a local run answers: `flux status`, `top`, `kill`, `drain` and `add-site`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ...types.errors import FluxError


@dataclass(frozen=True, kw_only=True)
class RequestHandlers:
    """What a run does for each request. A handler runs in a thread of its own and may block."""

    status: Callable[[], dict[str, Any]]
    kill: Callable[[str], None]
    drain: Callable[[str, float], None]  # A site, and the timeout in seconds.
    add_site: Callable[[], str]

    def answer(self, header: dict[str, Any]) -> dict[str, Any]:
        """Return the answer to one request; it may take as long as a site takes to drain."""
        try:
            return {"kind": "answer", "answer": self._answer(header)}
        except Exception as error:
            known = error if isinstance(error, FluxError) else FluxError(str(error))
            return {"kind": "answer", "error": known.to_dict()}

    def _answer(self, header: dict[str, Any]) -> dict[str, Any]:
        what = header.get("what")
        if what == "status":
            return self.status()
        if what == "kill":
            self.kill(str(header.get("process")))
            return {}
        if what == "drain":
            self.drain(str(header.get("site")), float(header["within_s"]))
            return {}
        if what == "add-site":
            return {"site": self.add_site()}
        raise FluxError(f"a run can be asked for status, kill, drain and add-site, not for {what!r}")
