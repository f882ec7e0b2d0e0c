"""Bad input: messages that correct nodes never send, tried in states of random worlds.

From each message that is about to be taken, messages are made that no machine may take. They are from strangers, from
the dead, from the wrong copy, for an exchange that does not exist, sent twice, or with a position that does not
advance. A machine must refuse each and stay in the same state. The worlds of `walk` contain correct nodes only, so
nothing else shows that these guards are there.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from ..protocols.controller import Controller
from ..protocols.egress import Egress
from ..protocols.fh_cons import FhCons
from ..protocols.fh_prod import FhProd
from ..protocols.ingress import Ingress
from ..protocols.machine import Fenced, Machine, Refused
from ..protocols.messages import (
    VERSION,
    Ack,
    Ahead,
    Attach,
    Closed,
    Consumed,
    CopyFailed,
    CopyReady,
    Data,
    EndOfSource,
    Hello,
    HighestPosition,
    LinkDown,
    Merge,
    Merged,
    Move,
    ReportRefused,
    RequestState,
    Retire,
    Sourced,
    Standby,
    State,
    Stop,
    Stopped,
    Suspected,
    View,
    ViewsLost,
)
from ..protocols.node import HELD_MAX, Node
from ..protocols.pooler import Pooler
from ..protocols.view import number_of
from .dataflow import EGRESS, INGRESS
from .process import CONTROLLER, PULL, SimulatedProcess, Violated
from .walk import scenario_of, steps
from .world import Choice, World

STRANGER = "a stranger"
TRIED = 0.2  # The share of steps before which bad input is tried: each try copies a machine.
FAR = 1_000_000  # A number that no lane id, version or position of a small world reaches.


def probe(seed: int) -> Violated | None:
    """Walk the world of `seed`, and try bad input before some of its steps."""
    rng, dice = random.Random(seed), random.Random(seed)
    world = World(scenario_of(rng))
    try:
        _must_refuse(*_one_too_many(world))
        for choice in steps(world, rng):
            if dice.random() < TRIED:
                for machine, message in _bad(world, choice):
                    _must_refuse(machine, message)
            world.do(choice)
    except Violated as violation:
        return violation
    return None


def _one_too_many(world: World) -> tuple[Machine, Any]:
    """A node that holds as many messages for a later view as it may, and one more."""
    node = world.processes[INGRESS].node.clone()
    early = Ack(sender=EGRESS, view=node.number + 1, edge=0, position=0)
    node.held.extend([early] * HELD_MAX)
    return node, early


def _must_refuse(machine: Machine, message: Any) -> None:
    twin = machine.clone()
    before = twin.key()
    try:
        effects = twin.step(message)
    except Refused as refused:
        text = str(refused)
        if repr(message) not in text or "refuses" not in text:
            raise Violated(f"refusals name machine, message and state: {text}") from refused
        if _is_out(machine, message) != isinstance(refused, Fenced):
            raise Violated(f"messages of the dead are fenced, and no others: {text}") from refused
    except (AssertionError, LookupError, TypeError, AttributeError) as error:
        raise Violated(f"bad input is refused: {machine.title} fails on {message}: {error!r}") from error
    else:
        # What shows that a journal has lost its end is refused by an effect, with a text of its own (rules 40, 41).
        if not effects or not all(isinstance(effect, ReportRefused | ViewsLost) for effect in effects):
            raise Violated(f"bad input is refused: {machine.title} takes {message}")
    if twin.key() != before:
        raise Violated(f"a refusal changes nothing: {machine.title} on {message}")


def _must_report(node: Node, view: Any) -> None:
    """Check that a bad message that was held for a view is reported, and changes nothing else."""
    if not isinstance(view, View):
        return
    good, bad = node.clone(), node.clone()
    bad.held.append(Ack(sender=STRANGER, view=view.number, edge=0, position=0))
    expected, effects = good.step(view), bad.step(view)
    reports = [effect for effect in effects if isinstance(effect, ReportRefused)]
    if len(reports) != 1 or STRANGER not in reports[0].text:
        raise Violated(f"bad input is refused: {node.title} took what it held of a stranger, or did not report it")
    if [effect for effect in effects if effect not in reports] != expected or good.key() != bad.key():
        raise Violated(f"a refusal changes nothing: {node.title}, of what it held")


def _unasked(node: Node) -> Iterator[Any]:
    """Rows, or the end of the source, for an ingress that has not pulled."""
    ingress = node.machines.get(0)
    if isinstance(ingress, Ingress) and not (ingress.pulling and not ingress.ended):
        after = ingress.prod.produced[0]
        yield Sourced(after=after, upto=after + 1, rows=0, body=())
        yield EndOfSource()


def _again(world: World, node: Node) -> Iterator[Any]:
    """A second request for a state, and a state that has arrived already."""
    for pooler in node.machines.values():
        if not isinstance(pooler, Pooler) or node.view is None:
            continue
        for version, standby in pooler.mover.standby.items():
            place: dict[str, Any] = {"view": node.number, "stage": pooler.stage, "version": version}
            if standby.donor == node.name and node.view.alive(standby.node) and _has_asked(world, standby, node):
                yield RequestState(sender=standby.node, **place)
            if version in (*pooler.mover.arrived, *pooler.cons.installed) and node.view.alive(standby.donor):
                yield State(sender=standby.donor, **place, position=FAR, runs=(), body=None)


def _has_asked(world: World, standby: Standby, donor: Node) -> bool:
    """Whether the donor of a copy has received a request for its state."""
    receiver = world.processes[standby.node].node.machines[standby.stage]
    assert isinstance(receiver, Pooler)
    asked = standby.version in (*receiver.mover.awaited, *receiver.mover.arrived, *receiver.cons.installed)
    in_flight = (*world.links.get((standby.node, donor.name), ()), *donor.held)
    return asked and not any(
        isinstance(message, RequestState) and message.version == standby.version for message in in_flight
    )


def _is_out(machine: Machine, message: Any) -> bool:
    """Whether the sender of a message is dead, or was listed and is not any more."""
    view = machine.view if isinstance(machine, Node | Controller) else None
    sender = message.node if isinstance(message, Hello | CopyReady | CopyFailed) else getattr(message, "sender", None)
    if view is None or sender is None or sender in (*view.nodes, *view.dead):
        return view is not None and sender in view.dead  # No process is `RETIRED`, and none may pretend to be.
    if number_of(sender):
        return number_of(sender) <= view.forgotten
    return 0 < getattr(message, "view", 0) <= view.number  # A node without a number was an end.


def _bad(world: World, choice: Choice) -> Iterator[tuple[Machine, Any]]:
    """Machines that are about to take a step, each with a message that it must refuse."""
    kind, name, detail = choice
    if kind == "deliver":
        assert isinstance(detail, str)
        message = world.links[name, detail][0]
        if detail == CONTROLLER:
            yield from ((world.controller, bad) for bad in _for_the_controller(world, message))
        else:
            node = world.processes[detail].node
            _must_report(node, message)
            yield from ((node, bad) for bad in _for_a_node(node, message))
            yield from ((node, bad) for bad in _unasked(node))
            yield from ((node, bad) for bad in _again(world, node))
    elif kind == "answer":
        yield from _answers(world.processes[name], detail)


def _must_ignore(controller: Controller, message: Any) -> None:
    """Check that a request that cannot be met changes nothing."""
    twin = controller.clone()
    before = twin.key()
    try:
        effects = twin.step(message)
    except (AssertionError, LookupError, TypeError, AttributeError) as error:
        raise Violated(f"bad input is ignored: {controller.title} fails on {message}: {error!r}") from error
    if effects or twin.key() != before:
        raise Violated(f"bad input is ignored: {controller.title} does {effects} on {message}")


def _requests(view: View) -> Iterator[Any]:
    """Requests from a program that does not know the dataflow."""
    move = Move(stage=1, partition=0, slot=0, to=view.nodes[1])
    for stage in (-1, 0, len(view.copies) - 1, FAR):
        yield replace(move, stage=stage)
    for number in (-1, FAR):
        yield replace(move, partition=number)
        yield replace(move, slot=number)
    for node in (STRANGER, *view.dead, *view.copies[0][0], *view.copies[1][0]):
        yield replace(move, to=node)
    for node in view.nodes:
        yield LinkDown(a=node, b=node)
    for node in (STRANGER, *view.dead):
        yield Closed(node=node)
        yield Retire(node=node)
    for node in view.nodes:
        if node not in view.slow:
            yield Retire(node=node)


def _for_the_controller(world: World, message: Any) -> Iterator[Any]:
    view = world.controller.view
    for request in _requests(view):
        _must_ignore(world.controller, request)
    yield Suspected(node=STRANGER)
    yield LinkDown(a=STRANGER, b=view.nodes[0])
    yield LinkDown(a=view.nodes[0], b=STRANGER)
    yield Closed  # No message at all.
    for version in range(1, view.versions + 1):
        yield CopyReady(node=STRANGER, version=version)
        yield CopyFailed(node=STRANGER, version=version)
    for node in sorted(view.dead):
        yield Hello(node=node, view=view.number)
        yield CopyReady(node=node, version=1)
        yield CopyFailed(node=node, version=1)
    if view.has_forgotten(forgotten := f"site-{view.forgotten}"):
        yield Hello(node=forgotten)
    if isinstance(message, Hello):
        yield from _greetings(world.controller, message)
    elif message.node not in view.dead:
        yield replace(message, node=STRANGER)
        yield replace(message, version=view.versions + 1)
        yield replace(message, version=0)
        for other in view.nodes:
            if view.alive(other) and any(s.version == message.version and s.node != other for s in view.standby):
                yield replace(message, node=other)


def _greetings(controller: Controller, message: Hello) -> Iterator[Hello]:
    view = controller.view
    yield replace(message, node=STRANGER, view=1)
    yield replace(message, node=STRANGER, ends=(1,), incarnation=FAR)
    yield replace(message, node=STRANGER, ends=(0, len(view.copies)), incarnation=FAR)
    yield replace(message, node=f"site-{FAR}", view=0, ends=(1,), incarnation=FAR)  # Neither a site nor an end,
    yield Hello(node=STRANGER)  # and a site without a number.
    yield replace(message, node="")
    for node in sorted(controller.present):
        ends = tuple(stage for stage in (0, len(view.copies) - 1) if node in view.copies[stage][0])
        yield Hello(node=node, view=view.number, ends=ends)
    if message.node in view.dead:
        return
    yield replace(message, version=VERSION + 1)
    yield replace(message, view=view.number + 1)
    yield replace(message, view=-1)
    if message.node in view.nodes:
        yield replace(message, ends=() if message.ends else (0,))
        if message.ends:
            yield replace(message, incarnation=message.incarnation + 1)


def _for_a_node(node: Node, message: Any) -> Iterator[Any]:
    if isinstance(message, View):
        if node.view is None:
            yield replace(message, number=0)
        else:
            yield replace(message, number=node.number)
            yield replace(message, number=node.number + 2)
            yield replace(message, number=0)
        yield replace(message, dead=message.dead | {node.name})
        yield replace(message, nodes=tuple(name for name in message.nodes if name != node.name))
        return
    view = node.view
    if view is None:
        yield replace(message, view=0)
    if view is None or message.view > node.number or not view.alive(message.sender):
        return  # It is held, or refused anyway.
    yield replace(message, sender=STRANGER)
    for dead in sorted(view.dead):
        yield replace(message, sender=dead)
    for number in (0, -1):
        yield replace(message, view=number)
    if isinstance(message, HighestPosition):
        return  # Any position is possible.
    place = "stage" if isinstance(message, RequestState | State) else "edge"
    for number in (-1, FAR):
        yield replace(message, **{place: number})
    machine = node.machines[node._stage(message) or 0]
    if isinstance(message, Data | Stopped | Merged):
        assert not isinstance(machine, Ingress)
        yield from _to_a_consumer(machine.cons, message, view)
    elif isinstance(message, Ack | Attach | Stop | Merge):
        assert not isinstance(machine, Egress)
        for other in _others(view, message.sender):
            if (message.edge, other) not in machine.prod.buffer.floors:
                yield replace(message, sender=other, view=node.number)
        yield from _to_a_producer(machine.prod, message)
    elif isinstance(machine, Pooler):
        yield from _to_a_mover(machine, message)


def _others(view: View, sender: str) -> Iterable[str]:
    return (node for node in view.nodes if view.alive(node) and node != sender)


def _to_a_consumer(cons: FhCons, message: Data | Stopped | Merged, view: View) -> Iterator[Any]:
    for lane_id in (FAR, 0, -1):
        yield replace(message, lane_id=lane_id)
    if message.lane_id not in cons.lanes:
        return
    for other in _others(view, message.sender):
        yield replace(message, sender=other)
    for edge in view.inputs(cons.stage):
        if edge != message.edge:
            yield replace(message, edge=edge)
    if isinstance(message, Data):
        yield replace(message, after=message.after - 1)
        yield replace(message, after=message.after + 1, upto=message.upto + 1)
        yield replace(message, upto=message.after)
        yield replace(message, upto=message.after - 1)
        yield replace(message, bodies=())
        if not cons.lanes[message.lane_id].stops:
            yield Stopped(sender=message.sender, view=message.view, edge=message.edge, lane_id=message.lane_id)
    elif isinstance(message, Stopped):
        for lane_id, lane in cons.lanes.items():
            if not lane.stops and lane.sender == message.sender:
                yield replace(message, lane_id=lane_id, edge=lane.edge)
    else:
        yield replace(message, into=message.lane_id)
        yield replace(message, into=FAR)
        lane = cons.lanes[message.lane_id]
        for lane_id, other_lane in cons.lanes.items():
            if (other_lane.sender, other_lane.upto) != (lane.sender, lane.upto):
                yield replace(message, into=lane_id)


def _to_a_producer(prod: FhProd, message: Ack | Attach | Stop | Merge) -> Iterator[Any]:
    dest = (message.edge, message.sender)
    counts_from = prod.acks_since if isinstance(message, Ack) else prod.since
    if message.view < max(prod.since.get(dest, 0), counts_from.get(dest, 0)) or dest not in prod.buffer.floors:
        return
    if isinstance(message, Ack):
        yield replace(message, position=prod.buffer.floors[dest] - 1, reached=0)
    elif isinstance(message, Attach):
        yield replace(message, position=prod.buffer.dropped - 1)
        yield replace(message, lane_id=prod.last_lane_ids.get(dest, 0))
        yield from (replace(message, lane_id=lane[2]) for lane in prod.lanes if lane[:2] == dest)
    else:
        yield replace(message, lane_id=FAR)
        if isinstance(message, Merge):
            yield replace(message, into=FAR)


def _to_a_mover(pooler: Pooler, message: RequestState | State) -> Iterator[Any]:
    mover = pooler.mover
    for version in (FAR, 0):
        yield replace(message, version=version)
    standby = mover.standby.get(message.version)
    if standby is None:
        return
    if isinstance(message, RequestState):
        yield replace(message, sender=standby.donor)
        return
    yield replace(message, sender=standby.node)
    if message.version in mover.awaited:
        yield replace(message, position=-1)
        back = Ahead(edge=0, producers=(0,), position=message.position)
        yield replace(message, ahead=(*message.ahead, back))
        if not mover.unordered:
            yield replace(message, ahead=(replace(back, position=message.position + 1),))


def _answers(process: SimulatedProcess, which: Any) -> Iterator[tuple[Machine, Any]]:
    """Answers to work that was not given."""
    node, (stage, cohort) = process.node, which
    if which == PULL:
        after = process.work[PULL].after
        sourced = Sourced(after=after, upto=after + 1, rows=0, body=())
        for bad in (
            replace(sourced, after=after + 1, upto=after + 2),
            replace(sourced, after=after - 1),
            replace(sourced, upto=after),
        ):
            yield node, bad
        return
    work = process.work[which]
    upto = getattr(work, "upto", 0)
    consumed = Consumed(stage=stage, cohort=cohort, upto=upto, rows=0, body=())
    yield node, replace(consumed, upto=upto + 1)
    if work.after < upto:
        yield node, replace(consumed, upto=work.after)
    if isinstance(node.machines[stage], Pooler) and stage not in process.scenario.unordered:
        yield node, replace(consumed, emitted_upto=upto + 1)
    yield node, replace(consumed, cohort=FAR)
    yield node, replace(consumed, stage=FAR)
    yield node, EndOfSource()
    yield node, Sourced(after=0, upto=1, rows=0, body=())
