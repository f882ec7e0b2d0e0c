"""What an experiment is: a claim, a way to measure it, and the measured values beside those that are expected."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from experiments import results

Progress = Callable[[str], None]
Plot = Callable[[Sequence[dict[str, Any]], Path], None]


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One measured value beside its target; `thesis` is what the thesis reports of the same, if it does."""

    what: str
    value: float | None
    target: str
    holds: bool
    thesis: str = ""


@dataclass(kw_only=True)
class Outcome:
    """All rows that were measured, what they show, and how many of the runs were valid."""

    rows: list[dict[str, Any]] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    validity: list[Finding] = field(default_factory=list)

    @property
    def is_valid(self) -> bool:
        """Whether the conditions held under which the values mean what they say."""
        return all(finding.holds for finding in self.validity)


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """`run(quick, progress)` measures; `plot` draws the rows with the thesis's values beside them.

    Results go to `out` in its `folder` of experiments/.
    """

    name: str
    claim: str
    run: Callable[[bool, Progress], Outcome]
    plot: Plot
    minutes: str
    folder: str


def perform(experiment: Experiment, quick: bool, progress: Progress) -> dict[str, Any]:
    """Run an experiment, write its rows, its picture and its document; return the document."""
    outcome = experiment.run(quick, progress)
    name = experiment.name.replace("-", "_")
    path = results.write(experiment.folder, name, outcome.rows, quick=quick)
    picture = path.with_suffix(".png")
    experiment.plot(outcome.rows, picture)
    document = {
        "experiment": experiment.name,
        "claim": experiment.claim,
        "quick": quick,
        "valid": outcome.is_valid,
        "validity": [asdict(finding) for finding in outcome.validity],
        "findings": [asdict(finding) for finding in outcome.findings],
        "csv": str(path),
        "picture": str(picture),
        **results.made_by(),
    }
    path.with_suffix(".json").write_text(json.dumps(document, indent=2) + "\n")
    return document


def format_findings(document: dict[str, Any]) -> str:
    """The document for people: a line for each value."""
    lines = [document["claim"], ""]
    for group in ("validity", "findings"):
        for finding in document[group]:
            value = "none" if finding["value"] is None else f"{finding['value']:.4g}"
            beside = f"; thesis: {finding['thesis']}" if finding["thesis"] else ""
            verdict = "holds" if finding["holds"] else "FALLS SHORT"
            lines.append(f"{verdict:>11}  {finding['what']}: {value} (target {finding['target']}{beside})")
    if not document["valid"]:
        lines += ["", "This run is not valid: the host was too busy. Try again when nothing else runs."]
    return "\n".join([*lines, "", f"rows: {document['csv']}", f"picture: {document['picture']}"])
