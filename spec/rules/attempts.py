"""Removals of the rules of attempts at a change of code: when one counts, what it binds, and when a change is over."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from ...protocols import changes as changes_module
from ...protocols import controller as controller_module
from ...protocols.change_messages import Bound, Cannot
from ...protocols.changes import Changes
from ...protocols.controller import Controller
from ...protocols.editions import has_passed
from ...protocols.messages import Connected, Edition, Effect, Hello, SendToController, View
from ...protocols.node import Node
from ...protocols.pooler import Pooler
from .patch import Patch

# --- one attempt ------------------------------------------------------------------------------------------


def go_on_with_an_attempt_in_the_next_view(patch: Patch) -> None:
    """A view ends no attempt: nodes stay bound, their answers count, and the dead are not waited for."""
    own, adopt_node = Changes.adopt, Node.adopt

    def adopt(changes: Changes, view: View) -> None:
        attempt, failed = changes.attempt, changes.failed
        kept = (changes.awaits_ingress, changes.proposed_to, changes.bound, changes.past)
        own(changes, view)
        if attempt is not None:
            changes.attempt, changes.failed = attempt, failed
            changes.awaits_ingress, changes.proposed_to, changes.bound, changes.past = kept
            changes.proposed_to = frozenset(filter(view.alive, changes.proposed_to))

    def stay_bound(node: Node, view: View) -> Iterator[Effect]:
        proposed = node.proposed if node.is_bound and view.editions == _editions(node) else None
        yield from adopt_node(node, view)
        if proposed is not None:
            node.proposed, node.is_bound = proposed, True
            node._bind_poolers(proposed.position)

    patch.put(Changes, "adopt", adopt)
    patch.put(Node, "adopt", stay_bound)


def _editions(node: Node) -> tuple[Edition, ...]:
    return node.view.editions if node.view is not None else ()


def count_answers_of_earlier_views(patch: Patch) -> None:
    """An answer counts for every attempt at the same change and the same position."""

    def is_answered_by(changes: Changes, view: View, message: Bound) -> bool:
        attempt = changes.attempt
        is_this = attempt is not None and (message.number, message.position) == (attempt.number, attempt.position)
        return is_this and message.node in changes.proposed_to

    patch.put(Changes, "is_answered_by", is_answered_by)


def propose_a_position_again(patch: Patch) -> None:
    """After an attempt has failed, the same position may be proposed in the same view."""
    own = Changes.end_attempt

    def end_attempt(changes: Changes, to: frozenset[str]) -> Iterator[Effect]:
        yield from own(changes, to)
        changes.least = 0

    patch.put(Changes, "end_attempt", end_attempt)


def let_moves_end_attempts(patch: Patch) -> None:
    """While an attempt is open, moves begin and copies become live as ever, and each makes a view that ends it."""
    patch.put(Controller, "is_of_an_open_attempt", lambda controller, message: False)


# --- the commit -------------------------------------------------------------------------------------------


def commit_one_view_later(patch: Patch) -> None:
    """The view after the attempt does not have the change, and frees all nodes; the one after that has it."""
    own = Controller._change

    def change(controller: Controller, view: View) -> Iterator[Effect]:
        if len(view.editions) > len(controller.view.editions):
            yield from own(controller, replace(view, editions=controller.view.editions))
            view = replace(controller.view, editions=view.editions)
        yield from own(controller, view)

    patch.put(Controller, "_change", change)


def publish_a_change_before_it_is_in_the_journal(patch: Patch) -> None:
    """The controller crashes when the view with a change is sent and not in the journal yet."""
    from ..process import CONTROLLER
    from ..world import World

    own = World._restart

    def restart(world: World, name: str, detail: Any) -> None:
        if name == CONTROLLER and len(world.journal) > 1 and world.journal[-1].editions != world.journal[-2].editions:
            del world.journal[-1:]
        own(world, name, detail)

    patch.put(World, "_restart", restart)


def make_a_repeated_request_again(patch: Patch) -> None:
    """A request that is repeated to a controller that was started again is taken for a new one."""
    patch.put(Controller, "is_committed", lambda controller, message: False)
    patch.put(Controller, "is_over_or_late", lambda controller, message: False)


# --- what is freed -----------------------------------------------------------------------------------------


def free_from_any_position(patch: Patch) -> None:
    """A proposal that has failed frees a node, also if it is bound to a later one."""
    patch.put(Node, "is_what_it_is_bound_to", lambda node, message: node.is_bound and message.view == node.number)


def do_not_repeat_what_is_bound(patch: Patch) -> None:
    """A node that connects does not say what it is bound to."""
    own = Node.greet

    def greet(node: Node, message: Connected) -> Iterator[Effect]:
        for effect in own(node, message):
            if not (isinstance(effect, SendToController) and isinstance(effect.message, Bound)):
                yield effect

    patch.put(Node, "greet", greet)


def leave_a_node_bound_that_no_attempt_knows(patch: Patch) -> None:
    """A node that is bound for an attempt that is over is not freed."""
    patch.put(Controller, "free", lambda controller, message: iter(()))


def listen_before_the_hello(patch: Patch) -> None:
    """What a node has said to the last controller is answered, before the node has connected to the next one."""
    patch.put(Controller, "is_not_connected", lambda controller, message: False)


# --- preparing --------------------------------------------------------------------------------------------


def propose_before_all_are_prepared(patch: Patch) -> None:
    """A position is proposed at once."""
    own = Changes.propose

    def propose(changes: Changes, view: View, present: frozenset[str]) -> Iterator[Effect]:
        changes.prepared = frozenset(filter(view.alive, view.nodes))
        yield from own(changes, view, present)

    patch.put(Changes, "propose", propose)


def do_not_ask_sites_that_join(patch: Patch) -> None:
    """A site that joins while a change is prepared need not be able to make it."""
    own = Controller.take_in

    def take_in(controller: Controller, message: Hello) -> Iterator[Effect]:
        if controller.changes.asked:
            controller.changes.asked |= {message.node}
            controller.changes.prepared |= {message.node}
        yield from own(controller, message)

    patch.put(Controller, "take_in", take_in)


def change_although_one_cannot(patch: Patch) -> None:
    """A node that cannot make a change counts as one that can."""

    def refuse_change(controller: Controller, message: Cannot) -> Iterator[Effect]:
        controller.changes.prepared |= {message.node}
        yield from controller._go_on()

    patch.put(Controller, "refuse_change", refuse_change)


# --- the end ----------------------------------------------------------------------------------------------


def close_at_once(patch: Patch) -> None:
    """A change is closed by the view after the one that has it."""

    def to_close(changes: Changes, view: View) -> Edition | None:
        return next(iter(view.open_editions), None)

    patch.put(Changes, "to_close", to_close)


def close_without_copies_in_transfer(patch: Patch) -> None:
    """A site reports for the copies that it has, and need not wait for one that is to arrive."""
    patch.put(Pooler, "has_passed", lambda pooler, position: has_passed(pooler.cons, position))


def do_not_ask_the_sites_of_copies_in_transfer(patch: Patch) -> None:
    """A change is closed when all sites with finished copies have passed it."""

    def members(view: View, edition: Edition) -> frozenset[str]:
        return frozenset(node for stage in edition.stages for node in view.holders(stage))

    patch.put(changes_module, "_members", members)


def count_what_was_passed_in_earlier_views(patch: Patch) -> None:
    """A site that has passed a change has done so in all later views, whatever copies it gets."""
    own = Changes.adopt

    def adopt(changes: Changes, view: View) -> None:
        passed = changes.passed
        own(changes, view)
        changes.passed = passed

    patch.put(Changes, "adopt", adopt)


def close_before_the_oldest_checkpoint(patch: Patch) -> None:
    """A change is closed also if copies may go back to a checkpoint before it."""
    own = Changes.to_close

    def to_close(changes: Changes, view: View) -> Edition | None:
        retained, changes.retained = changes.retained, None
        edition = own(changes, view)
        changes.retained = retained
        return edition

    patch.put(Changes, "to_close", to_close)


def forget_a_change_that_is_closed(patch: Patch) -> None:
    """A view does not list changes that are closed: what comes later does not know of them."""
    patch.put(controller_module, "closed", lambda editions, number: tuple(e for e in editions if e.number != number))
