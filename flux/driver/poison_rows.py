"""Post mortem: what sites were busy with when they died, and whether it was the input that killed them.

The copies of a partition are given the same rows. When two of them die, unasked, while they work on the same rows of
the same partition, it is those rows, not bad luck: a third copy would die of them too.
"""

from __future__ import annotations

from ..plan import Plan
from ..site.crash_note import Job
from ..types.errors import OperatorError


class PoisonRowDetector:
    """The deaths of a run whose sites note what they are at."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._jobs: dict[str, Job] = {}

    def examine(self, name: str, how: str, job: Job) -> OperatorError | None:
        """The error, if site `name`, which ended with `how` at the work `job`, died of what another had died of."""
        before = next((site for site, other in self._jobs.items() if other.overlaps(job)), None)
        self._jobs[name] = job
        if before is None:
            return None
        other = self._jobs[before]
        after, upto = max(job.after, other.after), min(job.upto, other.upto)
        return OperatorError(
            f"{before} and {name} both died while they worked on rows {after + 1:,} to {upto:,}, "
            f"{name} with {how}. One of these rows kills the operator's process; no third "
            "copy is given them. Take the rows out of the source, or mend the operator (native code, memory)",
            step=self._plan.segment(job.stage).title,
            row=after + 1,
        )
