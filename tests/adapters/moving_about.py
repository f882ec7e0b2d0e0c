"""Runs an operator in one process, and moves its partitions, as bytes, between two sites while it runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flux.model.punctuation import Punctuation
from flux.testing.harness import GivenInput, Subject, Way, play

PARTITIONS = 3


def emitted(
    operator: Any,
    events: Sequence[Any],
    key: tuple[str, ...],
    moves: Sequence[int] = (),
    ends: bool = True,
    **parameters: Any,
) -> list[dict[str, Any]]:
    """The rows that come out; behind each event in `moves`, counted from 0, all partitions go to the other site."""
    given = GivenInput.of([*events, *([Punctuation(0, "end")] if ends else [])])
    way = Way(moves=tuple((number + 1, pid) for number in moves for pid in range(PARTITIONS)))
    subject = Subject(operator, key, parameters, PARTITIONS, operator.__name__)
    return [output.values for output in play(subject, given, way)]
