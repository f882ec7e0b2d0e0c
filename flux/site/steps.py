"""Steps: the operators of one segment in one process, in the tree that the plan has made of them.

Rows enter at an input and are emitted at the *taps*: the places of the tree where edges begin. Most segments are a
chain with one tap, its end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial

from ..hosting import Hosted, HostedEditions, StepEdition, hosted_editions
from ..model.batch import Batch
from ..model.punctuation import Punctuation
from ..model.skipped_rows import SkippedRows
from ..plan import Plan
from ..plan.plan import INPUT
from ..wire.reports import RowsSkipped, SkippedContent
from .row_skipper import RowSkipper, SkippedInput
from .stuck_watch import list_partitions

StepOutputs = dict[int, Batch]  # What was emitted, by place.
Watched = Callable[[str, Callable[[], str]], AbstractContextManager[None]]  # As `StuckWatch.calling`.


class Steps:
    """The steps of stage `stage`; what is emitted at `further_taps` is returned too."""

    def __init__(self, plan: Plan, stage: int, further_taps: Iterable[int] = ()) -> None:
        segment = plan.segment(stage)
        self._stage = stage
        self._parents = segment.parents
        self._taps = frozenset(plan.edges[edge].tap for edge in plan.outputs(stage)).union(further_taps)
        self.editions: list[HostedEditions] = [hosted_editions(step) for step in segment.steps]
        self.hosted: list[Hosted] = list(self.editions)
        # The place of the rows that are skipped, if they are a stream: the last step.
        has_skipped = bool(segment.steps) and segment.steps[-1].factory is SkippedRows
        self._skipped_place = len(segment.steps) - 1 if has_skipped else None
        if plan.policy.on_error == "skip":
            own = self.hosted[: self._skipped_place]
            self.hosted[: self._skipped_place] = [RowSkipper(step, keeps_rows=has_skipped) for step in own]

    def __iter__(self) -> Iterator[Hosted]:
        return iter(self.hosted)

    def open(self, partitions_held: Iterable[int], watched: Watched = lambda what, place: nullcontext()) -> None:
        """Open the operators with these partitions; `watched` is given what is called, and where."""
        held = list(partitions_held)
        for step in self.hosted:
            with watched(f"step {step.step.name}", partial(self._place_of_opening, step, held)):
                step.open(held)

    def _place_of_opening(self, step: Hosted, held: Sequence[int]) -> str:
        one = step.partition_opened
        return f"stage {self._stage}, {list_partitions(held if one is None else [one])}, it is opened"

    # Changes of code.

    def begin(self, number: int, partitions: Iterable[int]) -> None:
        """Process rows of the edition of this number next, of these partitions."""
        for editions, step in zip(self.editions, self.hosted, strict=True):
            begun = editions.begin(number, partitions)
            if begun and isinstance(step, RowSkipper):
                step.forget_saved(begun)

    def expect(self, partition: int, number: int) -> None:
        """Note that the state of a partition, which is about to be installed, is of this edition."""
        for editions in self.editions:
            editions.expect(partition, number)

    def add_edition(self, number: int, changed: Mapping[int, tuple[StepEdition, Hosted | None]]) -> None:
        """Add an edition in which these steps change; each may have a host that was opened for it."""
        for place, (edition, opened) in changed.items():
            self.editions[place].add(number, edition, opened)

    def forget_before(self, number: int) -> None:
        """Forget the code before this edition: no partition will be of it any more."""
        for editions in self.editions:
            editions.forget_before(number)

    def change_some_state(self) -> bool:
        """Change some state that is still of an edition before; return whether there was any."""
        return any(editions.change_some_state() for editions in self.editions)

    # Rows.

    def process(self, rows: Batch | None, punctuations: Sequence[Punctuation] = (), place: int = INPUT) -> StepOutputs:
        """Return what is emitted for the rows of an input and the punctuations among them.

        A punctuation passes each step after the output that it caused in the step before.
        """
        found: StepOutputs = {} if rows is None else {place: rows}
        for number, (step, parent) in enumerate(zip(self.hosted, self._parents, strict=True)):
            made = step.work(found.get(parent), punctuations)
            if made is not None:
                found[number] = made
        if self._skipped_place is not None and (skipped := self._skipped_rows()):
            found[self._skipped_place] = Batch.concat(skipped).ordered()
        return {place: made for place, made in found.items() if place in self._taps}

    def time_partitions(self) -> None:
        """Time the calls that are for one partition, from now on."""
        for step in self.hosted:
            step.time_partitions()

    def take_costs(self) -> dict[int, float]:
        """Return the seconds of each partition's calls, of all steps, since the last call, if they are timed."""
        costs_s: dict[int, float] = {}
        for step in self.hosted:
            for partition, took_s in step.take_costs().items():
                costs_s[partition] = costs_s.get(partition, 0.0) + took_s
        return costs_s

    def _skipped_rows(self) -> list[Batch]:
        return [row for step in self.hosted if isinstance(step, RowSkipper) for row in step.take_rows()]

    def skipped(self) -> Iterator[tuple[RowsSkipped | None, list[tuple[int, int]]]]:
        """Yield for each step a report of skipped rows, if counts changed; and partition and number of the new ones."""
        for number, step in enumerate(self.hosted):
            if not isinstance(step, RowSkipper):
                continue
            totals, skipped = step.take_skipped()
            yield (
                self._report(step, number, totals, skipped) if totals else None,
                [(row.partition, row.sn) for row in skipped],
            )

    def skipped_totals(self) -> Iterator[RowsSkipped]:
        """Yield for each step a report of all that it has skipped of the partitions here, if it has skipped any."""
        for number, step in enumerate(self.hosted):
            if isinstance(step, RowSkipper) and (totals := step.skipped_totals()):
                yield self._report(step, number, totals, ())

    def key_counts(self) -> dict[int, int]:
        """Return the number of keys in the states of each partition, of all steps, where that is known."""
        counts: dict[int, int] = {}
        for step in self.hosted:
            for partition, count in step.key_counts().items():
                counts[partition] = counts.get(partition, 0) + count
        return counts

    def _report(
        self, step: RowSkipper, number: int, totals: Mapping[int, int], skipped: Sequence[SkippedInput]
    ) -> RowsSkipped:
        rows = tuple(
            SkippedContent(partition=row.partition, nth=row.nth, sn=row.sn, values=row.shown[0], error=row.shown[1])
            for row in skipped
            if row.shown is not None
        )
        return RowsSkipped(
            step=step.step.name,
            stage=self._stage,
            number=number,
            totals=tuple(totals.items()),
            rows=rows,
            # An ingress does not know what the last one has counted, but gives rows the same sequence numbers.
            numbers=tuple(row.sn for row in skipped) if self._stage == 0 else None,
        )
