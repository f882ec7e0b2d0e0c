"""How far a consumer is: what the nodes report before and after the code of a stage changes (rules 45, 46, 52)."""

from __future__ import annotations

from collections.abc import Set

from .fh_cons import FhCons
from .messages import Position


def reached(cons: FhCons, stages: Set[int], made: Set[int]) -> Position:
    """The highest position that was begun here in `stages`, or received of what any stage in `made` emits."""
    assert cons.view is not None
    edges = cons.view.edges
    positions = [lane.upto for lane in cons.lanes.values() if edges[lane.edge][0] in made]
    for own in cons.cohorts.values() if cons.stage in stages else ():
        begun = own.consumed if own.working_upto is None else own.working_upto
        positions += [begun, *(early.position for p in own.partitions for early in cons.ahead(p, begun))]
    return max(positions, default=0)


def longest_step(cons: FhCons) -> Position:
    """The positions that the longest of the steps in progress takes, or of those that may be next."""
    ends = {k: own.working_upto or cons.reach(k) for k, own in cons.cohorts.items()}
    return max([upto - cons.cohorts[k].consumed for k, upto in ends.items()], default=0)


def has_passed(cons: FhCons, position: Position) -> bool:
    """Whether all cohorts have consumed rows after `position`."""
    return all(own.consumed > position for own in cons.cohorts.values())
