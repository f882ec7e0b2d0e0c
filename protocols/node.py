"""Node: one process of the dataflow: its machines, the view they share, and the check of each sender.

It takes views strictly in order, each after the one that it follows, beginning with the first it is given. It holds
messages sent in a view it has not seen yet (rule 11). It refuses messages of a dead node (rules 12, 20), also of one
that views do not list any more (rule 32), and forwards the rest to the machine of the message's stage. A site's
machines are its poolers, one per segment; the ingress and the egress are nodes with one machine. A node continues
without a controller. To one that was started again it sends its name and the last view it has seen, and repeats its
reports. To an ingress that was started again it sends its highest position (rule 39).

The controller may propose a position at which the code of some stages changes. The node is bound to it, or answers how
far it is, if that is further. It is bound until the next view, whatever that view says, or until the proposal has
failed (rules 44 to 50). It reports when all of its copies have passed a change (rule 52).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from .change_messages import Bind, Bound, Cannot, Passed, Past, Prepare, Prepared, Rehearse, Rehearsed, Unbind
from .editions import longest_step
from .egress import Egress
from .ingress import Ingress
from .machine import Machine, Refused, Rule, always, fence, ignore
from .messages import (
    Ack,
    Attach,
    Connected,
    Consumed,
    Data,
    Effect,
    EndOfSource,
    Hello,
    HighestPosition,
    Merge,
    Merged,
    PeerMessage,
    Position,
    ReportRefused,
    RequestState,
    Send,
    SendToController,
    Sourced,
    State,
    Stop,
    Stopped,
    View,
)
from .pooler import Pooler

HELD_MAX = 100_000  # Messages held for a view that does not arrive; far above what pools let through.


class Node(Machine):
    """Node `name` and its machines by stage: 0 the ingress, 1 to n the poolers, n + 1 the egress."""

    def __init__(self, name: str, machines: Sequence[Ingress | Pooler | Egress], incarnation: int = 1) -> None:
        self.name = name
        self.incarnation = incarnation
        self.view: View | None = None
        self.held: deque[PeerMessage] = deque()
        self.proposed: Bind | None = None  # The last position that was proposed in this view,
        self.is_bound = False  # and whether the node is bound to it.
        self.passed: frozenset[int] = frozenset()  # Editions that were reported in this view.
        self.machines: dict[int, Ingress | Pooler | Egress] = {
            0 if isinstance(machine, Ingress) else machine.stage: machine for machine in machines
        }

    @property
    def title(self) -> str:
        return f"node {self.name}"

    @property
    def number(self) -> int:
        return self.view.number if self.view is not None else 0

    # Guards.

    def follows(self, view: View) -> bool:
        is_next = view.number > 0 if self.view is None else view.number > self.number == view.last_number
        return is_next and view.alive(self.name)

    def follows_another(self, view: View) -> bool:
        is_restarted = view.follows is not None  # Only then are numbers left out.
        return self.view is not None and is_restarted and view.number > self.number != view.last_number

    def is_of_a_later_view(self, message: PeerMessage) -> bool:
        return message.view > self.number and len(self.held) < HELD_MAX

    def is_from_the_dead(self, message: PeerMessage) -> bool:
        view, sender = self.view, message.sender
        return view is not None and (sender in view.dead or view.has_forgotten(sender, message.view))

    def is_from_a_member(self, message: PeerMessage) -> bool:
        view = self.view
        if view is None or not view.alive(message.sender) or not 0 < message.view <= view.number:
            return False
        return self._stage(message) in self.machines

    def is_for_a_machine_here(self, message: Consumed) -> bool:
        return message.stage in self.machines

    def has_the_ingress(self, message: Sourced | EndOfSource) -> bool:
        return 0 in self.machines

    def is_of_this_view(self, message: Bind) -> bool:
        if self.view is None or message.view != self.number:
            return False
        return message.position >= 0 and self.view.are_operators(message.stages)

    def is_what_it_is_bound_to(self, message: Unbind) -> bool:
        last = self.proposed
        is_last = last is not None and (last.number, last.position) == (message.number, message.position)
        return is_last and self.is_bound and message.view == self.number

    def is_over(self, message: Unbind) -> bool:
        return 0 < message.view <= self.number

    # Actions.

    def adopt(self, view: View) -> Iterator[Effect]:
        self.view = view
        self.proposed, self.is_bound, self.passed = None, False, frozenset()
        for stage in sorted(self.machines):
            yield from self.machines[stage].step(view)
        held, self.held = self.held, deque()
        for message in held:
            if message.sender not in view.dead:
                yield from self._step_held(message)
        yield from self._report_position(view)
        yield from self._report_passed()

    def refuse_the_view(self, view: View) -> Iterator[Effect]:
        yield ReportRefused(
            text=f"{self.name} has seen view {self.number}, and view {view.number} of the controller follows view "
            f"{view.last_number}: the controller's journal has lost views, as it may when a machine loses power. The "
            "run cannot go on. Output up to now is right; run the flow again"
        )

    def greet(self, message: Connected) -> Iterator[Effect]:
        ends = tuple(stage for stage, machine in self.machines.items() if not isinstance(machine, Pooler))
        yield SendToController(message=Hello(node=self.name, view=self.number, ends=ends, incarnation=self.incarnation))
        for machine in self.machines.values():
            if isinstance(machine, Pooler):
                yield from machine.step(message)
        if self.is_bound and self.proposed is not None:
            yield self._bound(self.proposed)
        for number in sorted(self.passed):
            yield SendToController(message=Passed(node=self.name, view=self.number, number=number))

    def rehearse(self, message: Prepare) -> Iterable[Effect]:
        return [Rehearse(number=message.number, stages=message.stages, spec=message.spec)]

    def answer(self, message: Rehearsed) -> Iterable[Effect]:
        number, problem = message.number, message.problem
        if problem:
            return [SendToController(message=Cannot(node=self.name, number=number, reason=problem))]
        return [SendToController(message=Prepared(node=self.name, number=number))]

    def bind(self, message: Bind) -> Iterator[Effect]:
        assert self.view is not None
        made = self.view.downstream(message.stages)
        self.proposed, self.is_bound = message, True
        reached, step = 0, 0
        for machine in self.machines.values():
            if isinstance(machine, Ingress):
                self.proposed = replace(message, position=machine.bind(message.position))
                continue
            reached = max(reached, machine.reached(message.stages, made))
            step = max(step, longest_step(machine.cons) if machine.stage in message.stages else 0)
        if reached <= message.position:
            self._bind_poolers(message.position)
            yield self._bound(self.proposed)
            return
        self.is_bound = False
        past = Past(
            node=self.name,
            view=message.view,
            number=message.number,
            position=message.position,
            reached=reached,
            step=step,
        )
        yield SendToController(message=past)

    def unbind(self, message: Unbind) -> Iterator[Effect]:
        self.is_bound = False
        for machine in self.machines.values():
            if not isinstance(machine, Egress):
                yield from machine.unbind()

    def hold(self, message: PeerMessage) -> Iterable[Effect]:
        self.held.append(message)
        return ()

    def hand_over(self, message: PeerMessage) -> Iterable[Effect]:
        stage = self._stage(message)
        assert stage is not None
        effects = self.machines[stage].step(message)
        return [*effects, *self._report_passed()] if type(message) is State else effects

    def hand_back(self, message: Consumed) -> Iterable[Effect]:
        effects = self.machines[message.stage].step(message)
        assert self.view is not None
        return [*effects, *self._report_passed()] if self.view.open_editions else effects

    def source(self, message: Sourced | EndOfSource) -> Iterable[Effect]:
        return self.machines[0].step(message)

    def _step_held(self, message: PeerMessage) -> Iterator[Effect]:
        """Step a held message. If it is refused, the view and the other held messages must still be processed."""
        try:
            yield from self.step(message)
        except Refused as refused:
            yield ReportRefused(text=str(refused))

    def _report_position(self, view: View) -> Iterator[Effect]:
        """Send an ingress that was started again what was seen here of the numbers before it (rule 39)."""
        [ingress] = view.copies[0][0]
        was_restarted = dict(view.incarnations).get(0, 1) > 1
        if was_restarted and view.alive(ingress) and ingress != self.name:
            machines = [machine for machine in self.machines.values() if not isinstance(machine, Ingress)]
            highest = max((machine.cons.highest for machine in machines), default=0)
            yield Send(to=ingress, message=HighestPosition(sender=self.name, view=view.number, position=highest))

    def _bind_poolers(self, position: Position) -> None:
        """Hold the copies of the proposed stages, also those that are still to arrive here (rule 47)."""
        assert self.proposed is not None
        for stage in self.proposed.stages & self.machines.keys():
            machine = self.machines[stage]
            assert isinstance(machine, Pooler), "a change is for operator stages"
            machine.cons.bound = position

    def _bound(self, proposed: Bind) -> Effect:
        bound = Bound(node=self.name, view=proposed.view, number=proposed.number, position=proposed.position)
        return SendToController(message=bound)

    def _report_passed(self) -> Iterator[Effect]:
        """Report the editions that all copies here have passed, once in each view (rule 52)."""
        assert self.view is not None
        for edition in self.view.open_editions:
            stages = self.view.closing_stages(edition)
            held = [self.machines[s] for s in stages if self.name in self.view.members(s)]
            machines = [machine for machine in held if not isinstance(machine, Ingress)]
            is_new = bool(machines) and edition.number not in self.passed
            if is_new and all(machine.has_passed(edition.position) for machine in machines):
                self.passed |= {edition.number}
                yield SendToController(message=Passed(node=self.name, view=self.number, number=edition.number))

    def _stage(self, message: PeerMessage) -> int | None:
        """The stage of a message: the consumer of its edge if it travels with the data, else the producer."""
        assert self.view is not None
        if isinstance(message, HighestPosition):
            return 0
        if isinstance(message, (RequestState, State)):
            return message.stage
        edges = self.view.edges
        return edges[message.edge][_ENDS[type(message)]] if 0 <= message.edge < len(edges) else None


# The end of its edge that takes a message: 0 the producer, 1 the consumer.
_ENDS: dict[type[Any], int] = {Ack: 0, Attach: 0, Stop: 0, Merge: 0, Data: 1, Stopped: 1, Merged: 1}


def _peer_rows(kind: type[Any]) -> tuple[Rule[Node, Any], ...]:
    return (  # The first guard holds for nearly every message, and never together with another.
        Rule(on=kind, guard=Node.is_from_a_member, action=Node.hand_over, cites="3.2.3.1"),
        Rule(on=kind, guard=Node.is_from_the_dead, action=fence, cites="rules 12, 20, 32: dead nodes are mute"),
        Rule(on=kind, guard=Node.is_of_a_later_view, action=Node.hold, cites="rule 11"),
    )


_ROWS = (
    Rule(on=View, guard=Node.follows, action=Node.adopt, cites="3.2.3.1: views in one order; rule 40"),
    Rule(on=View, guard=Node.follows_another, action=Node.refuse_the_view, cites="rule 40: one meaning of a number"),
    Rule(on=Connected, guard=always, action=Node.greet, cites="3.2.4: avail; the controller was started again"),
    Rule(on=Consumed, guard=Node.is_for_a_machine_here, action=Node.hand_back, cites="2.1.1"),
    Rule(on=Sourced, guard=Node.has_the_ingress, action=Node.source, cites="3.2.1.2"),
    Rule(on=EndOfSource, guard=Node.has_the_ingress, action=Node.source, cites="3.2.1.2"),
    Rule(on=Prepare, guard=always, action=Node.rehearse, cites="rule 51"),
    Rule(on=Rehearsed, guard=always, action=Node.answer, cites="rule 51"),
    Rule(on=Bind, guard=Node.is_of_this_view, action=Node.bind, cites="rules 44 to 47"),
    Rule(on=Unbind, guard=Node.is_what_it_is_bound_to, action=Node.unbind, cites="rule 50"),
    Rule(on=Unbind, guard=Node.is_over, action=ignore, cites="rule 50: it is bound to another position, or to none"),
)
_PEER_ROWS = tuple(
    row
    for kind in (Data, Ack, Attach, Stop, Stopped, Merge, Merged, RequestState, State, HighestPosition)
    for row in _peer_rows(kind)
)
Node.RULES = (*_ROWS, *_PEER_ROWS)
