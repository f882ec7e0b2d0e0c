"""Changing world: a simulated run whose code is changed again and again, while copies move and processes die.

Each change gives some steps another parameter, other code or other state, so that every row shows which code has
processed it. The output must be that of a plain run that changes its code at one row, the same for all steps.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import trio

from ..driver.change_request import StepRequest
from ..driver.known_changes import KnownChange
from ..plan.policy import Policy
from ..types.errors import ChangeError
from .changed_total import MIGRATED, UPGRADED
from .moving_world import MovingWorld
from .world_flow import WorldFlow
from .world_result import WorldResult

__all__ = ["ChangingWorld"]

_CODE = "flux.simulation.changed_total"
_CHANGES = (1, 1, 2, 4)  # Of a world.
_GIVEN_UP = 0.1
_LOOK_EVERY_S = 0.005


@dataclass(frozen=True)
class _StepAfter:
    """What a change makes of one step: what it adds to each row, and to the total of each key there is."""

    bonus: int
    added: int


@dataclass(frozen=True)
class _Asked:
    """A change as it was asked for, and what it makes of the steps, by stage."""

    known: KnownChange
    after: dict[int, _StepAfter]


class _Steps:
    """A plain run of the steps: the totals of keys by stage, and what is added to rows now."""

    def __init__(self, stages: int) -> None:
        self._totals: list[dict[Any, tuple[int, int]]] = [{} for _ in range(stages)]
        self._bonus = [0] * stages

    def change(self, asked: _Asked) -> None:
        """Go on with the code after a change."""
        for stage, after in asked.after.items():
            self._bonus[stage] = after.bonus
            self._totals[stage] = {key: (nth, n + after.added) for key, (nth, n) in self._totals[stage].items()}

    def process(self, source: int, key: int, n: int) -> tuple[int, ...]:
        """Return the output of a row."""
        nth, total = 0, 0
        for totals, bonus in zip(self._totals, self._bonus, strict=True):
            nth, total = totals.get((source, key), (0, 0))
            nth, total = totals[source, key] = nth + 1, total + n + bonus
            key, made = nth, n
        return source, made, nth, total

    def copy(self) -> _Steps:
        """Return a run that goes on from here."""
        other = _Steps(len(self._bonus))
        other._totals, other._bonus = [dict(totals) for totals in self._totals], list(self._bonus)
        return other


class ChangingWorld(MovingWorld):
    """The world of a seed."""

    kind = "changing"

    def __init__(self, seed: int, **settings: Any) -> None:
        self._change_rng = random.Random(f"{seed} changes")
        self._moves = self._change_rng.random() < 0.5
        self._asked: list[_Asked] = []
        super().__init__(seed, **settings)
        self.may_lose_while_moving = self._moves

    def draw_flow(self) -> WorldFlow:
        """Return the dataflow of this world: more rows, so that changes come before their end."""
        rows = self._change_rng.randint(20, 60)
        return replace(super().draw_flow(), rows=rows, rate=rows / self._change_rng.choice((0.3, 0.6, 1.2)))

    def draw_policy(self) -> Policy:
        """Return the policy of this world."""
        return super().draw_policy() if self._moves else Policy()

    async def main(self) -> None:
        """Run the dataflow, with its faults and its changes."""
        self.nursery.start_soon(self._ask_for_changes)
        await super().main()

    def run(self) -> WorldResult:
        """Run the world to its end."""
        result = super().run()
        return replace(result, changes=sum(asked.known.is_committed for asked in self._asked))

    async def _ask_for_changes(self) -> None:
        rng = self._change_rng
        while (state := self.run_state) is None or state.started_at is None:
            await trio.sleep(_LOOK_EVERY_S)
        for number in range(1, rng.choice(_CHANGES) + 1):
            await trio.sleep(rng.uniform(0, 0.2))
            if state.ended or self.is_ending or self.driver is None:
                return
            wanted, after = self._draw_change(number)
            self.system.kernel.note("program", f"asks for a change of {wanted}")
            try:
                known = self.driver.change_code(wanted, rng.choice(("sn", "sn", "epoch")))
            except ChangeError as error:
                self.violate(f"a change was refused at once: {error}")
                return
            self._asked.append(_Asked(known, after))
            gives_up = rng.random() < _GIVEN_UP
            while not known.is_decided and not state.ended:
                await trio.sleep(_LOOK_EVERY_S)
                if gives_up:
                    self.driver.give_up_change(known.number)
                    gives_up = False
            if known.reason is not None and "aborted" not in known.reason and not self._may_refuse(known.reason):
                self.violate(f"change {known.number} was refused: {known.reason}")

    def _may_refuse(self, reason: str) -> bool:
        """Whether a change may be refused so: a site had no memory, or its rehearsal was killed."""
        return "did not end" in reason or "MemoryError" in reason

    def _draw_change(self, number: int) -> tuple[dict[str, StepRequest], dict[int, _StepAfter]]:
        """Return a change of some steps, and what it makes of them."""
        rng, wanted, after = self._change_rng, dict[str, StepRequest](), dict[int, _StepAfter]()
        stages = rng.choice(([0], [1], [0, 1])) if self.flow.stages == 2 else [0]
        for stage in stages:
            bonus, added = 100 * number, 0
            request = StepRequest(parameters={"bonus": bonus})
            has_second = self._has_second(stage)
            kind = rng.choice(("parameters", "migrate", "code"))
            if kind == "migrate":
                name = "migrate_second" if has_second else "migrate"
                request, added = replace(request, migrate=f"{_CODE}:{name}"), MIGRATED
            elif kind == "code" and not has_second:
                request, added = replace(request, operator=f"{_CODE}:SecondTotal"), UPGRADED
            wanted["RunningTotal" if stage == 0 else "RunningTotal#2"] = request
            after[stage] = _StepAfter(bonus, added)
        return wanted, after

    def _has_second(self, stage: int) -> bool:
        """Whether a step runs the other code already."""
        made = {} if self.run_state is None else self.run_state.known_changes.steps()
        return any(change.stage == stage + 1 and change.operator for change in made.values())

    # What must hold.

    def difference(self, output: list[dict[str, Any]], is_whole: bool) -> str | None:
        """Return how an output, or its beginning, differs from that of a plain run that changes where this one did."""
        committed = [asked for asked in self._asked if asked.known.is_committed]
        if not committed:
            return super().difference(output, is_whole)
        steps, inputs = _Steps(self.flow.stages), [iter(self.flow.inputs(s)) for s in range(self.flow.sources)]
        begun = 0  # How many changes the code is after.
        for place, row in enumerate(output):
            got = tuple(row[name] for name in ("source", "n", "nth", "total"))
            given = next(inputs[row["source"]], None) if 0 <= row["source"] < len(inputs) else None
            if given is None:
                return f"row {place} of the output, {got}, is of no input"
            possible = self._possible(steps, begun, committed)
            found = next(((run, n) for run, n in possible if run.process(row["source"], *given) == got), None)
            if found is None:
                return f"row {place} of the output is {got}, and no code from change {begun} on makes that"
            for asked in committed[begun : found[1]]:
                assert asked.known.position is not None
                is_seen = self.flow.stages - 1 in asked.after  # What the first of two steps adds is not in the output.
                if is_seen and place > asked.known.position:
                    return f"the old code made the first {place} rows, and {asked.known} is at {asked.known.position}"
            steps, begun = found
        left = sum(len(list(rest)) for rest in inputs)
        return f"{left} rows of the input have no output" if is_whole and left else None

    @staticmethod
    def _possible(steps: _Steps, begun: int, committed: list[_Asked]) -> Iterator[tuple[_Steps, int]]:
        """Yield the run after the changes up to now, and after one more, and one more, each a copy of its own."""
        yield steps.copy(), begun
        later = steps.copy()
        for more, asked in enumerate(committed[begun:], begun + 1):
            later.change(asked)
            yield later.copy(), more
