"""A world of one scenario as a graph of states: the choices in each state, and the states after them.

A state is that of `ProcessGraph`, and one set of bits for the copies that are *whole*: folded in by all nodes to which
they are connected.

A crash is possible at any step for any copy whose pair has another whole copy (Thesis 3.1.2: one failure between
recovery points). The messages of a dead sender stay on the connection until the receiver gets the report of its death,
and are dropped then; so every prefix of them may still arrive.
"""

from __future__ import annotations

from collections.abc import Iterator

from .controller import Controller
from .node import Egress, Ingress, Node, Segment
from .process_graph import EMPTY, GONE, Choice, GlobalState, ProcessGraph
from .scenario import Scenario
from .words import CONTROLLER, DEAD, Copy, ProcessModel, SmReady, Violated


class World(ProcessGraph):
    """All processes and connections that can ever exist in `scenario`."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        copies = [Copy(*pair, k) for pair in scenario.pairs for k in range(2 + scenario.standbys)]
        self.ingress, self.egress = Copy(0, 0, 0), Copy(scenario.stages + 1, 0, 0)
        names = (CONTROLLER, self.ingress, *copies, self.egress)
        labels = ("controller", "ingress", *map(str, copies), "egress")
        links = [(a, b) for b in names for a in names if self._is_connected(a, b)]
        super().__init__(names, labels, links, scenario.fused)
        self._folded: dict[int, frozenset[Copy]] = {}

    def _is_connected(self, a: Copy, b: Copy) -> bool:
        if CONTROLLER in (a, b):
            return a != b and not (b == CONTROLLER and a in (self.ingress, self.egress))
        return abs(a.stage - b.stage) == 1 or (a.pair == b.pair and a != b and max(a.number, b.number) > 1)

    # --- states -----------------------------------------------------------------------------------------------

    def start(self) -> GlobalState:
        nodes: list[Node] = [Controller(self.scenario), Ingress(self.scenario)]
        for pair in self.scenario.pairs:
            for slot in (0, 1):
                nodes.append(Segment(self.scenario, Copy(*pair, slot), slot))
        nodes.append(Egress(self.scenario))
        state = [GONE] * len(self.names) + [EMPTY] * len(self.links) + [0]
        for node in nodes:
            self._settle(node)
            state[self.places[node.name]] = self._number(node)
            state[-1] |= 1 << self.places[node.name]
        return self._after_prelude(tuple(state))

    def _after_prelude(self, state: GlobalState) -> GlobalState:
        for wanted in self.scenario.prelude:
            possible = [*self.steps(state), *self.arrivals(state), *self.crashes(state, any_copy=True)]
            state = next(after for (action, node), after in possible if f"{node}: {action}" == wanted)
        return state

    def is_whole(self, state: GlobalState, name: Copy) -> bool:
        return bool(state[-1] >> self.places[name] & 1)

    # --- choices -----------------------------------------------------------------------------------------------

    def arrivals(self, state: GlobalState) -> Iterator[tuple[Choice, GlobalState]]:
        """Yield the arrivals of a standby machine."""
        controller = self.node(state, CONTROLLER)
        for pair in controller.wants_standby():
            after, controller_after = list(state), controller.clone()
            standby = controller_after.bring_standby(pair)
            after[self.places[standby.name]] = self._number(standby)
            self._post_reports(after, controller_after)
            yield ("standby", str(standby.name)), tuple(after)

    def crashes(self, state: GlobalState, any_copy: bool = False) -> Iterator[tuple[Choice, GlobalState]]:
        """Yield the crashes of copies whose pair has another whole copy."""
        controller = self.node(state, CONTROLLER)
        if controller.failures >= self.scenario.crashes:
            return
        for places in controller.slots.values():
            for place, other in (places, places[::-1]):
                victim = place.copy
                allowed = any_copy or self.scenario.victims is None or victim in self.scenario.victims
                is_spare = state[self.places[other.copy]] and self.is_whole(state, other.copy)
                if allowed and is_spare and state[self.places[victim]]:
                    yield ("crash", str(victim)), self._crash(state, victim, controller)

    def _crash(self, state: GlobalState, victim: Copy, controller: Controller) -> GlobalState:
        after = list(state)
        after[self.places[victim]] = GONE
        after[-1] &= ~(1 << self.places[victim])
        for (a, b), place in self._link_places.items():
            if victim == b or (victim == a and b == CONTROLLER):
                after[place] = EMPTY
        controller_after = controller.clone()
        controller_after.fail(victim)
        self._post_reports(after, controller_after)
        self._note_whole(after)
        return tuple(after)

    # --- one step -----------------------------------------------------------------------------------------------

    def _number(self, node: ProcessModel) -> int:
        number = super()._number(node)
        if number not in self._folded:
            self._folded[number] = node.folded_copies()
        return number

    def _note_step(self, before: GlobalState, after: list[int], place: int) -> None:
        if self._folded[after[place]] != self._folded[before[place]]:
            self._note_whole(after)

    def _post_reports(self, after: list[int], controller: Controller) -> None:
        posts = self._posts(controller)
        after[self.places[CONTROLLER]] = self._number(controller)
        self._post(after, posts)

    def _note_whole(self, after: list[int]) -> None:
        """Mark the copies that all their whole neighbours have folded in."""
        for name, place in self.places.items():
            if after[place] and name.stage > 0 and not after[-1] >> place & 1:
                neighbours = [
                    after[at]
                    for other, at in self.places.items()
                    if abs(other.stage - name.stage) == 1 and other != CONTROLLER and after[at] and after[-1] >> at & 1
                ]
                if all(name in self._folded[number] for number in neighbours):
                    after[-1] |= 1 << place

    # --- at rest ------------------------------------------------------------------------------------------------

    def check_at_rest(self, state: GlobalState) -> None:
        """Check a world at rest: everything is consumed, replicas agree, nothing is buffered or in flight.

        A standby need not be folded in while another pair, which may have to catch up first, still lacks one.
        """
        slots = self.node(state, CONTROLLER).slots.values()
        recovered = all(place.mode != DEAD for places in slots for place in places)
        for node in self.live(state):
            if isinstance(node, Segment | Egress):
                is_standby = isinstance(node, Segment) and not self.is_whole(state, node.name)
                if is_standby and recovered:
                    raise Violated(f"recovery ends: {node.name} still waits to be folded in")
                if not is_standby:
                    self._check_consumed(node)
            kept = [out.B.entries for out in node.outs if out.B.entries]
            if kept:
                raise Violated(
                    f"buffers drain: {node.name} keeps {[e.sn for entries in kept for e in entries]} for ever"
                )
        for a, b in self.links:
            waiting = [m for m in self.on_link(state, a, b) if recovered or not isinstance(m, SmReady)]
            if waiting:
                raise Violated(f"no deadlock: {waiting[0]} waits for ever between {a} and {b}")

    def _check_consumed(self, node: Segment | Egress) -> None:
        operator = node.operator
        expected = self.scenario.reference[operator.stage, operator.partition]
        if operator.consumed != len(expected):
            raise Violated(f"no deadlock: {node.name} has consumed {operator.consumed} of {len(expected)} tuples")
        if operator.digest != self.scenario.digests(operator.stage, operator.partition, len(expected)):
            raise Violated(f"replicas identical: the state of {node.name} differs from that of a plain run")
