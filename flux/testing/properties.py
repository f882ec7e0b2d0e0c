"""Claims: what the protocol assumes of an operator, one method for each, which raises `Fault` if an example refutes it.

For each, the operator is run in this process over the same input in ways that must not matter, and what it gives is
compared. They are in an order in which each may rely on those before: what draws random numbers does not depend on
batching. What takes other processes is in `elsewhere`.
"""

from __future__ import annotations

import random
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np

from ..types.errors import FluxError, PlanError
from .fake_clock import LATER_S, NOW_S, PACES, FakeClock
from .fault_report import Fault, Story, described, first_difference, is_rounding
from .harness import GivenInput, InputMutated, Output, Subject, Way, play
from .hidden_state import HiddenState
from .strategies import Example

__all__ = ["Properties", "blamed", "changed", "with_key"]

_FEW_EVENTS = 6  # At most, of an example that is cut in each place in turn, or moved there.

Moves = tuple[tuple[int, int], ...]


@contextmanager
def blamed(subject: Subject, given: GivenInput, way: str) -> Iterator[None]:
    """What the operator raises is told with the input that made it; what is wrong with the plan has no such input."""
    try:
        yield
    except PlanError:
        raise
    except InputMutated as error:
        raise Fault(Story(subject.name, "input", given, (way,), error=error)) from None
    except FluxError as error:
        raise Fault(Story(subject.name, "raises", given, (way,), error=error)) from error


def with_key(subject: Subject, given: GivenInput) -> Subject:
    """By default the key is the one column there is."""
    names = given.rows.schema.names
    key = subject.key or tuple(names) or ("row",)
    if not subject.key and len(names) > 1:
        known = ", ".join(names)
        raise PlanError(f"check_operator: say which of the columns {known} are the key, as in key={names[0]!r}")
    unknown = [name for name in key if name not in names]
    if unknown and len(given.sn):
        raise PlanError(f"check_operator: the rows have no column {', '.join(unknown)}; they have {', '.join(names)}")
    return replace(subject, key=key)


def changed(places: list[str]) -> str:
    """What is said of places outside of an operator that it has written to."""
    return f"It changed {', '.join(places[:5])}."


@dataclass(frozen=True)
class Properties:
    """Of one operator, in this process."""

    subject: Subject
    clock: FakeClock

    def repeats(self, example: Example) -> None:
        """The same input gives the same output each time."""
        way = Way(cuts=example.cuts)

        def run() -> list[Output]:
            return self._played(example, way)

        with _chance(0):
            one = run()
        with _chance(zlib.crc32(repr(example.events).encode(errors="replace")), switch_s=1e-6):
            other = run()
        if first_difference(one, other) is None:
            return
        outside = HiddenState(self.subject.factory, self.subject.parameters)
        places = outside.changed_by(run)
        claim, more = "repeats", _drawn_by(run)
        if places and _repeats_without(outside, run):
            claim, more = "shared", changed(places)
        ways = described(example.given, way), "the same, once more"
        raise Fault(Story(self.subject.name, claim, example.given, ways, (one, other), more=more))

    def at_any_time(self, example: Example) -> None:
        """It does not matter at which time it is run, and how much time goes by."""
        way = Way(cuts=example.cuts)  # Time may go by within a batch and between batches.
        now = self._played(example, way)
        later = self._played(example, way, pace=example.pace)
        if first_difference(now, later) is None:
            return
        more = f"It reads the clock at {'; '.join(self.clock.read_at[:5])}" if self.clock.read_at else ""
        ways = (
            f"{described(example.given, way)}, at {NOW_S:.0f} s",
            f"the same, from {LATER_S:.0f} s on, and {PACES[example.pace]}",
        )
        raise Fault(Story(self.subject.name, "clock", example.given, ways, (now, later), more=more))

    def batching(self, example: Example) -> None:
        """It does not matter where batches are cut."""
        places = example.each_row if len(example.events) <= _FEW_EVENTS else ()
        cuts = (example.cuts, example.each_row, *(frozenset({place}) for place in sorted(places)))
        self._compare(example, "batching", Way(), map(Way, cuts))

    def batching_of_many(self, example: Example) -> None:
        """The same of long inputs, for which there is no time to be cut in many ways."""
        self._compare(example, "batching", Way(), [Way(cuts=example.cuts)])

    def round_trip(self, example: Example) -> None:
        """It does not matter when its state is read, or goes to another site, and who shares a site."""
        # Cut in the same way, so that nothing but the moves tells them apart.
        moves = self._moves(example, example.moves)
        behind = frozenset(number for number, _ in moves)
        self._compare(example, "round trip", Way(behind), (Way(behind, moves), Way(behind, moves, sites=2)))
        places = frozenset(range(1, len(example.events) + 1))
        each = self._moves(example, tuple((place, 0) for place in sorted(places)))
        try:
            self._compare(example, "round trip", Way(places), (Way(places, each, reads=True), Way(places, each)))
        except Fault:
            # Behind each event is often; who reads it had rather see one place, if that will do.
            for move in each if len(each) <= _FEW_EVENTS else ():
                cut = frozenset({move[0]})
                self._compare(example, "round trip", Way(cut), (Way(cut, (move,), reads=True), Way(cut, (move,))))
            raise

    def _moves(self, example: Example, moves: Moves) -> Moves:
        """Which partitions go: those of the rows at hand, or as many further, as the example says."""
        given, partitions = example.given, example.partitions
        partition = given.partition(with_key(self.subject, given).key, partitions).tolist() or [0]
        rows = np.searchsorted(given.sn, [number for number, _ in moves], side="right") - 1
        at_hand = [partition[max(row, 0)] for row in rows.tolist()]
        return tuple((n, (pid + shift) % partitions) for (n, shift), pid in zip(moves, at_hand, strict=True))

    def _compare(self, example: Example, claim: str, one: Way, others: Iterable[Way]) -> None:
        expected, in_words = self._played(example, one), described(example.given, one)
        tried = {in_words}
        for other in others:
            other_in_words = described(example.given, other)
            if other_in_words in tried:
                continue
            tried.add(other_in_words)
            came = self._played(example, other)
            if first_difference(expected, came) is not None:
                claim = "floats" if claim == "batching" and is_rounding(expected, came) else claim
                ways = in_words, other_in_words
                story = Story(self.subject.name, claim, example.given, ways, (expected, came), form=self.subject.form)
                raise Fault(story)

    def _played(self, example: Example, way: Way, pace: int | None = None) -> list[Output]:
        chosen = replace(with_key(self.subject, example.given), partitions=example.partitions)
        moment = self.clock.at(NOW_S) if pace is None else self.clock.at(LATER_S, pace)
        with blamed(self.subject, example.given, described(example.given, way)), moment:
            return play(chosen, example.given, way)


def _drawn_by(run: Callable[[], object]) -> str:
    """What is said of random numbers that are drawn when it is run."""
    before = random.getstate(), repr(np.random.get_state())
    run()
    after = random.getstate(), repr(np.random.get_state())
    names = [name for name, a, b in zip(("random", "numpy.random"), before, after, strict=True) if a != b]
    return f"It draws random numbers, of {' and of '.join(names)}." if names else ""


@contextmanager
def _chance(seed: int, switch_s: float | None = None) -> Iterator[None]:
    """For a while random numbers are others for each seed, and the same for each; threads may take turns more often.

    hypothesis seeds them too, in the same way for each example: what is rare would be so in all of them.
    """
    interval_s, state, state_of_numpy = sys.getswitchinterval(), random.getstate(), np.random.get_state()
    try:
        sys.setswitchinterval(interval_s if switch_s is None else switch_s)
        random.seed(seed)
        np.random.seed(seed)
        yield
    finally:
        sys.setswitchinterval(interval_s)
        random.setstate(state)
        np.random.set_state(state_of_numpy)


def _repeats_without(outside: HiddenState, run: Callable[[], list[Output]]) -> bool:
    """Whether it gives the same each time if nothing remains outside of its instances from one run to the next."""
    outputs = []
    for _ in range(2):
        with outside.copied():
            outputs.append(run())
    return first_difference(*outputs) is None
