"""Poison rows: whether the input of a site killed it, from what dead sites were processing.

The copies of a partition are given the same rows. When two of them die by themselves while they process the same rows
of the same partition, those rows are the cause: a third copy would die of them too.
"""

from __future__ import annotations

from ..plan import Plan
from ..site.crash_note import Job
from ..types.errors import OperatorError


class PoisonRowDetector:
    """Compares what the dead sites of a run were processing, as their crash notes say."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._jobs: dict[str, Job] = {}

    def examine(self, name: str, how: str, job: Job) -> OperatorError | None:
        """Return an error if site `name`, which ended with `how` at `job`, died at the same rows as another site."""
        before = next((site for site, other in self._jobs.items() if other.overlaps(job)), None)
        self._jobs[name] = job
        if before is None:
            return None
        other = self._jobs[before]
        after, upto = max(job.after, other.after), min(job.upto, other.upto)
        return OperatorError(
            f"{before} and {name} both died while they worked on rows {after + 1:,} to {upto:,}, "
            f"{name} with {how}. One of these rows kills the operator's process; no third "
            "copy is given them. Take the rows out of the source, or fix the operator (native code, memory)",
            step=self._plan.segment(job.stage).title,
            row=after + 1,
        )
