"""A world of one scenario as a graph of states: the choices in each state, and the states after them.

A state is a tuple of small numbers: one for each process (0 while it does not exist or is dead), one for the
contents of each FIFO connection, and one set of bits for the copies that are *whole*: folded in by all nodes to which
they are connected. A step of a process depends only on its own state and the message, so each (process, message) is
stepped once and remembered.

A crash is possible at any step for any copy whose pair has another whole copy (Thesis 3.1.2: one failure between
recovery points). The messages of a dead sender stay on the connection until the receiver gets the report of its death,
and are dropped then; so every prefix of them may still arrive.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from .controller import Controller
from .node import Egress, Ingress, Node, Segment
from .roles import fuse, steps
from .scenario import Scenario
from .words import CONTROLLER, DEAD, Copy, Fail, Message, SmReady, Violated

GlobalState = tuple[int, ...]
Choice = tuple[str, str]  # The action, and the node that takes it.
GONE = 0
EMPTY = 0
Outcome = tuple[str, int, tuple[tuple[int, int], ...], Copy | None]  # Row, process, posts, the copy now known dead.


class Numbers:
    """Values and the small numbers assigned to them."""

    def __init__(self, first: Any) -> None:
        self.values: list[Any] = [first]
        self._numbers: dict[Any, int] = {first: 0}

    def number(self, key: Any, value: Any) -> int:
        known = self._numbers.get(key)
        if known is None:
            known = self._numbers[key] = len(self.values)
            self.values.append(value)
        return known


class World:
    """All processes and connections that can ever exist in `scenario`."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        copies = [Copy(*pair, k) for pair in scenario.pairs for k in range(2 + scenario.standbys)]
        self.ingress, self.egress = Copy(0, 0, 0), Copy(scenario.stages + 1, 0, 0)
        self.names = (CONTROLLER, self.ingress, *copies, self.egress)
        self.labels = ["controller", "ingress", *map(str, copies), "egress"]
        self.places = {name: i for i, name in enumerate(self.names)}
        self.links = [(a, b) for b in self.names for a in self.names if self._is_connected(a, b)]
        self._first_link = len(self.names)
        self._link_places = {link: self._first_link + i for i, link in enumerate(self.links)}
        self._inbound = [
            [(self.places[a], self._link_places[a, b]) for a, b in self.links if b == n] for n in self.names
        ]
        self._processes = Numbers(None)
        self._messages = Numbers(None)
        self._contents = Numbers(())
        self._alone: dict[int, tuple[Outcome, ...]] = {}
        self._given: dict[tuple[int, int, int], tuple[Outcome, ...]] = {}
        self._folded: dict[int, frozenset[Copy]] = {}
        self.fired: Counter[tuple[str, str]] = Counter()

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

    def node(self, state: GlobalState, name: Copy) -> Any:
        """Return the process called `name`, or None."""
        return self._processes.values[state[self.places[name]]]

    def live(self, state: GlobalState) -> Iterator[Node]:
        for number in state[: self._first_link]:
            if number:
                yield self._processes.values[number]

    def on_link(self, state: GlobalState, a: Copy, b: Copy) -> tuple[Message, ...]:
        content = self._contents.values[state[self._link_places[a, b]]]
        return tuple(self._messages.values[number] for number in content)

    def is_whole(self, state: GlobalState, name: Copy) -> bool:
        return bool(state[-1] >> self.places[name] & 1)

    # --- choices -----------------------------------------------------------------------------------------------

    def steps(self, state: GlobalState) -> Iterator[tuple[Choice, GlobalState]]:
        """Yield every step of the protocol: an action on a message at the head of a connection, or on none."""
        for place, number in enumerate(state[: self._first_link]):
            if not number:
                continue
            for outcome in self._steps_alone(number):
                yield (outcome[0], self.labels[place]), self._after(state, place, None, outcome)
            for sender, link in self._inbound[place]:
                if state[link]:
                    message = self._contents.values[state[link]][0]
                    for outcome in self._steps_given(number, sender, message):
                        yield (outcome[0], self.labels[place]), self._after(state, place, link, outcome)

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

    def _steps_alone(self, number: int) -> tuple[Outcome, ...]:
        known = self._alone.get(number)
        if known is None:
            known = self._alone[number] = self._outcomes(self._processes.values[number], None, None)
        return known

    def _steps_given(self, number: int, sender: int, message: int) -> tuple[Outcome, ...]:
        known = self._given.get((number, sender, message))
        if known is None:
            node = self._processes.values[number]
            known = self._outcomes(node, self.names[sender], self._messages.values[message])
            self._given[number, sender, message] = known
        return known

    def _outcomes(self, node: Node, sender: Copy | None, message: Message | None) -> tuple[Outcome, ...]:
        found = []
        for role, row, after in steps(node, sender, message):
            self.fired[role, row.name] += 1
            self._settle(after)
            posts = self._posts(after)
            gone = message.copy if isinstance(message, Fail) else None
            found.append((row.name, self._number(after), posts, gone))
        return tuple(found)

    def _settle(self, node: Node) -> None:
        if self.scenario.fused:
            for role, row in fuse(node):
                self.fired[role, row.name] += 1

    def _posts(self, node: Node) -> tuple[tuple[int, int], ...]:
        posts = tuple((self._link_places[node.name, to], self._messages.number(m, m)) for to, m in node.sent)
        node.sent = []
        return posts

    def _number(self, node: Node) -> int:
        number = self._processes.number((node.name, node.key()), node)
        if number not in self._folded:
            self._folded[number] = node.folded_copies()
        return number

    def _after(self, state: GlobalState, place: int, link: int | None, outcome: Outcome) -> GlobalState:
        _, number, posts, gone = outcome
        after = list(state)
        after[place] = number
        if link is not None:
            content = self._contents.values[after[link]][1:]
            after[link] = self._contents.number(content, content)
        if gone is not None and (gone, self.names[place]) in self._link_places:
            after[self._link_places[gone, self.names[place]]] = EMPTY
        self._post(after, posts)
        if self._folded[number] != self._folded[state[place]]:
            self._note_whole(after)
        return tuple(after)

    def _post(self, after: list[int], posts: tuple[tuple[int, int], ...]) -> None:
        for link, message in posts:
            if not after[self.places[self.links[link - self._first_link][1]]]:
                continue  # Messages to a dead process are dropped.
            content = (*self._contents.values[after[link]], message)
            after[link] = self._contents.number(content, content)

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
