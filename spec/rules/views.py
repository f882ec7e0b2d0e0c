"""Removals of rules about views: membership, whose messages count, what the controller may decide, restarts."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from ...protocols import placement
from ...protocols.controller import Controller
from ...protocols.egress import Egress
from ...protocols.messages import Effect, Hello, PeerMessage, Publish, Resend, View
from ...protocols.node import Node
from ...protocols.view_retention import ViewRetention
from ..invariants import FencedIsMute
from ..process import CONTROLLER
from ..recovery import SourceFirst, ViewsStaySmall
from ..world import World
from .patch import Patch, disable_checker

# --- whose messages count ---------------------------------------------------------------------------------


def discard_early_messages(patch: Patch) -> None:
    """A message of a view that the receiver does not have yet is dropped."""
    patch.put(Node, "hold", lambda node, message: iter(()))


def accept_messages_from_the_dead(patch: Patch) -> None:
    """A message counts whether its sender is dead in the view or not; the checker of that is off."""
    own = Node.is_from_a_member

    def is_from_a_member(node: Node, message: PeerMessage) -> bool:
        assert node.view is not None
        return message.sender in node.view.dead or own(node, message)

    patch.put(Node, "is_from_the_dead", lambda node, message: False)
    patch.put(Node, "is_from_a_member", is_from_a_member)
    disable_checker(patch, FencedIsMute)


def keep_held_messages_of_the_dead(patch: Patch) -> None:
    """Messages that were held for a view count when it arrives, also if their sender is dead in it."""

    def adopt(node: Node, view: View) -> Iterator[Effect]:
        node.view = view
        for stage in sorted(node.machines):
            yield from node.machines[stage].step(view)
        held, node.held = node.held, deque()
        for message in held:
            later = message.view > view.number
            yield from node.hold(message) if later else node.hand_over(message)

    patch.put(Node, "adopt", adopt)


def begin_with_the_first_view_only(patch: Patch) -> None:
    """A node begins with view 1, and not with the one in which it is first listed."""
    patch.put(Node, "follows", lambda node, view: view.number == node.number + 1)


# --- what the controller decides --------------------------------------------------------------------------


def give_up_a_copy_in_transfer(patch: Patch) -> None:
    """A partition is lost when its last finished copy is, whether another is in transfer or not."""
    own = View.lost
    patch.put(View, "lost", lambda view: own(replace(view, standby=())))


def keep_a_dead_standby(patch: Patch) -> None:
    """A copy in transfer to a site that died stays in the view."""
    patch.put(placement, "without", lambda view, node: replace(view, dead=view.dead | {node}))


def declare_the_last_copy_dead(patch: Patch) -> None:
    """A site that is slow or cut off is declared dead whatever it holds."""
    patch.put(Controller, "_can_be_spared", lambda controller: placement.sites(controller.view))


def spare_the_site_of_a_last_copy_in_transfer(patch: Patch) -> None:
    """A site can be spared that is to get the last copy of a partition, and may have it by now."""
    own = View.needs
    patch.put(View, "needs", lambda view, node: own(replace(view, standby=()), node))


def spare_no_site_during_a_last_transfer(patch: Patch) -> None:
    """While the last copy of a partition is in transfer, no site can be spared."""
    own = View.needs

    def needs(view: View, node: str) -> bool:
        return own(view, node) or any(not view.live_copies(s.stage, s.partition) for s in view.standby)

    patch.put(View, "needs", needs)


def move_to_a_site_that_has_a_copy(patch: Patch) -> None:
    """A copy may be moved to any site that is alive."""
    own = Controller.is_possible

    def is_possible(controller: Controller, message: Any) -> bool:
        return own(controller, message) or (controller.number > 0 and controller.view.alive(message.to))

    patch.put(Controller, "is_possible", is_possible)


def rebuild_where_the_other_copy_is(patch: Patch) -> None:
    """A lost copy is rebuilt on the site of its donor."""
    patch.put(placement, "best_place", lambda view, stage, partition, costs: view.live_copies(stage, partition)[0])


def rebuild_from_destination_to_source(patch: Patch) -> None:
    """Lost copies are rebuilt in the stage nearest to the egress first."""

    def with_recovery(controller: Controller, view: View) -> View:
        for stage in reversed(range(len(view.copies))):
            for partition, copies in enumerate(() if view.is_end(stage) else view.copies[stage]):
                building = {s.partition for s in view.standby if s.stage == stage}
                dead = [slot for slot, node in enumerate(copies) if node in view.dead]
                node = placement.best_place(view, stage, partition, {}) if dead else None
                if node is not None and partition not in building and len(building) < controller.at_once:
                    view = placement.with_standby(view, stage, partition, dead[0], node)
            if any(standby.stage == stage for standby in view.standby):
                return view
        return view

    patch.put(Controller, "_with_recovery", with_recovery)
    disable_checker(patch, SourceFirst)  # That order is a preference.


# --- which nodes are forgotten ----------------------------------------------------------------------------


def omit_the_dead_at_once(patch: Patch) -> None:
    """The view in which a node dies does not list it any more, if it has no slot."""
    own = Controller._forgetting

    def forgetting(controller: Controller, view: View) -> View:
        last, controller.view = controller.view, replace(controller.view, dead=view.dead)
        smaller = own(controller, view)
        controller.view = last
        return smaller

    patch.put(Controller, "_forgetting", forgetting)
    disable_checker(patch, ViewsStaySmall)


def omit_the_dead_in_a_slot(patch: Patch) -> None:
    """The dead are omitted whether their slots were reassigned or not."""

    def forgetting(controller: Controller, view: View) -> View:
        gone = controller.view.dead if controller.number else frozenset()
        return replace(view, nodes=tuple(n for n in view.nodes if n not in gone), dead=view.dead - gone)

    patch.put(Controller, "_forgetting", forgetting)
    disable_checker(patch, ViewsStaySmall)


def accept_messages_from_the_forgotten(patch: Patch) -> None:
    """A message counts if its sender is not listed any more; the checker of that is off."""
    own = Node.is_from_a_member

    def is_from_a_member(node: Node, message: PeerMessage) -> bool:
        if node.view is None or message.sender in node.view.nodes or message.view > node.number:
            return own(node, message)
        return node._stage(message) in node.machines

    patch.put(Node, "is_from_a_member", is_from_a_member)
    disable_checker(patch, FencedIsMute)


def take_the_forgotten_for_strangers(patch: Patch) -> None:
    """The sender of a message that is not listed counts as a process of another run; then this run cannot continue."""
    patch.put(View, "has_forgotten", lambda view, node, seen=0: False)


def accept_a_forgotten_site(patch: Patch) -> None:
    """A site that is not listed is a new one, if it has no view; it may have been listed in one."""
    own = View.has_forgotten
    patch.put(View, "has_forgotten", lambda view, node, seen=0: seen > 0 and own(view, node, seen))
    disable_checker(patch, ViewsStaySmall)


# --- restarts ---------------------------------------------------------------------------------------------


def send_a_view_before_it_is_in_the_journal(patch: Patch) -> None:
    """The controller crashes when its last view is sent and not in the journal yet."""
    own = World._restart

    def restart(world: World, name: str, detail: Any) -> None:
        if name == CONTROLLER:
            del world.journal[-1:]
        own(world, name, detail)

    patch.put(World, "_restart", restart)


def send_views_to_all_nodes(patch: Patch) -> None:
    """A view is also sent to nodes that have not connected again and may lack the one before it."""
    own = Controller._change

    def change(controller: Controller, view: View) -> Iterator[Effect]:
        for effect in own(controller, view):
            if isinstance(effect, Publish):
                effect = replace(effect, to=tuple(node for node in effect.view.nodes if effect.view.alive(node)))
            yield effect

    patch.put(Controller, "_change", change)


def do_not_resend_views(patch: Patch) -> None:
    """A node that lacks views when it connects does not get them."""
    own = Controller.welcome

    def welcome(controller: Controller, message: Hello) -> Iterator[Effect]:
        return (effect for effect in own(controller, message) if not isinstance(effect, Resend))

    patch.put(Controller, "welcome", welcome)


def keep_the_last_view_only(patch: Patch) -> None:
    """The journal has only the last view."""
    patch.put(ViewRetention, "by_all", property(lambda seen: max(seen.upto.values(), default=0)))


def take_silence_for_having_all_views(patch: Patch) -> None:
    """A node that has not connected to a restarted controller is taken to have all views."""
    own = ViewRetention.__init__

    def begin(seen: ViewRetention, last: View | None) -> None:
        own(seen, last)
        seen.upto = {}

    patch.put(ViewRetention, "__init__", begin)


def let_any_process_serve_an_end(patch: Patch) -> None:
    """The last process that offers to serve an end serves it, also if it was started before the current one."""
    patch.put(Controller, "is_late", lambda controller, message: False)


def restart_the_output_from_zero(patch: Patch) -> None:
    """A restarted egress does not resume after what its sink has made durable."""
    own = Egress.__init__
    patch.put(Egress, "__init__", lambda egress, name, stage, *durable: own(egress, name, stage))
