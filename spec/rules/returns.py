"""Removals of the rule of copies that go back: what an era leaves of changes of code."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ...protocols import editions
from ...protocols.egress import Egress
from ...protocols.messages import Position
from ..world import World
from .patch import Patch


def forget_changes_in_an_era(patch: Patch) -> None:
    """The view with which an era begins lists no changes."""
    own = World._era

    def era(world: World, name: str, detail: Any) -> None:
        if world.journal:
            world.superseded |= {edition.number: edition for edition in world.journal[-1].editions}
            world.journal[-1] = replace(world.journal[-1], editions=())
        own(world, name, detail)

    patch.put(World, "_era", era)


def count_what_was_received_in_this_era(patch: Patch) -> None:
    """An egress answers how far it has received rows since the era began, whatever its sinks have."""

    def reached(egress: Any, stages: frozenset[int], made: frozenset[int]) -> Position:
        is_new = any(lane.upto > egress.durable for lane in egress.cons.lanes.values())
        return editions.reached(egress.cons, stages, made) if is_new else 0

    own = Egress.__init__

    def begin(egress: Any, name: str, stage: int, durable: Position = 0, *ahead: Any) -> None:
        own(egress, name, stage, durable, *ahead)
        egress.durable = durable

    patch.put(Egress, "__init__", begin)
    patch.put(Egress, "reached", reached)
