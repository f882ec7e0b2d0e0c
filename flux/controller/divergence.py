"""Divergence: two copies of a partition that have emitted different rows for the same input.

Then the operator is not deterministic: it reads the clock, draws random numbers, depends on the order of a set, or on
how its input was cut into batches. Or it depends on the order of rows, and runs after order="any". Nothing that
follows could be trusted, so the run ends with an error that says where it began.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..plan import Plan
from ..site.digests import EVERY
from ..types.errors import OperatorError

POSITIONS_KEPT_MAX = 64  # Their digests wait for the other copy's; with more, there is no other copy.


class Divergence:
    """Compares the digests of copies as they arrive."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._waiting: dict[int, dict[int, dict[int, tuple[str, int]]]] = {}  # Stage, position, partition.

    def compare(
        self, node: str, stage: int, position: int, partitions: Sequence[int], digests: Sequence[int]
    ) -> OperatorError | None:
        """Return the error, if another copy of one of the partitions has another digest at the same position."""
        positions = self._waiting.setdefault(stage, {})
        waiting = positions.setdefault(position, {})
        for partition, digest in zip(partitions, digests, strict=True):
            other = waiting.setdefault(partition, (node, digest))
            if other[1] != digest:
                return self._error(stage, partition, position, other[0], node)
        while len(positions) > POSITIONS_KEPT_MAX:
            del positions[min(positions)]
        return None

    def _error(self, stage: int, partition: int, position: int, first: str, second: str) -> OperatorError:
        begin = max(1, (position - 1) // EVERY * EVERY + 1)
        segment = self._plan.segment(stage)
        undeclared = [step.name for step in segment.steps if step.output is None]
        types = f". Or its copies took {', '.join(undeclared)} for another type: declare `output`" if undeclared else ""
        return OperatorError(
            f"its copies on {first} and {second} emitted different rows for the input {begin:,} to {position:,}: "
            f"{_why(segment.ordered)} It must not read the clock, draw random numbers, depend on the order of a set or "
            "on where batches begin; flux.testing.check_operator finds out which"
            f"{types}",
            step=segment.title,
            partition=partition,
            row=begin,
        )


def _why(ordered: bool) -> str:
    if ordered:
        return "the operator is not deterministic."
    return (
        'it runs after order="any", where each copy takes the rows in another order, and its output for a row seems '
        'to depend on earlier rows. Leave order="any" out of the exchange. Or the operator is not '
        "deterministic:"
    )
