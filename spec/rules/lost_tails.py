"""Removals of rules about journals that have lost their ends: no number gets a second meaning."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ...protocols.buffer import Buffer
from ...protocols.controller import Controller
from ...protocols.fh_cons import FhCons
from ...protocols.fh_prod import FhProd
from ...protocols.ingress import ONLY, Ingress
from ...protocols.messages import Effect, View
from ...protocols.node import Node
from .patch import Patch


def number_without_asking(patch: Patch) -> None:
    """A restarted ingress numbers rows from the end of its journal, whatever others have seen."""
    own = Ingress.__init__

    def init(ingress: Ingress, *arguments: Any) -> None:
        own(ingress, *arguments)
        ingress.knows_positions = True

    patch.put(Ingress, "__init__", init)


def number_from_what_is_released(patch: Patch) -> None:
    """A restarted ingress numbers rows from what all copies have, and its source stands at the end of its journal."""
    own = Ingress.__init__

    def init(ingress: Ingress, *arguments: Any) -> None:
        own(ingress, *arguments)
        ingress.prod.buffer.dropped = ingress.released
        ingress.prod.produced[ONLY] = ingress.released

    patch.put(Ingress, "__init__", init)


def ask_live_nodes_only(patch: Patch) -> None:
    """A restarted ingress does not wait for an egress that is dead, and whose sink is ahead of all that is left."""

    def others(ingress: Ingress, view: View) -> frozenset[str]:
        return frozenset(node for node in view.nodes if view.alive(node) and node != ingress.name)

    patch.put(Ingress, "_others", others)


def count_positions_of_earlier_views(patch: Patch) -> None:
    """A node is asked once, and may take rows of a dead node after that."""

    def adopt(ingress: Ingress, view: View) -> Iterator[Effect]:
        if not ingress.knows_positions:
            ingress.since = ingress.since or view.number
            ingress.awaited = ingress._others(view).difference(ingress.reported)
            ingress.knows_positions = not ingress.awaited
        yield from ingress.serve(view)

    patch.put(Ingress, "adopt", adopt)


def report_what_was_consumed(patch: Patch) -> None:
    """A node reports the position that it has consumed, and not that of the rows it has received."""
    patch.put(FhCons, "highest", property(lambda cons: cons.consumed))


def number_views_on(patch: Patch) -> None:
    """A restarted controller numbers views from the last one in its journal, and nodes compare only numbers."""
    own = Controller.__init__

    def begin(controller: Controller, view: View, at_once: int = 1, _: int = 1, lead: int = 2) -> None:
        own(controller, view, at_once, 1, lead)

    patch.put(Controller, "__init__", begin)
    patch.put(Node, "follows", lambda node, view: _is_next(node, view) and view.alive(node.name))
    patch.put(Node, "follows_another", lambda node, view: False)


def _is_next(node: Node, view: View) -> bool:
    return view.number > 0 if node.view is None else view.number == node.number + 1


def forget_what_a_sink_has(patch: Patch) -> None:
    """Producers do not keep the position of an egress that is dead: the next one is given what it asks for."""
    own = Buffer.entitle
    patch.put(Buffer, "entitle", lambda buffer, dest, last=None: own(buffer, dest))


def take_less_than_was_acknowledged_for_an_error(patch: Patch) -> None:
    """Producers report an egress that asks for less than was acknowledged, but not one that only states so."""
    patch.put(FhProd, "takes_an_acknowledgement_back", lambda prod, message: False)


def accept_a_view_that_follows_another(patch: Patch) -> None:
    """A node takes any view with a higher number than its own."""
    patch.put(Node, "follows", lambda node, view: view.number > node.number and view.alive(node.name))
