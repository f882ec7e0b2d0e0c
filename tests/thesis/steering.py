"""How the claims of chapter 3 are shown: worlds of the production machines that a test steers, stories of the models.

`Steered` is a simulated world of which a test holds back nodes and connections, to look at what is on its way. Every
invariant of spec/invariants.py is checked at each step of it. All that is used of `World` is used here.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, Self

import pytest

from flux.spec.dataflow import EGRESS, END, Scenario
from flux.spec.invariants import Violated, all_checkers
from flux.spec.process import SimulatedProcess
from flux.spec.recovery import RecoveryEnds
from flux.spec.thesis.counterexamples import steps
from flux.spec.thesis.explore import replay
from flux.spec.thesis.world import GlobalState
from flux.spec.thesis.world import World as ModelWorld
from flux.spec.thesis.worlds import wrong
from flux.spec.world import NO_DETAIL, Choice, World

Stages = tuple[tuple[tuple[str, ...], ...], ...]
Held = str | tuple[str, str]  # A node, or the connection from one to another.

ONE, TWO, THREE, FOUR, FIVE, SIX = (f"site-{n}" for n in range(1, 7))
PAIR: Stages = (((ONE, TWO),),)  # A dataflow pair, as in fig. 3.2.
PAIR_TO_PAIR: Stages = (((ONE, TWO),), ((THREE, FOUR),))  # Producers and consumers, as in fig. 3.11 and 3.12.
VALUES = (3, 4, 6, 7)  # The operator emits one row or two for each of them.
ROOMY, TIGHT = 20, 1


class Steered:
    """A world of the production machines; one batch for each value, unless batches are given."""

    def __init__(
        self,
        copies: Stages = PAIR,
        sites: int = 0,
        values: tuple[int, ...] = VALUES,
        bound_rows: int = ROOMY,
        at_once: int = 1,
    ) -> None:
        used = len({node for stage in copies for partition in stage for node in partition})
        scenario = Scenario(
            sites=sites or used,
            copies=copies,
            batches=tuple((value,) for value in values),
            bound_rows=bound_rows,
            crashes=4,
            at_once=at_once,
        )
        # Where nothing is to be rebuilt, recovery cannot end.
        checkers = [checker for checker in all_checkers() if at_once or not isinstance(checker, RecoveryEnds)]
        self.world = World(scenario, checkers)
        self.egress = (len(copies) + 1, 0)

    # --- what happens -----------------------------------------------------------------------------------------

    def start(self) -> Self:
        """Everyone has the first view and is connected; the source has given nothing yet."""
        return self.settle(kinds=("deliver",))

    def settle(self, *without: Held, kinds: tuple[str, ...] = ("deliver", "answer", "notice")) -> Self:
        """The oldest choice each time, until there is none but at what is held back."""
        while True:
            possible = [c for c in self.world.choices if c[0] in kinds and not self._is_at(c, without)]
            if not possible:
                return self
            self.world.do(possible[0])

    def settle_in_turn(self, *order: str) -> Self:
        """To the end; whenever the first of these nodes can go on, it does, else the second, and so on."""
        while self.world.choices:
            first = next((n for n in order if any(self._is_at(c, (n,)) for c in self.world.choices)), None)
            possible = [c for c in self.world.choices if first is None or self._is_at(c, (first,))]
            self.world.do(possible[0])
        return self

    def wander(self, choices: int, seed: int) -> Self:
        """So many choices at random."""
        rng = random.Random(seed)
        for _ in range(choices):
            if self.world.choices:
                self.world.do(rng.choice(self.world.choices))
        return self

    def wander_until_built(self, node: str, stage: int, seed: int) -> Self:
        """At random, until `node` has just got its copy."""
        rng = random.Random(seed)
        while not self.holds(node, stage):
            self.world.do(rng.choice(self.world.choices))
        return self

    def crash(self, *sites: str) -> Self:
        """Sites die, and the controller has noticed; nobody else has been told."""
        for site in sites:
            self.world.do(("crash", site, NO_DETAIL))
            self.world.do(("notice", site, NO_DETAIL))
        return self

    def deliver(self, sender: str, to: str) -> Self:
        """All that is on one connection now."""
        for _ in self.waiting(sender, to):
            self.world.do(("deliver", sender, to))
        return self

    def work(self, node: str) -> Self:
        """The operator, the source or the sink of a node is through what it was given."""
        self.world.do(next(c for c in self.world.choices if c[:2] == ("answer", node)))
        return self

    def rest(self) -> Self:
        """To the end, where everything must be consumed, drained and whole."""
        self.settle()
        self.world.at_rest()
        return self

    @staticmethod
    def _is_at(choice: Choice, places: tuple[Held, ...]) -> bool:
        kind, name, detail = choice
        where = str(detail) if kind == "deliver" else name
        return where in places or (kind == "deliver" and (name, where) in places)

    # --- what there is to see -----------------------------------------------------------------------------------

    @property
    def output(self) -> list[tuple[int, int, int]]:
        """What the egress has got, as (sn, sub, value)."""
        return self.consumed(EGRESS, *self.egress)

    def consumed(self, node: str, stage: int, partition: int = 0) -> list[tuple[int, int, int]]:
        history = self.world.processes[node].history[stage, partition]
        return [(row.sn, row.sub, row.value) for row in history if row.value != END]

    def holds(self, node: str, stage: int, partition: int = 0) -> bool:
        return (stage, partition) in self.world.processes[node].history

    def is_at_work(self, node: str) -> bool:
        return any(choice[:2] == ("answer", node) for choice in self.world.choices)

    def waiting(self, sender: str, to: str, kind: type[Any] = object) -> list[Any]:
        """What is on its way from one node to another."""
        return [message for message in self.world.links.get((sender, to), ()) if isinstance(message, kind)]

    def kept(self, node: str, stage: int) -> int:
        """Rows in the buffer of a node behind `stage`; of the ingress, behind stage 0."""
        machine: Any = self.world.processes[node].node.machines[stage]
        return int(machine.prod.buffer.rows)

    @property
    def released(self) -> int:
        """Up to where the source may forget its rows."""
        return self.world.processes["ingress"].released

    @property
    def being_built(self) -> list[tuple[int, int, str]]:
        """The copies on their way: stage, partition, site."""
        return [(s.stage, s.partition, s.node) for s in self.world.controller.view.standby]


@cache
def plain(copies: Stages = PAIR, values: tuple[int, ...] = VALUES) -> list[tuple[int, int, int]]:
    """What the egress gets when nothing fails."""
    return Steered(copies, values=values).rest().output


def at_every_step(make: Callable[[], Steered], seed: int = 0, stride: int = 1) -> Iterator[Steered]:
    """The same world after no choice, after `stride` choices, twice as many ... up to its end."""
    done = 0
    while True:
        steered = make().start().wander(done, seed)
        is_last = not steered.world.choices
        yield steered
        if is_last:
            return
        done += stride


def without(patch: pytest.MonkeyPatch, is_left_out: Callable[[str, Any], bool], make: Callable[[], Steered]) -> str:
    """What is violated when messages are left out: the machines' "otherwise". Given (receiver, message)."""
    own = SimulatedProcess.deliver

    def deliver(process: SimulatedProcess, message: Any) -> Any:
        return [] if is_left_out(process.name, message) else own(process, message)

    with patch.context() as planted:
        planted.setattr(SimulatedProcess, "deliver", deliver)
        with pytest.raises(Violated) as found:
            make().rest()
    return str(found.value)


# --- the models ---------------------------------------------------------------------------------------------------


def otherwise(variant: str) -> str:
    """What goes wrong in the thesis's own protocol without a measure."""
    return replay(wrong(variant), steps(variant))


def after(world: ModelWorld, state: GlobalState, *story: str) -> GlobalState:
    """The state of a model after the steps of a story, each "who: what"."""
    for line in story:
        possible = [*world.steps(state), *world.arrivals(state), *world.crashes(state)]
        state = next(a for (what, who), a in possible if f"{who}: {what}" == line)
    return state
