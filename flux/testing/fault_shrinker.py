"""Shrinking: an example that shows a fault, made as small as it can be for a person to read.

hypothesis makes values small, and has no notion of a run: it does not know that a row fewer needs a cut elsewhere. So
what it has found is gone over again. Events are left out, many at once and then one by one, and so are cuts and moves,
as long as the same fault shows itself. What remains can do without nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from .fake_clock import STEADY
from .fault_report import Fault
from .strategies import Example

__all__ = ["Found", "shrink"]


@dataclass(frozen=True)
class Found:
    """A fault, and the example that shows it."""

    fault: Fault
    example: Example


def shrink(claim: Callable[[Example], None], found: Found, tries: int) -> Found:
    """Return the smallest example that shows the same fault, or a small one if that takes too many tries."""
    return _Shrinking(claim, found, tries).run()


# By claim: whether it matters where an example is cut, and what moves in it.
_IS_CUT = frozenset({"repeats", "shared", "clock", "input", "batching", "floats", "raises"})
_IS_MOVED = frozenset({"round trip", "shared", "process", "hash order", "input", "raises"})


class _Shrinking:
    def __init__(self, claim: Callable[[Example], None], found: Found, tries: int) -> None:
        self._claim, self._found, self._tries_left = claim, found, tries

    def run(self) -> Found:
        # After each success all is tried again: what could not be left out before, perhaps can be now.
        while self._tries_left > 0 and any(self._shows(simpler) for simpler in _simpler(self._found)):
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
                self._found = Found(fault, example)
                return True
        return False


def _simpler(found: Found) -> Iterator[Example]:
    """The same with less, what leaves out most first."""
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
    yield from _shorter(example)
    yield from _rearranged(example, found.fault.claim)
    yield from (replace(example, cuts=example.cuts - {cut}) for cut in cuts)
    for i in range(len(example.moves)):
        yield replace(example, moves=example.moves[:i] + example.moves[i + 1 :])


def _shorter(example: Example) -> Iterator[Example]:
    """Without some of the events: half of them, a quarter, down to one, from the end on."""
    count = len(example.events)
    size = count // 2
    while size:
        for first in range(count - size + 1, 0, -size):
            yield example.without(first, first + size - 1)
        size //= 2
    if count == 1:
        yield example.without(1, 1)


def _rearranged(example: Example, claim: str) -> Iterator[Example]:
    """Without one of the events, and cut or moved elsewhere; at last as it is, with a row that is plainer."""
    for number in range(len(example.events), 0, -1):
        shorter = example.without(number, number)
        if claim in _IS_CUT:
            yield from shorter.recut()
        if claim in _IS_MOVED:
            yield from shorter.moved()
    yield from example.plainer()
