"""A world of Flux-LB as a graph of states: FL-Prods, FL-Conses and the controller, every order of their steps.

Connections are FIFO. That of an FL-Prod to an FL-Cons holds a bounded number of tuples: a tuple for a blocked
connection stays in the buffer (Thesis 4.3). Pause, acknowledgment and restart are never blocked.
"""

from __future__ import annotations

from collections.abc import Iterator

from .fl_cons import FlCons
from .fl_controller import LbController
from .fl_prod import FlProd
from .fl_scenario import LbScenario
from .fl_words import PartitionPaused, PartitionTuple, fl_cons, fl_prod
from .process_graph import EMPTY, GlobalState, Outcome, ProcessGraph
from .words import CONTROLLER, ProcessModel, Violated


class LbWorld(ProcessGraph):
    """All processes and connections of `scenario`."""

    def __init__(self, scenario: LbScenario) -> None:
        self.scenario = scenario
        self.prods = tuple(fl_prod(i) for i in range(scenario.producers))
        self.conses = tuple(fl_cons(k) for k in range(scenario.instances))
        names = (CONTROLLER, *self.prods, *self.conses)
        labels = [
            "controller",
            *(f"prod {name.partition}" for name in self.prods),
            *(f"cons {name.partition}" for name in self.conses),
        ]
        links = [(a, b) for b in names for a in names if a != b and (a in self.conses or b in self.conses)]
        super().__init__(names, labels, links, scenario.fused)

    def start(self) -> GlobalState:
        scenario = self.scenario
        nodes: list[ProcessModel] = [LbController(scenario)]
        nodes += [FlProd(scenario, i) for i in range(scenario.producers)]
        nodes += [FlCons(scenario, k) for k in range(scenario.instances)]
        return (*(self._number(node) for node in nodes), *[EMPTY] * len(self.links))

    # --- one step -----------------------------------------------------------------------------------------------

    def _has_room(self, state: GlobalState, outcome: Outcome) -> bool:
        for link, message in outcome[2]:
            if isinstance(self._messages.values[message], PartitionTuple):
                content = self._contents.values[state[link]]
                tuples = sum(isinstance(self._messages.values[m], PartitionTuple) for m in content)
                if tuples >= self.scenario.connection:
                    return False
        return True

    def _post(self, after: list[int], posts: tuple[tuple[int, int], ...]) -> None:
        if "ordered_delivery" not in self.scenario.variant:
            super()._post(after, posts)
            return
        for link, message in posts:  # An acknowledgment overtakes the tuples.
            content = self._contents.values[after[link]]
            is_first = isinstance(self._messages.values[message], PartitionPaused)
            content = (message, *content) if is_first else (*content, message)
            after[link] = self._contents.number(content, content)

    # --- what there is to see -------------------------------------------------------------------------------------

    def held_back(self, state: GlobalState) -> int:
        """Return how many tuples an FL-Prod has and may not send, because their partition is stalled."""
        return sum(self.node(state, name).held_back() for name in self.prods)

    def stalled(self, state: GlobalState) -> frozenset[int]:
        """Return the partitions that some FL-Prod has stalled."""
        return frozenset().union(*(self.node(state, name).stalled for name in self.prods))

    # --- at rest ------------------------------------------------------------------------------------------------

    def check_at_rest(self, state: GlobalState) -> None:
        """Check that all input is processed, all moves have ended, and all maps are right.

        If no transfer of state ends, that holds of the partitions that stay where they are.
        """
        moved = {move.partition for moves in self.scenario.rounds for move in moves}
        places = dict(self._places(state))
        for j in range(self.scenario.partitions):
            if self.scenario.is_stuck and j in moved:
                continue
            if j not in places:
                raise Violated(f"moves end: no instance has partition {j}")
            self._check_processed(state, j, places[j])
        if self.scenario.is_stuck:
            return
        if self.node(state, CONTROLLER).round < len(self.scenario.rounds):
            raise Violated(f"moves end: round {self.node(state, CONTROLLER).round} never does")
        for name in self.prods:
            prod = self.node(state, name)
            if prod.stalled or prod.buffer or prod.map != places:
                raise Violated(f"moves end: FL-Prod {name.partition} holds tuples back, or sends them elsewhere")
        for a, b in self.links:
            if self.on_link(state, a, b):
                raise Violated(f"no deadlock: {self.on_link(state, a, b)[0]} waits for ever between {a} and {b}")

    def _places(self, state: GlobalState) -> Iterator[tuple[int, int]]:
        """Yield each partition and the instance that has it."""
        found = [(j, name.partition) for name in self.conses for j in self.node(state, name).states]
        if len({j for j, _ in found}) < len(found):
            raise Violated(f"consistent state: two instances have the same partition: {found}")
        yield from sorted(found)

    def _check_processed(self, state: GlobalState, partition: int, instance: int) -> None:
        now = self.node(state, fl_cons(instance)).states[partition]
        last = self.scenario.last_state(partition)
        if now.taken != last.taken:
            raise Violated(
                f"no deadlock: partition {partition} has processed {sum(now.taken)} of {sum(last.taken)} tuples"
            )
        if now.digest != last.digest:
            raise Violated(f"consistent state: that of partition {partition} differs from that of a plain run")
