"""Divergence: two copies of a partition that have emitted different rows for the same input.

Then the operator is not deterministic: it reads the clock, draws random numbers, depends on the order of a set, or on
how its input was cut into batches. Or it depends on the order of rows, and runs after order="any". Nothing that
follows could be trusted, so the run ends with an error that says where it began.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ..plan import Plan
from ..site.digests import EVERY
from ..types.errors import OperatorError

POSITIONS_KEPT_MAX = 64  # Their digests wait for the other copy's; with more, there is no other copy.


class Difference(NamedTuple):
    """The copies on nodes `first` and `second` have other digests at `position`, and had none at `after`."""

    stage: int
    partition: int
    after: int
    position: int
    first: str
    second: str


class DifferingRows(NamedTuple):
    """The first of `total` sequence numbers whose rows differ, each with the rows of both copies as text.

    Rows up to `kept_after` were not compared: one of the copies does not keep them any more.
    """

    rows: tuple[tuple[int, str, str], ...]
    total: int
    kept_after: int


class Divergence:
    """Compares the digests of copies as they arrive."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._waiting: dict[int, dict[int, dict[int, tuple[str, int]]]] = {}  # Stage, position, partition.

    def compare(
        self, node: str, stage: int, position: int, partitions: Sequence[int], digests: Sequence[int]
    ) -> Difference | None:
        """Return the difference, if another copy of one of the partitions has another digest at the same position."""
        positions = self._waiting.setdefault(stage, {})
        waiting = positions.setdefault(position, {})
        for partition, digest in zip(partitions, digests, strict=True):
            other = waiting.setdefault(partition, (node, digest))
            if other[1] != digest:
                after = max(0, (position - 1) // EVERY * EVERY)
                return Difference(stage, partition, after, position, other[0], node)
        while len(positions) > POSITIONS_KEPT_MAX:
            del positions[min(positions)]
        return None

    def error(self, difference: Difference, rows: DifferingRows | str) -> OperatorError:
        """Return the error with the rows that differ, or with why they are not known."""
        begin, segment = difference.after + 1, self._plan.segment(difference.stage)
        undeclared = [step.name for step in segment.steps if step.output is None]
        types = f". Or its copies took {', '.join(undeclared)} for another type: declare `output`" if undeclared else ""
        return OperatorError(
            f"its copies on {difference.first} and {difference.second} emitted different rows for the input {begin:,} "
            f"to {difference.position:,}: {_format(difference, rows)} {_why(segment.ordered)} It must not read the "
            "clock, draw random numbers, depend on the order of a set or on where batches begin; "
            f"flux.testing.check_operator finds out which{types}",
            step=segment.title,
            partition=difference.partition,
            row=begin if isinstance(rows, str) else rows.rows[0][0],
        )


def _format(difference: Difference, rows: DifferingRows | str) -> str:
    if isinstance(rows, str):
        return f"which rows differ is not known, as {rows}."
    shown = [
        f"for row {sn:,} {difference.first} emitted {first} and {difference.second} emitted {second}"
        for sn, first, second in rows.rows
    ]
    more = rows.total - len(rows.rows)
    if more:
        shown.append(f"and {more:,} more differ")
    earlier = ""
    if rows.kept_after > difference.after:
        earlier = f" Of rows up to {rows.kept_after:,}, which are not kept any more, earlier ones may differ."
    return f"{'; '.join(shown)}.{earlier}"


def _why(ordered: bool) -> str:
    if ordered:
        return "The operator is not deterministic."
    return (
        'It runs after order="any", where each copy takes the rows in another order, and its output for a row seems '
        'to depend on earlier rows. Leave order="any" out of the exchange. Or the operator is not '
        "deterministic:"
    )
