"""The properties that need other processes: output does not depend on hashes, on the process, or on earlier runs in it.

An operator whose output varies in one process, and is the same in new ones, keeps something from one run to the next.
That is another fault than chance, and is reported as such.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace

from ..types.errors import FluxError
from .fault_report import Fault, Story, describe, first_difference
from .harness import GivenInput, Output, Subject, Way
from .properties import describe_changed, raise_faults, with_key
from .strategies import Example
from .subprocess_run import SubprocessRun

__all__ = ["SubprocessProperties"]

_TIME_LIMIT_S = 20.0  # An operator that is slow to start in a new process is tried less often,
_TRIES_MIN = 10  # but so often in any case: else a claim would be listed as checked that was hardly tried.
_LEFT_OVER = (
    "New processes give the same each time. The difference was left over from the run before, in a cache or in the "
    "environment for instance, or depends on memory addresses, as id() and the default repr of an object do."
)


@dataclass
class SubprocessProperties:
    """The properties of one operator, which can be imported as `named`. Processes start at the first request."""

    subject: Subject
    named: tuple[str, str]
    _processes: dict[tuple[str, ...], SubprocessRun] = field(default_factory=dict)
    _until_s: float | None = None
    _tries: int = 0

    def holds_everywhere(self, example: Example) -> None:
        """Other processes give the same output, with other hashes too, and can resume from the state."""
        if not len(example.given.sn) or self._is_past_limit():
            return
        self._tries += 1
        try:
            self._compare(example)
        except Fault:
            self._until_s = float("inf")  # No limit for shrinking what was found.
            raise

    def _compare(self, example: Example) -> None:
        given = example.given
        number = min((number for number, _ in example.moves), default=0)
        subject, processes = self._processes_for(given)
        way = describe(given, Way(cuts=frozenset({number})))
        with raise_faults(subject, given, f"{way}, in another process"):
            one, other, rest = processes.play(given, number)
        if first_difference(one, other) is not None:
            ways = (f"{way}, with PYTHONHASHSEED=1", "the same, with PYTHONHASHSEED=2")
            raise Fault(Story(subject.name, "hash order", given, ways, (one, other)))
        expected = [output for output in one if output.sn > number]
        if rest is not None and first_difference(expected, rest) is not None:
            moved = f"the same; after {number} all states move to another process, which resumes from them"
            raise Fault(Story(subject.name, "shared", given, (f"{way}, in one process", moved), (expected, rest)))

    def confirm(self, fault: Fault) -> Fault:
        """Return the same fault, or a more precise one found with more runs; that is slow, and done once."""
        try:
            return self._classify(fault) if fault.story.outputs is not None and len(fault.story.given.sn) else fault
        except FluxError:
            return fault  # Without more runs the fault is less precise, but still true.

    def _classify(self, fault: Fault) -> Fault:
        story = fault.story
        _, processes = self._processes_for(story.given)
        if fault.claim == "hash order" and not _are_equal(processes.run_again(story.given)):
            ways = (story.ways[0].partition(", with PYTHONHASHSEED")[0] + ", in one process", "the same, in another")
            return Fault(replace(story, claim="process", ways=ways))
        if fault.claim == "shared" and not story.more:
            places = processes.changed_places(story.given)
            return Fault(replace(story, more=describe_changed(places)) if places else replace(story, claim="process"))
        if fault.claim in ("repeats", "chance"):
            return self._check_leftovers(fault, processes)
        return fault

    def _check_leftovers(self, fault: Fault, processes: SubprocessRun) -> Fault:
        """Separate chance from what one run leaves to the next, where the first runs of new processes agree."""
        given = fault.story.given
        firsts, seconds = processes.run_again(given), processes.run_twice(given)
        if not _are_equal(firsts) or any(first_difference(firsts[0], second) is None for second in seconds):
            return fault
        # If the second run equals the first once the hidden state is restored between them, that state is the cause.
        if _are_equal([firsts[0], *processes.run_twice(given, is_restored=True)]):
            return Fault(replace(fault.story, claim="shared", more=describe_changed(processes.changed_places(given))))
        return Fault(replace(fault.story, more=f"{fault.story.more} {_LEFT_OVER}".strip()))

    def _processes_for(self, given: GivenInput) -> tuple[Subject, SubprocessRun]:
        chosen = with_key(self.subject, given)
        if chosen.key not in self._processes:
            self._processes[chosen.key] = SubprocessRun(chosen, self.named)
        return chosen, self._processes[chosen.key]

    def _is_past_limit(self) -> bool:
        if self._until_s is None:
            self._until_s = time.monotonic() + _TIME_LIMIT_S
        return self._tries >= _TRIES_MIN and time.monotonic() > self._until_s

    def close(self) -> None:
        """End the processes."""
        for processes in self._processes.values():
            processes.close()


def _are_equal(outputs: list[list[Output]]) -> bool:
    return all(first_difference(outputs[0], other) is None for other in outputs)
