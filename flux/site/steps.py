"""Steps: the operators of one segment in one process, in the tree in which the plan has put them.

Rows go in at an input and come out at the *taps*: the places of the tree where edges begin. Most segments are a chain
with one tap, its end.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from ..hosting import Hosted, host
from ..model.batch import Batch
from ..model.punctuation import Punctuation
from ..plan import Plan
from ..plan.plan import INPUT
from .row_skipper import RowSkipper

StepOutputs = dict[int, Batch]  # What came out, by place.


class Steps:
    """The steps of stage `stage`."""

    def __init__(self, plan: Plan, stage: int) -> None:
        segment = plan.segment(stage)
        self._stage = stage
        self._parents = segment.parents
        self._taps = frozenset(plan.edges[edge].tap for edge in plan.outputs(stage))
        self.hosted: list[Hosted] = [host(step) for step in segment.steps]
        if plan.policy.on_error == "skip":
            self.hosted = [RowSkipper(step) for step in self.hosted]

    def __iter__(self) -> Iterator[Hosted]:
        return iter(self.hosted)

    def open(self, partitions_held: Iterable[int]) -> None:
        """Begin with these partitions."""
        held = list(partitions_held)
        for step in self.hosted:
            step.open(held)

    def process(self, rows: Batch | None, punctuations: Sequence[Punctuation] = (), place: int = INPUT) -> StepOutputs:
        """What comes of the rows of an input, and of the punctuations among them.

        A punctuation passes each step behind the output that it caused in the step before.
        """
        found: StepOutputs = {} if rows is None else {place: rows}
        for number, (step, parent) in enumerate(zip(self.hosted, self._parents, strict=True)):
            made = step.work(found.get(parent), punctuations)
            if made is not None:
                found[number] = made
        return {place: made for place, made in found.items() if place in self._taps}

    def skipped(self) -> Iterator[tuple[dict[str, Any], list[tuple[int, int]]]]:
        """What the program is to be told of rows that were left out; and partition and number of those just now."""
        for number, step in enumerate(self.hosted):
            if not isinstance(step, RowSkipper):
                continue
            totals, skipped = step.take_skipped()
            rows = [[row.partition, row.nth, row.sn, *row.shown] for row in skipped if row.shown is not None]
            place = {"step": step.step.name, "place": [self._stage, number]}
            told: dict[str, Any] = {"kind": "skipped", **place, "totals": list(totals.items()), "rows": rows}
            if self._stage == 0:  # What an ingress has counted is not known to the next one; the numbers are the same.
                told["numbers"] = [row.sn for row in skipped]
            yield told if totals else {}, [(row.partition, row.sn) for row in skipped]
