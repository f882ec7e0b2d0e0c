"""Telling: what is wrong with an operator, to be read: the rows, the two ways, the first difference, what to do."""

from __future__ import annotations

import math
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

from ..model.operator import KeyedOperator, PooledOperator
from ..model.punctuation import Punctuation
from .harness import GivenInput, Output, Way

__all__ = ["ADVICE", "Fault", "Story", "described", "first_difference", "form_of", "is_rounding"]

_LISTED = 30
_SHOWN_CHARS = 160

# By claim: what is said of an operator for which it does not hold, what it means, and what to do.
ADVICE: dict[str, tuple[str, str, str]] = {
    "repeats": (
        "gives different output each time it is run",
        "Both copies of a partition are given the same rows, and would give different output.",
        "It must not draw random numbers, and not depend on id(), on uuid4(), or on the order in which threads end. "
        "Draw from a generator that you seed from the row, such as random.Random(row.id).",
    ),
    "chance": (
        "is non-deterministic: it does not do the same each time",
        "Both copies of a partition are given the same rows, and one of them would now and then do something else.",
        "It must not depend on chance: on random numbers, id(), uuid4(), or the order in which threads end; nor on "
        "what is outside of it: class attributes, globals, caches, files.",
    ),
    "clock": (
        "depends on the clock",
        "Both copies of a partition are given the same rows, at different times, and would give different output.",
        "Take time from a column of the rows, or from punctuations: on_punctuation(p) is given p.kind 'watermark' or "
        "'clock', with the milliseconds in p.value.",
    ),
    "input": (
        "writes to what is not its own",
        "Rows that it was given, or has emitted, are kept until all who need them have them.",
        "",
    ),
    "batching": (
        "depends on where batches are cut",
        "Copies of a partition are given the same rows in different batches, and would give different output.",
        "Keep what goes from row to row in the state and not in local variables, and emit what belongs to a row when "
        "that row comes, from the batch in which it is (origin=). The only boundaries one may see are punctuations.",
    ),
    "floats": (
        "sums floating-point numbers by batch",
        "The values differ in their last digits: a sum of floats depends on how they are grouped, and copies of a "
        "partition are given the same rows in different batches.",
        "Add values one after the other, in row order (total += value, numpy.cumsum from the last total), or exactly "
        "(math.fsum over all values, integers, Decimal, Fraction); numpy.sum and pyarrow's sum group them.",
    ),
    "round trip": (
        "does not come back from its state as it was",
        "When a copy is lost or moved, another is made from the state, and would give different output.",
        "Let get_state return everything that is kept from one row to the next, and install_state take it over; "
        "get_state itself changes nothing.",
    ),
    "shared": (
        "keeps state outside of its instances",
        "Copies of a partition that are in one process share it, and those in other processes have none of it.",
        "Keep state in attributes that open sets, as self.seen = {}, and let get_state return it; not in class "
        "attributes, globals or default arguments. Copy a parameter before you change it.",
    ),
    "process": (
        "depends on the process in which it runs",
        "Copies of a partition are in different processes, and would give different output.",
        "Keep state in attributes that open sets, and let get_state return it; not in files, in the environment or in "
        "an object that others share. It must not depend on os.getpid(), on how a process was started, or on the order "
        "of a set that came with its state.",
    ),
    "hash order": (
        "depends on the order of a set or on hash()",
        "The hash of text differs from process to process, so copies of a partition would give different output.",
        "Iterate over sorted(some_set), or keep a dict, whose order is that of insertion; do not emit hash(value).",
    ),
}

_SETS = "The order of a set does not come along: iterate over sorted(some_set)."
# What to do about state that does not come back, for those who have no get_state.
_STATE_OF = {
    "KeyedOperator": "Let on_tuple return everything that is kept for a key, as its state; attributes of the operator "
    "do not move, and all keys on a site share them.",
    "PooledOperator": "Let get_partition_state return everything that is kept of a partition, and nothing of others; "
    "install_partition_state take it over beside what is held, and drop_partition forget it.",
    "bytewax": "Let snapshot() return everything that is kept for a key, and builder(snapshot) take it over; "
    "snapshot() itself changes nothing.",
}


def form_of(says: Any) -> str:
    """By which methods an operator gives and takes its state."""
    kind = says if isinstance(says, type) else type(says)
    if issubclass(kind, KeyedOperator):
        return "KeyedOperator"
    if issubclass(kind, PooledOperator):
        return "PooledOperator"
    return "bytewax" if hasattr(kind, "notified_by") else "Operator"


class Fault(AssertionError):
    """An operator does not do what the protocol assumes; the text says what, with a small example."""

    def __init__(self, story: Story) -> None:
        super().__init__(story.text())
        self.claim = story.claim
        self.size = len(story.given.sn) + len(story.given.punctuations)  # Of the example.
        self.story = story

    def is_like(self, other: Fault) -> bool:
        """Whether it tells of the same: of the same claim, and what was raised in the same place."""
        return (self.claim, self.story.error_place()) == (other.claim, other.story.error_place())


@dataclass(frozen=True)
class Story:
    """What there is to tell: of which operator, which claim does not hold for which input, run in which ways."""

    name: str
    claim: str
    given: GivenInput
    ways: tuple[str, ...]
    outputs: tuple[Sequence[Output], Sequence[Output]] | None = None
    error: BaseException | None = None  # That it raised, or that was made of what it did.
    more: str = ""
    form: str = "Operator"

    def text(self) -> str:
        says, means, advice = ADVICE.get(self.claim, ("raises", "", ""))
        if self.claim == "round trip":
            advice = f"{_STATE_OF.get(self.form, advice)} {_SETS}"
        lines = [f"{self.name} {says}.", "", "The input, in order:", *_events(self.given), ""]
        if len(self.ways) > 1:
            lines += [f"One way:   {self.ways[0]}", f"The other: {self.ways[1]}", ""]
        else:
            lines += [f"It was run: {self.ways[0]}", ""]
        lines += _differing(self.outputs) if self.outputs is not None else []
        lines += [f"{type(self.error).__name__}: {self.error}", ""] if self.error is not None else []
        lines += [self.more, ""] if self.more else []
        lines += [f"What it means: {means}"] * bool(means) + [f"What to do: {advice}"] * bool(advice)
        return "\n".join(lines).rstrip()

    def error_place(self) -> tuple[str, str, int]:
        """What was raised, and where: the innermost line."""
        error = self.error if self.error is None or self.error.__cause__ is None else self.error.__cause__
        places = traceback.extract_tb(error.__traceback__) if error is not None else []
        file, line = (places[-1].filename, places[-1].lineno or 0) if places else ("", 0)
        return type(error).__name__, file, line


def first_difference(one: Sequence[Output], other: Sequence[Output]) -> int | None:
    """The index of the first output that differs; None if none does."""
    for i, (a, b) in enumerate(zip_longest(one, other)):
        if a is None or b is None or a.text() != b.text():
            return i
    return None


def is_rounding(one: Sequence[Output], other: Sequence[Output]) -> bool:
    """Whether outputs differ in the last digits of floats only."""
    if len(one) != len(other):
        return False
    return all(
        (a.sn, a.sub, a.partition, a.values.keys()) == (b.sn, b.sub, b.partition, b.values.keys())
        and all(map(_close, a.values.values(), b.values.values()))
        for a, b in zip(one, other, strict=True)
    )


def _close(a: Any, b: Any) -> bool:
    if isinstance(a, float) and isinstance(b, float):
        return math.isclose(a, b, rel_tol=1e-9, abs_tol=1e-12) or repr(a) == repr(b)
    return repr(a) == repr(b)


def described(given: GivenInput, way: Way) -> str:
    """A way in words: the batches by the numbers in them, and the moves between them."""
    punctuations = {mark.sn: mark for mark in given.punctuations}
    moves = {number for number, _ in way.moves}
    parts: list[str] = []
    batch: list[int] = []
    for number in sorted([*given.sn.tolist(), *punctuations]):
        if number in punctuations:
            parts += [*_batch(batch), punctuations[number].kind]
            batch = []
        else:
            batch.append(number)
        if number in way.cuts or number in moves:
            parts += _batch(batch)
            batch = []
        if number in moves:
            parts += _moved([pid for moved, pid in way.moves if moved == number], way.reads)
    return " ".join(parts + _batch(batch)) + (" on two sites" if way.sites > 1 else "")


def _moved(pids: list[int], reads: bool) -> Iterator[str]:
    """What happens to partitions at one place: one that goes twice is back where it was."""
    once = sorted({pid for pid in pids if reads or pids.count(pid) % 2})
    back = sorted({*pids} - {*once})
    for some, what in ((once, "is read" if reads else "goes to another site"), (back, "goes to another site and back")):
        if some:
            yield f"(state of partition {', '.join(map(str, some))} {what})"


def _batch(numbers: list[int]) -> list[str]:
    if len(numbers) < 2:
        return [f"[{number}]" for number in numbers]
    return [f"[{numbers[0]} to {numbers[-1]}]"]


def _events(given: GivenInput) -> list[str]:
    events: dict[int, str] = {mark.sn: _mark(mark) for mark in given.punctuations}
    events |= dict(zip(given.sn.tolist(), (repr(row) for row in given.rows.to_pylist()), strict=True))
    lines = [f"{number:6}  {text:.{_SHOWN_CHARS}}" for number, text in sorted(events.items())]
    left = len(lines) - _LISTED
    return [*lines[: _LISTED - 1], f"        ... {left} more ...", lines[-1]] if left > 1 else lines


def _mark(mark: Punctuation) -> str:
    return f"-- {mark.kind}{'' if mark.value is None else f' {mark.value}'}"


def _differing(outputs: tuple[Sequence[Output], Sequence[Output]]) -> list[str]:
    place = first_difference(*outputs)
    if place is None:
        return []
    one, other = (_shown(some, place) for some in outputs)
    return [f"First difference, output number {place + 1}:", f"    one way:   {one}", f"    the other: {other}", ""]


def _shown(outputs: Sequence[Output], place: int) -> str:
    if place >= len(outputs):
        return f"nothing more; {len(outputs)} rows came out"
    output = outputs[place]
    # Another process gives the values as text, under no name.
    text = output.values.get("", None) or repr(output.values)
    return f"{text:.{_SHOWN_CHARS}}, of input {output.sn}"
