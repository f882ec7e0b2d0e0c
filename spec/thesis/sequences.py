"""One run of a model to its end: the tuples that every operator copy consumed and that the egress got.

For the same input, routing and faults the production machines must give the same sequences, whatever the order of
events. The comparison with protocols/ relies on that. A seed decides the order of steps; a fault is a copy and the
number of steps after which it crashes.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from .node import Egress, Segment
from .process_graph import Choice, GlobalState
from .roles import roles, tables
from .scenario import Fan, Route, Scenario, Tuple, default_fan, default_route
from .words import END, Copy, Violated
from .world import World

STEPS_MAX = 100_000
PACES = (1.0, 1.0, 0.02)


@dataclass(frozen=True)
class Fault:
    """`copy` crashes at the first step, from `after_steps` on, at which its pair has another whole copy."""

    copy: Copy
    after_steps: int


@dataclass(frozen=True)
class Sequences:
    """The result of a run: tuples as (sequence number, value), without ends of streams.

    A standby's `consumed` begins after the `installed` tuples in the state that it got. `fired` counts the rows that
    fired, by role, without those that two roles of one process share, in a stage between others.
    """

    egress: tuple[Tuple, ...]
    consumed: dict[Copy, tuple[Tuple, ...]]
    installed: dict[Copy, int]
    crashed: tuple[Copy, ...]
    live: tuple[Copy, ...]
    steps: tuple[Choice, ...] = field(repr=False)
    fired: Counter[tuple[str, str]] = field(repr=False)


class Walk:
    """A run in progress."""

    def __init__(self, scenario: Scenario, faults: Iterable[Fault], seed: int, standby_after: int) -> None:
        self.world = World(scenario)
        self.state: GlobalState = self.world.start()
        self.random = random.Random(seed)
        self.faults = sorted(faults, key=lambda fault: fault.after_steps)
        self.standby_after = standby_after
        self.next_standby = 0
        self.crashed: list[Copy] = []
        self.consumed: dict[Copy, list[Tuple]] = {}
        self.installed: dict[Copy, int] = {}
        self.path: list[Choice] = []
        self.fired: Counter[tuple[str, str]] = Counter()
        self.weights: dict[Choice, float] = {}

    def run(self) -> None:
        """Step until the world is at rest; raise `Violated` if a claim does not hold."""
        while len(self.path) < STEPS_MAX:
            if self._crash_what_is_due():
                continue
            choices = list(self.world.steps(self.state))
            arrivals = list(self.world.arrivals(self.state))
            if arrivals and (len(self.path) >= self.next_standby or not choices):
                choices += arrivals
            if not choices:
                if self.faults and self._hurry():
                    continue
                self.world.check_at_rest(self.state)
                return
            weights = [self._weight(choice) for choice, _ in choices]
            choice, after = self.random.choices(choices, weights)[0]
            self._note_fired(choice)
            self._note_consumed(after)
            self.path.append(choice)
            self.state = after
        raise Violated(f"recovery ends: a run is not at rest after {STEPS_MAX:,} steps")

    def _weight(self, choice: Choice) -> float:
        """Return the weight of a choice: in each run some actions are slow, so that rare orders occur too."""
        if choice not in self.weights:
            self.weights[choice] = self.random.choice(PACES)
        return self.weights[choice]

    def _hurry(self) -> bool:
        """Make the next fault due now, because nothing else is left to do; return whether it happened."""
        first, *others = self.faults
        self.faults = [replace(first, after_steps=0), *others]
        before = len(self.faults)
        if not self._crash_what_is_due():
            self.faults = others
        return len(self.faults) < before

    def _crash_what_is_due(self) -> bool:
        if not self.faults or self.faults[0].after_steps > len(self.path):
            return False
        victim = self.faults[0].copy
        if not any(self.world.is_whole(self.state, copy) for copy in self.world.names if self._is_other(copy, victim)):
            return False  # No other copy is whole: the crashes need not be computed.
        for choice, after in self.world.crashes(self.state):
            if choice[1] == str(victim):
                self.faults.pop(0)
                self.crashed.append(victim)
                self.path.append(choice)
                self.state = after
                self.next_standby = len(self.path) + self.standby_after
                return True
        return False

    @staticmethod
    def _is_other(copy: Copy, victim: Copy) -> bool:
        return copy.pair == victim.pair and copy != victim

    def _note_fired(self, choice: Choice) -> None:
        """Count the row that fired, if its name is unique among the roles of the process."""
        name, label = choice
        if name == "standby":
            return
        node = self.world.node(self.state, self.world.names[self.world.labels.index(label)])
        table = tables(self.world.scenario.kind)
        found = [role for role in roles(node) if any(row.name == name for row in table[role])]
        if len(found) == 1:
            self.fired[found[0], name] += 1

    def _note_consumed(self, after: GlobalState) -> None:
        """Record the tuples that each operator consumed in this step; `Operator.check` has checked their values."""
        for name in self.world.names:
            node, node_after = self.world.node(self.state, name), self.world.node(after, name)
            if node is node_after or not isinstance(node_after, Segment | Egress) or node is None:
                continue
            was, now = node.operator.consumed, node_after.operator.consumed
            if isinstance(node, Segment) and node.cons.my_status == "STDBY":
                self.installed[name] = now
            else:
                expected = self.world.scenario.reference[name.pair]
                self.consumed.setdefault(name, []).extend(expected[was:now])


def sequences(
    values: Sequence[int],
    partitions: Sequence[int] = (1, 1),
    faults: Iterable[Fault] = (),
    seed: int = 0,
    *,
    route: Route = default_route,
    fan: Fan = default_fan,
    standbys: int | None = None,
    standby_after: int = 0,
    capacity: int = 1_000_000,
    variant: Iterable[str] = (),
) -> Sequences:
    """Run a model to the end with seeded scheduling and scripted faults.

    `partitions` counts the partitions of each stage: one stage is a dataflow pair, more are partition pairs. By default
    there is a standby for each fault, which appears `standby_after` steps after the crash.

    >>> run = sequences([5, 7], partitions=[1], faults=[Fault(Copy(1, 0, 0), after_steps=3)], fan=lambda value: 1)
    >>> run.consumed[Copy(1, 0, 1)]
    (((1,), 5), ((2,), 7))
    >>> [sn for sn, value in run.egress]
    [(1, 0), (2, 0)]
    """
    faults = list(faults)
    scenario = Scenario(
        values=tuple(values),
        partitions=tuple(partitions),
        capacity=capacity,
        crashes=len(faults),
        standbys=len(faults) if standbys is None else standbys,
        variant=frozenset(variant),
        route=route,
        fan=fan,
    )
    walk = Walk(scenario, faults, seed, standby_after)
    walk.run()
    consumed = {name: tuple(t for t in rows if t[1] != END) for name, rows in walk.consumed.items()}
    egress = consumed.pop(walk.world.egress, ())
    live = tuple(node.name for node in walk.world.live(walk.state) if isinstance(node, Segment))
    installed = {name: _without_end(scenario.reference[name.pair][:n]) for name, n in walk.installed.items()}
    return Sequences(egress, consumed, installed, tuple(walk.crashed), live, tuple(walk.path), walk.fired)


def _without_end(rows: Iterable[Tuple]) -> int:
    return sum(value != END for _, value in rows)
