"""Control: what a run answers to the commands `flux status`, `top`, `kill`, `drain` and `add-site`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..errors import FluxError

if TYPE_CHECKING:
    from ..run import Run


def answer(run: Run, header: dict[str, Any]) -> dict[str, Any]:
    """The answer to one question; it may take as long as a site takes to empty."""
    try:
        return {"kind": "answer", "answer": _answer(run, header)}
    except Exception as error:
        known = error if isinstance(error, FluxError) else FluxError(str(error))
        return {"kind": "answer", "error": known.to_dict()}


def _answer(run: Run, header: dict[str, Any]) -> dict[str, Any]:
    what = header.get("what")
    if what == "status":
        return run.status().to_dict()
    if what == "kill":
        run.kill(str(header.get("process")))
        return {}
    if what == "drain":
        run._await_drained(run._begin_drain(str(header.get("site"))), float(header["within_s"]), run._watch)
        return {}
    if what == "add-site":
        return {"site": run._add_site(run._watch)}
    raise FluxError(f"a run can be asked for status, kill, drain and add-site, not for {what!r}")
