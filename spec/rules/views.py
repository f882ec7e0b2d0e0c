"""What is taken out: rules about views: who is a member, who is heard, what the controller may decide, restarts."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from ...protocols import controller as controller_module
from ...protocols.controller import Controller
from ...protocols.egress import Egress
from ...protocols.messages import Effect, Hello, PeerMessage, Publish, Resend, View
from ...protocols.node import Node
from ...protocols.view_retention import ViewRetention
from .. import world as world_module
from ..invariants import Checker, FencedIsMute, all_checkers
from ..process import CONTROLLER, Watch
from ..recovery import SourceFirst, ViewsStaySmall
from ..world import World
from .patch import Patch


def _look_away(patch: Patch, checker: type[Checker]) -> None:
    """Who would notice at once does not look: what is shown is what comes of it."""
    patch.put(world_module, "_ALL", Watch(kept for kept in all_checkers() if not isinstance(kept, checker)))


# --- who is heard -----------------------------------------------------------------------------------------


def discard_what_comes_too_early(patch: Patch) -> None:
    """A message of a view that the receiver has not seen yet is thrown away."""
    patch.put(Node, "hold", lambda node, message: iter(()))


def hear_the_dead(patch: Patch) -> None:
    """A message counts whether its sender is dead in the view or not; who would notice that at once looks away."""
    own = Node.is_from_a_member

    def is_from_a_member(node: Node, message: PeerMessage) -> bool:
        assert node.view is not None
        return message.sender in node.view.dead or own(node, message)

    patch.put(Node, "is_from_the_dead", lambda node, message: False)
    patch.put(Node, "is_from_a_member", is_from_a_member)
    _look_away(patch, FencedIsMute)


def keep_what_the_dead_had_said(patch: Patch) -> None:
    """Messages that were held for a view count when it comes, also if it says that their sender is dead."""

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


def give_up_a_copy_on_its_way(patch: Patch) -> None:
    """A partition is lost when its last finished copy is, whether another is on its way or not."""
    own = View.lost
    patch.put(View, "lost", lambda view: own(replace(view, standby=())))


def keep_a_dead_standby(patch: Patch) -> None:
    """A copy on its way to a site that died stays in the view."""
    patch.put(controller_module, "_without", lambda view, node: replace(view, dead=view.dead | {node}))


def declare_the_last_copy_dead(patch: Patch) -> None:
    """A site that is slow or cut off is declared dead whatever it holds."""
    patch.put(Controller, "_can_be_spared", lambda controller: controller_module._sites(controller.view))


def forget_who_has_the_last_copy_on_its_way(patch: Patch) -> None:
    """A site may go that is to have the last copy of a partition, and may have it by now."""
    own = View.needs
    patch.put(View, "needs", lambda view, node: own(replace(view, standby=()), node))


def keep_everybody_while_a_last_copy_is_on_its_way(patch: Patch) -> None:
    """While the last copy of a partition is on its way, no site may go."""
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
    patch.put(controller_module, "_best_place", lambda view, stage, partition: view.live_copies(stage, partition)[0])


def rebuild_from_destination_to_source(patch: Patch) -> None:
    """Lost copies are rebuilt in the stage nearest to the egress first."""

    def with_recovery(controller: Controller, view: View) -> View:
        for stage in reversed(range(len(view.copies))):
            for partition, copies in enumerate(() if view.is_end(stage) else view.copies[stage]):
                building = {s.partition for s in view.standby if s.stage == stage}
                dead = [slot for slot, node in enumerate(copies) if node in view.dead]
                node = controller_module._best_place(view, stage, partition) if dead else None
                if node is not None and partition not in building and len(building) < controller.at_once:
                    view = controller_module._with_standby(view, stage, partition, dead[0], node)
            if any(standby.stage == stage for standby in view.standby):
                return view
        return view

    patch.put(Controller, "_with_recovery", with_recovery)
    _look_away(patch, SourceFirst)  # That is preference.


# --- who is forgotten -------------------------------------------------------------------------------------


def leave_the_dead_out_at_once(patch: Patch) -> None:
    """The view in which a node dies does not list it any more, if it has no slot."""
    own = Controller._forgetting

    def forgetting(controller: Controller, view: View) -> View:
        told, controller.view = controller.view, replace(controller.view, dead=view.dead)
        left = own(controller, view)
        controller.view = told
        return left

    patch.put(Controller, "_forgetting", forgetting)
    _look_away(patch, ViewsStaySmall)


def leave_out_who_is_in_a_slot(patch: Patch) -> None:
    """The dead are left out whether others have their slots or not."""

    def forgetting(controller: Controller, view: View) -> View:
        gone = controller.view.dead if controller.number else frozenset()
        return replace(view, nodes=tuple(n for n in view.nodes if n not in gone), dead=view.dead - gone)

    patch.put(Controller, "_forgetting", forgetting)
    _look_away(patch, ViewsStaySmall)


def hear_the_forgotten(patch: Patch) -> None:
    """A message counts if its sender is not listed any more; who would notice that at once looks away."""
    own = Node.is_from_a_member

    def is_from_a_member(node: Node, message: PeerMessage) -> bool:
        if node.view is None or message.sender in node.view.nodes or message.view > node.number:
            return own(node, message)
        return node._stage(message) in node.machines

    patch.put(Node, "is_from_a_member", is_from_a_member)
    _look_away(patch, FencedIsMute)


def take_the_forgotten_for_strangers(patch: Patch) -> None:
    """Who is not listed and says something is no process of this run; a run in which that happens cannot go on."""
    patch.put(View, "has_forgotten", lambda view, node, seen=0: False)


def take_in_a_forgotten_site(patch: Patch) -> None:
    """A site that is not listed is a new one, if it has not seen a view; it may have been listed in one."""
    own = View.has_forgotten
    patch.put(View, "has_forgotten", lambda view, node, seen=0: seen > 0 and own(view, node, seen))
    _look_away(patch, ViewsStaySmall)


# --- restarts ---------------------------------------------------------------------------------------------


def send_a_view_before_it_is_in_the_journal(patch: Patch) -> None:
    """The controller crashes when its last view is sent and not written yet."""
    own = World._restart

    def restart(world: World, name: str, detail: Any) -> None:
        if name == CONTROLLER:
            del world.journal[-1:]
        own(world, name, detail)

    patch.put(World, "_restart", restart)


def send_views_to_everybody(patch: Patch) -> None:
    """A view goes also to nodes that are not connected again and may lack the one before it."""
    own = Controller._change

    def change(controller: Controller, view: View) -> Iterator[Effect]:
        for effect in own(controller, view):
            if isinstance(effect, Publish):
                effect = replace(effect, to=tuple(node for node in effect.view.nodes if effect.view.alive(node)))
            yield effect

    patch.put(Controller, "_change", change)


def do_not_send_views_again(patch: Patch) -> None:
    """A node that lacks views when it connects is not sent them."""
    own = Controller.welcome

    def welcome(controller: Controller, message: Hello) -> Iterator[Effect]:
        return (effect for effect in own(controller, message) if not isinstance(effect, Resend))

    patch.put(Controller, "welcome", welcome)


def keep_the_last_view_only(patch: Patch) -> None:
    """The journal has no view but the last one."""
    patch.put(ViewRetention, "by_all", property(lambda seen: max(seen.upto.values(), default=0)))


def take_silence_for_having_seen(patch: Patch) -> None:
    """Who has not been heard by a controller that was started again has seen all views."""
    own = ViewRetention.__init__

    def begin(seen: ViewRetention, last: View | None) -> None:
        own(seen, last)
        seen.upto = {}

    patch.put(ViewRetention, "__init__", begin)


def let_any_process_serve_an_end(patch: Patch) -> None:
    """Whoever comes last to serve an end does, also if it was started before the one that does."""
    patch.put(Controller, "is_late", lambda controller, message: False)


def begin_the_output_anew(patch: Patch) -> None:
    """An egress that is started again does not begin behind what its sink has made durable."""
    own = Egress.__init__
    patch.put(Egress, "__init__", lambda egress, name, stage, *durable: own(egress, name, stage))
