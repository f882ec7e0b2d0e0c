"""The shrinker of examples: it makes an example that shows a fault as small as possible, so that a person can read it.

hypothesis makes values small, but does not know runs: with one row fewer, a cut may have to be elsewhere. So its result
is shrunk again. Events are dropped, many at once and then one by one, and so are cuts and moves, as long as the same
fault occurs. Nothing more can be dropped from the result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from .fake_clock import STEADY
from .fault_report import Fault
from .strategies import Example

__all__ = ["FaultyExample", "shrink"]


@dataclass(frozen=True)
class FaultyExample:
    """A fault, and the example that shows it."""

    fault: Fault
    example: Example


def shrink(claim: Callable[[Example], None], found: FaultyExample, tries: int) -> FaultyExample:
    """Return the smallest example that shows the same fault, or a small one if that takes too many tries."""
    return _Shrinker(claim, found, tries).run()


# The claims for which the place of a cut, or of a move, matters.
_CLAIMS_WITH_CUTS = frozenset({"repeats", "shared", "clock", "input", "batching", "floats", "raises"})
_CLAIMS_WITH_MOVES = frozenset({"round trip", "shared", "process", "hash order", "input", "raises"})


class _Shrinker:
    def __init__(self, claim: Callable[[Example], None], found: FaultyExample, tries: int) -> None:
        self._claim, self._found, self._tries_left = claim, found, tries

    def run(self) -> FaultyExample:
        # After each success all is tried again: a smaller example may allow drops that failed before.
        while self._tries_left > 0 and any(self._shows(simpler) for simpler in _simpler_examples(self._found)):
            pass
        return self._found

    def _shows(self, example: Example) -> bool:
        if self._tries_left <= 0:
            return False
        self._tries_left -= 1
        try:
            self._claim(example)
        except Fault as fault:
            if fault.is_like(self._found.fault):
                self._found = FaultyExample(fault, example)
                return True
        return False


def _simpler_examples(found: FaultyExample) -> Iterator[Example]:
    """Yield smaller examples, the ones that drop most first."""
    example = found.example
    if example.pace != STEADY:
        yield replace(example, pace=STEADY)
    if example.cuts:
        yield replace(example, cuts=frozenset())
    if example.moves:
        yield replace(example, moves=())
    cuts = sorted(example.cuts)
    if len(cuts) > 1:
        yield from (replace(example, cuts=frozenset({cut})) for cut in (cuts[0], cuts[len(cuts) // 2], cuts[-1]))
    yield from _shorter_examples(example)
    yield from _rearrangements(example, found.fault.claim)
    yield from (replace(example, cuts=example.cuts - {cut}) for cut in cuts)
    for i in range(len(example.moves)):
        yield replace(example, moves=example.moves[:i] + example.moves[i + 1 :])


def _shorter_examples(example: Example) -> Iterator[Example]:
    """Yield examples without half of the events, a quarter, down to one, starting from the end."""
    count = len(example.events)
    size = count // 2
    while size:
        for first in range(count - size + 1, 0, -size):
            yield example.without(first, first + size - 1)
        size //= 2
    if count == 1:
        yield example.without(1, 1)


def _rearrangements(example: Example, claim: str) -> Iterator[Example]:
    """Yield examples without one of the events, cut or moved elsewhere; then the same example with a plainer row."""
    for number in range(len(example.events), 0, -1):
        shorter = example.without(number, number)
        if claim in _CLAIMS_WITH_CUTS:
            yield from shorter.with_one_cut()
        if claim in _CLAIMS_WITH_MOVES:
            yield from shorter.with_one_move()
    yield from example.with_plainer_row()
