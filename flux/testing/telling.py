"""Telling: what is wrong with an operator, to be read: the rows, the two ways, the first difference, what to do."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import zip_longest
from typing import Any

from ..punctuation import Punctuation
from .playing import Given, Output, Way

__all__ = ["ADVICE", "Fault", "described", "first_difference", "is_rounding", "raised", "told"]

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
        "an object that others share. It must not depend on os.getpid() or on how a process was started.",
    ),
    "hash order": (
        "depends on the order of a set or on hash()",
        "The hash of text differs from process to process, so copies of a partition would give different output.",
        "Iterate over sorted(some_set), or keep a dict, whose order is that of insertion; do not emit hash(value).",
    ),
}


class Fault(AssertionError):
    """An operator does not do what the protocol assumes; the text says what, with a small example."""

    def __init__(self, text: str, claim: str, size: int) -> None:
        super().__init__(text)
        self.claim = claim
        self.size = size  # Of the example.


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


def told(
    name: str,
    claim: str,
    given: Given,
    ways: tuple[str, str],
    outputs: tuple[Sequence[Output], Sequence[Output]],
    more: str = "",
) -> Fault:
    """The whole story."""
    says, means, advice = ADVICE[claim]
    place = first_difference(*outputs)
    lines = [f"{name} {says}.", "", "The input, in order:", *_events(given), ""]
    lines += [f"One way:   {ways[0]}", f"The other: {ways[1]}", ""]
    lines += _differing(outputs, place) if place is not None else []
    lines += [more, ""] if more else []
    lines += [f"What it means: {means}", f"What to do: {advice}"]
    return Fault("\n".join(lines), claim, len(given.sn) + len(given.marks))


def raised(name: str, claim: str, given: Given, way: str, error: BaseException) -> Fault:
    """The operator raised, or what it did was refused."""
    says, means, advice = ADVICE.get(claim, ("raises", "", ""))
    lines = [f"{name} {says}.", "", "The input, in order:", *_events(given), "", f"It was run: {way}", ""]
    lines += [f"{type(error).__name__}: {error}", ""]
    lines += [f"What it means: {means}"] * bool(means) + [f"What to do: {advice}"] * bool(advice)
    return Fault("\n".join(lines).rstrip(), claim, len(given.sn) + len(given.marks))


def described(given: Given, way: Way) -> str:
    """A way in words: the batches by the numbers in them, and the moves between them."""
    marks = {mark.sn: mark for mark in given.marks}
    moves = {number for number, _ in way.moves}
    parts: list[str] = []
    batch: list[int] = []
    for number in sorted([*given.sn.tolist(), *marks]):
        if number in marks:
            parts += [*_batch(batch), marks[number].kind]
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


def _events(given: Given) -> list[str]:
    events: dict[int, str] = {mark.sn: _mark(mark) for mark in given.marks}
    events |= dict(zip(given.sn.tolist(), (repr(row) for row in given.rows.to_pylist()), strict=True))
    lines = [f"{number:6}  {text:.{_SHOWN_CHARS}}" for number, text in sorted(events.items())]
    left = len(lines) - _LISTED
    return [*lines[: _LISTED - 1], f"        ... {left} more ...", lines[-1]] if left > 1 else lines


def _mark(mark: Punctuation) -> str:
    return f"-- {mark.kind}{'' if mark.value is None else f' {mark.value}'}"


def _differing(outputs: tuple[Sequence[Output], Sequence[Output]], place: int) -> list[str]:
    one, other = (_shown(some, place) for some in outputs)
    return [f"First difference, output number {place + 1}:", f"    one way:   {one}", f"    the other: {other}", ""]


def _shown(outputs: Sequence[Output], place: int) -> str:
    if place >= len(outputs):
        return f"nothing more; {len(outputs)} rows came out"
    output = outputs[place]
    # Another process gives the values as text, under no name.
    text = output.values.get("", None) or repr(output.values)
    return f"{text:.{_SHOWN_CHARS}}, of input {output.sn}"
