"""Eras: a dataflow that has lost all its processes begins again from a checkpoint, with its journals and its sinks.

It stands in for checkpoints until they exist: what a part of one would hold is taken from the plain run. All copies go
back to the position of the checkpoint; a sink has what was durable there, and is asked for nothing before that. The
last view in the journal has the changes of code; nothing else of it counts.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from ..protocols.messages import Edition
from .checker import CopyPlace
from .dataflow import EGRESS, OperatorState, Row, Scenario


class Restored(NamedTuple):
    """What the first process of a name begins with, in an era whose copies begin at `position`."""

    position: int
    states: dict[CopyPlace, OperatorState]
    through: dict[CopyPlace, int]
    history: dict[CopyPlace, tuple[Row, ...]]


def restored(scenario: Scenario, node: str, position: int, editions: Iterable[Edition], sinks: Restored) -> Restored:
    """What `node` begins with: the parts of a checkpoint, or what the `sinks` have."""
    if node == EGRESS:
        return sinks._replace(position=position)
    reference = scenario.reference_of(editions)
    places = [(stage, p) for stage in range(1, scenario.stages + 1) for p in scenario.held(node, stage)]
    return Restored(
        position,
        {place: reference.state(*place, position) for place in places},
        dict.fromkeys(places, position),
        {place: tuple(reference.rows(*place, 0, position)) for place in places},
    )
