"""Claims that take other processes: that output does not depend on hashes, nor on the process, and what is left there.

An operator that gives something else each time in one process, and the same in new ones, keeps something from one run
to the next; which is another matter than chance, and is told as such.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace

from ..types.errors import FluxError
from .fault_report import Fault, Story, described, first_difference
from .harness import GivenInput, Output, Subject, Way
from .properties import blamed, changed, with_key
from .strategies import Example
from .subprocess_run import SubprocessRun

__all__ = ["SubprocessProperties"]

_ENOUGH_S = 20.0  # An operator that takes long to begin in a new process is tried less often.
_LEFT_OVER = (
    "New processes give the same each time: what differs was left over from the run before, in a cache or in the "
    "environment for instance, or is where things are in memory, as id() and the repr of an object say."
)


@dataclass
class SubprocessProperties:
    """Of one operator, which can be imported as `named`. Processes are started when there is something to ask."""

    subject: Subject
    named: tuple[str, str]
    _processes: dict[tuple[str, ...], SubprocessRun] = field(default_factory=dict)
    _until_s: float | None = None

    def holds_everywhere(self, example: Example) -> None:
        """Other processes give the same, with other hashes too, and go on with its state."""
        if not len(example.given.sn) or self._is_enough():
            return
        try:
            self._compare(example)
        except Fault:
            self._until_s = float("inf")  # What was found is made smaller, however long that takes.
            raise

    def _compare(self, example: Example) -> None:
        given = example.given
        number = min((number for number, _ in example.moves), default=0)
        subject, processes = self._those_of(given)
        way = described(given, Way(cuts=frozenset({number})))
        with blamed(subject, given, f"{way}, in another process"):
            one, other, rest = processes.play(given, number)
        if first_difference(one, other) is not None:
            ways = (f"{way}, with PYTHONHASHSEED=1", "the same, with PYTHONHASHSEED=2")
            raise Fault(Story(subject.name, "hash order", given, ways, (one, other)))
        expected = [output for output in one if output.sn > number]
        if rest is not None and first_difference(expected, rest) is not None:
            behind = f"the same; behind {number} all states go to another process, which goes on"
            raise Fault(Story(subject.name, "shared", given, (f"{way}, in one process", behind), (expected, rest)))

    def made_sure(self, fault: Fault) -> Fault:
        """The same fault, or what it is when one looks closer; that takes a while, and is done once."""
        try:
            return self._looked_at(fault) if fault.story.outputs is not None and len(fault.story.given.sn) else fault
        except FluxError:
            return fault  # Nobody can look closer; what was found is true all the same.

    def _looked_at(self, fault: Fault) -> Fault:
        story = fault.story
        _, processes = self._those_of(story.given)
        if fault.claim == "hash order" and not _is_one(processes.again(story.given)):
            ways = (story.ways[0].partition(", with PYTHONHASHSEED")[0] + ", in one process", "the same, in another")
            return Fault(replace(story, claim="process", ways=ways))
        if fault.claim == "shared" and not story.more:
            places = processes.changed(story.given)
            return Fault(replace(story, more=changed(places)) if places else replace(story, claim="process"))
        if fault.claim in ("repeats", "chance"):
            return self._left_over(fault, processes)
        return fault

    def _left_over(self, fault: Fault, processes: SubprocessRun) -> Fault:
        """What was taken for chance may be what one run leaves to the next: then new processes agree, at first."""
        given = fault.story.given
        firsts, seconds = processes.again(given), processes.twice(given)
        if not _is_one(firsts) or any(first_difference(firsts[0], second) is None for second in seconds):
            return fault
        # If the second is like the first where nothing of that remains that can be put back, that is the cause.
        if _is_one([firsts[0], *processes.twice(given, put_back=True)]):
            return Fault(replace(fault.story, claim="shared", more=changed(processes.changed(given))))
        return Fault(replace(fault.story, more=f"{fault.story.more} {_LEFT_OVER}".strip()))

    def _those_of(self, given: GivenInput) -> tuple[Subject, SubprocessRun]:
        chosen = with_key(self.subject, given)
        if chosen.key not in self._processes:
            self._processes[chosen.key] = SubprocessRun(chosen, self.named)
        return chosen, self._processes[chosen.key]

    def _is_enough(self) -> bool:
        if self._until_s is None:
            self._until_s = time.monotonic() + _ENOUGH_S
        return time.monotonic() > self._until_s

    def close(self) -> None:
        """End the processes."""
        for processes in self._processes.values():
            processes.close()


def _is_one(outputs: list[list[Output]]) -> bool:
    return all(first_difference(outputs[0], other) is None for other in outputs)
