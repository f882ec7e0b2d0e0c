"""Drain: the choice of the next copies to move, until a site is empty."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterator

from ..protocols.messages import Move, View

MOVES_AT_ONCE_MAX = 4


def is_empty(view: View, site: str) -> bool:
    """Whether `site` holds no copy and no standby."""
    held = any(site in copies for partitions in view.copies for copies in partitions)
    return not held and all(standby.node != site for standby in view.standby)


def moves_off(view: View, draining: Container[str], sites: list[str]) -> Iterator[Move]:
    """Yield moves of copies off the draining sites, to those of `sites` with the fewest, a few at a time."""
    load = Counter(node for partitions in view.copies for copies in partitions for node in copies)
    load.update(standby.node for standby in view.standby)
    building = {(standby.stage, standby.partition) for standby in view.standby}
    room = MOVES_AT_ONCE_MAX - len(view.standby)
    for stage, partitions in enumerate(view.copies):
        if view.is_end(stage):
            continue
        for partition, copies in enumerate(partitions):
            free = [node for node in sites if node not in copies and node not in draining]
            leaving = [slot for slot, node in enumerate(copies) if node in draining and view.alive(node)]
            if room > 0 and free and leaving and (stage, partition) not in building:
                to = min(free, key=lambda node: (load[node], node))
                load[to] += 1
                room -= 1
                yield Move(stage=stage, partition=partition, slot=leaving[0], to=to)
