"""Removals of the rules of changes of code: where a change is made, what is held for it, and when it is over."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import replace

from ...protocols import changes as changes_module
from ...protocols import egress as egress_module
from ...protocols import pooler as pooler_module
from ...protocols.change_messages import Reconfigure
from ...protocols.changes import Changes
from ...protocols.fh_cons import FhCons
from ...protocols.messages import Position, View
from ...protocols.node import Node
from ...protocols.pooler import Pooler
from .patch import Patch

# --- one position -----------------------------------------------------------------------------------------


def step_across_a_change(patch: Patch) -> None:
    """A step takes rows before and after a change, by the code of the first of them."""
    patch.put(View, "next_cut", lambda view, stage, position, at=False: None)


def change_each_stage_at_its_own_position(patch: Patch) -> None:
    """Stage 2 changes one row later than stage 1."""
    own = View.edition_at
    patch.put(View, "edition_at", lambda view, stage, position: own(view, stage, position - (stage == 2)))


def take_a_state_at_the_change_for_a_new_one(patch: Patch) -> None:
    """A state at the position of a change is taken for one of the new edition, and is not migrated."""
    patch.put(View, "edition_of_state", View.edition_at)


def give_a_sink_rows_of_both_editions(patch: Patch) -> None:
    """A sink takes rows from before and after a change at once, though they may have other columns."""
    patch.put(View, "closing_stages", lambda view, edition: edition.stages)
    patch.put(View, "_closing_stages", property(lambda view: {e.number: e.stages for e in view.editions}))


# --- what is held, and what answers -----------------------------------------------------------------------


def hold_nothing(patch: Patch) -> None:
    """A node that has answered that it is bound goes on."""
    patch.put(Node, "_bind_poolers", lambda node, position: None)


def never_refuse(patch: Patch) -> None:
    """A node answers that it is bound, however far it is."""
    patch.put(Pooler, "reached", lambda pooler, stages, made: 0)


def count_finished_steps_only(patch: Patch) -> None:
    """Rows at which an operator is at work do not count."""

    def reached(cons: FhCons, stages: Set[int], made: Set[int]) -> int:
        return _reached(cons, stages, made, finished_only=True)

    patch.put(pooler_module, "reached", reached)


def count_no_early_rows(patch: Patch) -> None:
    """Of a stage that does not wait for the merge, only the position counts, and not what it has taken beyond it."""

    def reached(cons: FhCons, stages: Set[int], made: Set[int]) -> int:
        return _reached(cons, stages, made, without_early=True)

    patch.put(pooler_module, "reached", reached)


def count_nothing_received(patch: Patch) -> None:
    """What was received from a stage that changes, and was not consumed, does not count."""

    def reached(cons: FhCons, stages: Set[int], made: Set[int]) -> int:
        return _reached(cons, stages, made, without_received=True)

    patch.put(pooler_module, "reached", reached)
    patch.put(egress_module, "reached", reached)


def let_the_egress_agree(patch: Patch) -> None:
    """An egress never refuses."""
    patch.put(egress_module, "reached", lambda cons, stages, made: 0)


def _reached(
    cons: FhCons,
    stages: Set[int],
    made: Set[int],
    finished_only: bool = False,
    without_early: bool = False,
    without_received: bool = False,
) -> int:
    assert cons.view is not None
    edges, lanes = cons.view.edges, () if without_received else cons.lanes.values()
    positions = [lane.upto for lane in lanes if edges[lane.edge][0] in made]
    for own in cons.cohorts.values() if cons.stage in stages else ():
        begun = own.consumed if own.working_upto is None or finished_only else own.working_upto
        partitions = () if without_early else own.partitions
        positions += [begun, *(early.position for p in partitions for early in cons.ahead(p, begun))]
    return max(positions, default=0)


def ask_the_changing_stages_only(patch: Patch) -> None:
    """Sites that hold copies of later stages only, and the egress, are not asked."""

    def receivers(changes: Changes, view: View) -> frozenset[str]:
        return frozenset(node for stage in changes.requests[0].stages for node in view.members(stage))

    patch.put(Changes, "_receivers", receivers)


def propose_earlier_positions(patch: Patch) -> None:
    """A later change of a stage may be at an earlier position than the first one."""
    own = Changes._next_position

    def next_position(changes: Changes, view: View, request: Reconfigure, binds_ingress: bool) -> int:
        changes.furthest = 0
        return own(changes, replace(view, editions=()), request, binds_ingress)

    patch.put(Changes, "_next_position", next_position)


def never_bind_the_ingress(patch: Patch) -> None:
    """Positions are proposed for ever, each too early."""
    patch.put(changes_module, "FREE_PROPOSALS_MAX", 1_000_000)


# --- copies in transfer -----------------------------------------------------------------------------------


def ask_no_site_of_a_copy_in_transfer(patch: Patch) -> None:
    """Sites are asked that hold copies, and not those that are to get one."""

    def receivers(changes: Changes, view: View) -> frozenset[str]:
        stages = view.downstream(changes.requests[0].stages)
        return frozenset(node for stage in stages for node in view.holders(stage))

    patch.put(Changes, "_receivers", receivers)


def hold_only_copies_that_are_here(patch: Patch) -> None:
    """A site is bound for the copies that it has, and not for one that arrives later."""

    def bind_poolers(node: Node, position: Position) -> None:
        assert node.proposed is not None
        for stage in node.proposed.stages & node.machines.keys():
            machine = node.machines[stage]
            assert isinstance(machine, Pooler)
            machine.cons.bound = position if machine.cons.cohorts else None

    patch.put(Node, "_bind_poolers", bind_poolers)


# --- early rows -------------------------------------------------------------------------------------------


def take_early_rows_across_a_change(patch: Patch) -> None:
    """A stage that does not wait for the merge takes rows after a change with those before it."""
    own = View.next_cut
    patch.put(View, "next_cut", lambda view, stage, position, at=False: None if at else own(view, stage, position, at))


def take_early_rows_while_bound(patch: Patch) -> None:
    """A stage that does not wait for the merge takes rows after the position to which its site is bound."""
    own = FhCons._next_cut

    def next_cut(cons: FhCons, position: Position, at: bool = False) -> Position | None:
        bound = cons.bound
        cons.bound = None if at else bound
        cut = own(cons, position, at)
        cons.bound = bound
        return cut

    patch.put(FhCons, "_next_cut", next_cut)
