"""The properties that the protocol assumes of an operator: one method each, which raises `Fault` for a counterexample.

For each, the operator runs in this process over the same input in ways that must not matter, and the outputs are
compared. Each may rely on the ones before it: an operator that draws random numbers does not depend on batching. The
properties that need other processes are in `properties_subprocess`.
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
from .fault_report import Fault, Story, describe, first_difference, is_rounding
from .harness import GivenInput, InputMutated, Output, Subject, Way, play
from .hidden_state import HiddenState
from .strategies import Example

__all__ = ["Properties", "describe_changed", "raise_faults", "with_key"]

_FEW_EVENTS = 6  # The longest example for which each single place of a cut or a move is tried.

Moves = tuple[tuple[int, int], ...]


@contextmanager
def raise_faults(subject: Subject, given: GivenInput, way: str) -> Iterator[None]:
    """Turn what the operator raises into a `Fault` with the input that caused it; a `PlanError` has no such input."""
    try:
        yield
    except PlanError:
        raise
    except InputMutated as error:
        raise Fault(Story(subject.name, "input", given, (way,), error=error)) from None
    except FluxError as error:
        raise Fault(Story(subject.name, "raises", given, (way,), error=error)) from error


def with_key(subject: Subject, given: GivenInput) -> Subject:
    """Return the subject with a checked key. The default key is the only column."""
    names = given.rows.schema.names
    key = subject.key or tuple(names) or ("row",)
    if not subject.key and len(names) > 1:
        known = ", ".join(names)
        raise PlanError(f"check_operator: name the key among the columns {known}, as in key={names[0]!r}")
    unknown = [name for name in key if name not in names]
    if unknown and len(given.sn):
        raise PlanError(f"check_operator: the rows have no column {', '.join(unknown)}; they have {', '.join(names)}")
    return replace(subject, key=key)


def describe_changed(places: list[str]) -> str:
    """Name the places outside of its instances that an operator has written to."""
    return f"It changed {', '.join(places[:5])}."


@dataclass(frozen=True)
class Properties:
    """The properties of one operator that are checked in this process."""

    subject: Subject
    clock: FakeClock

    def repeats(self, example: Example) -> None:
        """The same input gives the same output each time."""
        way = Way(cuts=example.cuts)

        def run() -> list[Output]:
            return self._play(example, way)

        with _random_seed(0):
            one = run()
        with _random_seed(zlib.crc32(repr(example.events).encode(errors="replace")), switch_s=1e-6):
            other = run()
        if first_difference(one, other) is None:
            return
        hidden = HiddenState(self.subject.factory, self.subject.parameters)
        places = hidden.changed_by(run)
        claim, more = "repeats", _generators_used_by(run)
        if places and _is_repeatable_without(hidden, run):
            claim, more = "shared", describe_changed(places)
        ways = describe(example.given, way), "the same, once more"
        raise Fault(Story(self.subject.name, claim, example.given, ways, (one, other), more=more))

    def at_any_time(self, example: Example) -> None:
        """The output does not depend on the time of day, or on how much time passes."""
        way = Way(cuts=example.cuts)  # Time may pass within a batch and between batches.
        now = self._play(example, way)
        later = self._play(example, way, pace=example.pace)
        if first_difference(now, later) is None:
            return
        more = f"It reads the clock at {'; '.join(self.clock.read_at[:5])}" if self.clock.read_at else ""
        ways = (
            f"{describe(example.given, way)}, at {NOW_S:.0f} s",
            f"the same, from {LATER_S:.0f} s on, and {PACES[example.pace]}",
        )
        raise Fault(Story(self.subject.name, "clock", example.given, ways, (now, later), more=more))

    def batching(self, example: Example) -> None:
        """The output does not depend on where batches are cut."""
        places = example.each_row if len(example.events) <= _FEW_EVENTS else ()
        cuts = (example.cuts, example.each_row, *(frozenset({place}) for place in sorted(places)))
        self._compare(example, "batching", Way(), map(Way, cuts))

    def batching_of_many(self, example: Example) -> None:
        """The same for long inputs, with one set of cuts: more would take too long."""
        self._compare(example, "batching", Way(), [Way(cuts=example.cuts)])

    def round_trip(self, example: Example) -> None:
        """The output does not depend on when the state is read or moved, or on which partitions share a site."""
        # Both ways have the same cuts, so that they differ only in the moves.
        moves = self._moves(example, example.moves)
        cuts = frozenset(number for number, _ in moves)
        self._compare(example, "round trip", Way(cuts), (Way(cuts, moves), Way(cuts, moves, sites=2)))
        places = frozenset(range(1, len(example.events) + 1))
        each = self._moves(example, tuple((place, 0) for place in sorted(places)))
        try:
            self._compare(example, "round trip", Way(places), (Way(places, each, reads=True), Way(places, each)))
        except Fault:
            # A move after each event is hard to read. Report a single move if one is enough.
            for move in each if len(each) <= _FEW_EVENTS else ():
                cut = frozenset({move[0]})
                self._compare(example, "round trip", Way(cut), (Way(cut, (move,), reads=True), Way(cut, (move,))))
            raise

    def _moves(self, example: Example, moves: Moves) -> Moves:
        """Return the moves with their partitions: that of the last row, plus the shift of the example."""
        given, partitions = example.given, example.partitions
        partition = given.partition(with_key(self.subject, given).key, partitions).tolist() or [0]
        rows = np.searchsorted(given.sn, [number for number, _ in moves], side="right") - 1
        at_hand = [partition[max(row, 0)] for row in rows.tolist()]
        return tuple((n, (pid + shift) % partitions) for (n, shift), pid in zip(moves, at_hand, strict=True))

    def _compare(self, example: Example, claim: str, one: Way, others: Iterable[Way]) -> None:
        expected, in_words = self._play(example, one), describe(example.given, one)
        tried = {in_words}
        for other in others:
            other_in_words = describe(example.given, other)
            if other_in_words in tried:
                continue
            tried.add(other_in_words)
            got = self._play(example, other)
            if first_difference(expected, got) is not None:
                claim = "floats" if claim == "batching" and is_rounding(expected, got) else claim
                ways = in_words, other_in_words
                story = Story(self.subject.name, claim, example.given, ways, (expected, got), form=self.subject.form)
                raise Fault(story)

    def _play(self, example: Example, way: Way, pace: int | None = None) -> list[Output]:
        chosen = replace(with_key(self.subject, example.given), partitions=example.partitions)
        moment = self.clock.at(NOW_S) if pace is None else self.clock.at(LATER_S, pace)
        with raise_faults(self.subject, example.given, describe(example.given, way)), moment:
            return play(chosen, example.given, way)


def _generators_used_by(run: Callable[[], object]) -> str:
    """Run the operator; name the generators of random numbers that it uses, or return an empty text."""
    before = random.getstate(), repr(np.random.get_state())
    run()
    after = random.getstate(), repr(np.random.get_state())
    names = [name for name, a, b in zip(("random", "numpy.random"), before, after, strict=True) if a != b]
    return f"It draws random numbers from {' and from '.join(names)}." if names else ""


@contextmanager
def _random_seed(seed: int, switch_s: float | None = None) -> Iterator[None]:
    """Seed the generators of random numbers, and optionally set how often threads switch, until the block ends.

    hypothesis seeds them too, but with the same seed for each example: a rare outcome would be rare in all of them.
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


def _is_repeatable_without(hidden: HiddenState, run: Callable[[], list[Output]]) -> bool:
    """Return whether the output repeats if no hidden state remains from one run to the next."""
    outputs = []
    for _ in range(2):
        with hidden.replaced_by_copies():
            outputs.append(run())
    return first_difference(*outputs) is None
