"""Placement: where the controller has copies built, from which donor, and the views that say so."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

from .messages import Standby, View


def without(view: View, node: str) -> View:
    """The view when `node` is dead. A standby that lost its donor stays: only its site knows if it has the state."""
    kept = tuple(s for s in view.standby if s.node != node)
    return replace(view, dead=view.dead | {node}, standby=kept, slow=view.slow - {node})


def with_standby(view: View, stage: int, partition: int, slot: int, node: str) -> View:
    """The view with one more copy to be built."""
    standby = Standby(
        version=view.versions + 1,
        stage=stage,
        partition=partition,
        slot=slot,
        node=node,
        donor=donor(view, stage, partition, slot),
    )
    return replace(view, standby=(*view.standby, standby), versions=standby.version)


def donor(view: View, stage: int, partition: int, slot: int) -> str:
    """A live copy other than the one in `slot`, which leaves its site, and one that is not slow if possible (rule 34).

    The site that a copy leaves is often overloaded: the new copy would begin as far back as that one lags.
    """
    leaving = view.copies[stage][partition][slot]
    return min(view.live_copies(stage, partition), key=lambda node: (node == leaving, node in view.slow))


def placed(view: View, done: Standby) -> tuple[tuple[tuple[str, ...], ...], ...]:
    """The copies with `done` in its slot, or in that of a copy that died since, so that no live copy is replaced."""
    stage = list(view.copies[done.stage])
    copies = list(stage[done.partition])
    copies[next((slot for slot, node in enumerate(copies) if node in view.dead), done.slot)] = done.node
    stage[done.partition] = tuple(copies)
    return (*view.copies[: done.stage], tuple(stage), *view.copies[done.stage + 1 :])


def sites(view: View) -> list[str]:
    """The live nodes that may hold copies: all but the ingress and the egresses."""
    ends = {node for stage, copies in enumerate(view.copies) if view.is_end(stage) for node in copies[0]}
    return [node for node in view.nodes if view.alive(node) and node not in ends]


def load(view: View) -> Counter[str]:
    """The number of copies that each node has, or is to have."""
    found = Counter(node for partitions in view.copies for copies in partitions for node in copies)
    found.update(standby.node for standby in view.standby)
    return found


def best_place(view: View, stage: int, partition: int, costs: Mapping[str, float]) -> str | None:
    """The live site with the least load that has no copy of this partition; None if there is no such site.

    The load is the number of copies with the new one, times what a copy costs that site. A slow site comes last.
    """
    taken = view.live_copies(stage, partition)
    free = [node for node in sites(view) if node not in taken]
    loads = load(view)
    usual = sum(costs.values()) / len(costs) if costs else 1.0

    def weight(node: str) -> tuple[bool, float, int]:
        return node in view.slow, (loads[node] + 1) * costs.get(node, usual), view.nodes.index(node)

    return min(free, key=weight, default=None)
