"""Comparison of the thesis's protocol and the production machines: same input, routing and faults, same sequences.

A seed fixes a `Case` (see `cases`): an input, one to three stages of one to three partition pairs, an operator that
emits none, one or two tuples for each, and which copies crash. `compare` runs it twice: as tuples, marks, pauses and
reversals in the reference model (spec/thesis), and as frames, positions and attaches in the production machines
(`World`), each with an order of events of its own. Whatever the order, every copy of every partition and the egress
must have consumed the same (sn, sub, value) in the same order: all of it, or a prefix if the copy crashed. The
invariants of spec/invariants.py are switched off here; the model alone defines what is right. Its operators check
at each step that they are given what a plain run of the model gives them.

`python -m flux.spec.compare SEED ...` compares again and prints what it finds.

Faults: in the models copies crash, among the machines sites do. A case places its copies *apart*, each on a
site of its own, so that both are the same; or *together*, one copy of each stage on a site, so that the crash of a
site is that of several copies at once. There is a standby for each crash: a copy that appears, and a site without
copies. A crash happens when it is due and the pair has another complete copy on both sides, so that no
partition is lost. When nothing else is left to happen, it is due at once.
"""

from __future__ import annotations

import random
import sys
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from .cases import Case, CasePair, case_of, model_of, names
from .dataflow import EGRESS, END, Row, Scenario, route
from .invariants import Violated as MachineViolated
from .thesis import Copy, Fault, sequences
from .thesis import Violated as ModelViolated
from .thesis.scenario import DATAFLOW_PAIRS, PARTITION_PAIRS, Tuple, default_fan
from .world import NO_DETAIL, Choice, World

ComparedRow = tuple[int, int, int]  # Sequence number, sub-number, value.

CHOICES_MAX = 200_000
SLOW_CHANCE, PATIENCE = 0.25, (0, 3, 12)


@dataclass(frozen=True)
class ComparedRows:
    """What one copy consumed, from tuple `begins` on. `state` counts the tuples in the state it was built from.

    A model's copy that was built has only what arrived after that state; a machine's has all, as history moves with it.
    """

    name: str
    pair: CasePair
    rows: tuple[ComparedRow, ...]
    begins: int = 0
    state: int = 0
    crashed: bool = False


@dataclass(frozen=True)
class ComparedInput:
    """The result of one side: what the egress and every copy consumed, and the names of the copies that crashed."""

    taken: tuple[ComparedRows, ...]
    crashed: frozenset[str]

    @property
    def caught_up_midway(self) -> bool:
        """Whether a copy was built from a state with some of its input, and got the rest itself."""
        expected = whole(self)
        return any(0 < taken.state < len(expected[taken.pair]) for taken in self.taken)

    def live(self, pair: CasePair) -> list[ComparedRows]:
        return [taken for taken in self.taken if taken.pair == pair and not taken.crashed]


@dataclass(frozen=True)
class Compared:
    """A case, the results of both sides, and the first difference, if there is one.

    `fired` counts the rows of the model that were taken. A side that broke one of its own rules has no result.
    """

    case: Case
    model: ComparedInput | None
    machines: ComparedInput | None
    difference: str
    fired: Counter[tuple[str, str]] = field(repr=False)

    @property
    def equal(self) -> bool:
        return not self.difference

    def __str__(self) -> str:
        crashes = [f"{' '.join(map(str, crash.copies))} after {crash.after_steps} steps" for crash in self.case.crashes]
        given = f"{len(self.case.values)} tuples, partitions {self.case.partitions}, crashes: {crashes or 'none'}"
        found = f"{self.difference}\ncompare again with: python -m flux.spec.compare {self.case.seed}"
        return f"seed {self.case.seed}, {given}: {'the same sequences' if self.equal else found}"


def compare(seed: int) -> Compared:
    """Run the case of `seed` on both sides.

    >>> compared = compare(3)
    >>> compared.equal, compared.model.crashed == compared.machines.crashed
    (True, True)
    """
    case = case_of(seed)
    fired: Counter[tuple[str, str]] = Counter()
    try:
        model = run_model(case, fired)
    except ModelViolated as violated:
        return Compared(case, None, None, f"the model breaks its own rule: {violated}", fired)
    try:
        machines = run_machines(case)
    except MachineViolated as violated:
        return Compared(case, model, None, f"the machines break their own rule: {violated}", fired)
    return Compared(case, model, machines, first_difference(case, model, machines), fired)


def compare_many(seeds: Iterable[int]) -> tuple[list[Compared], dict[str, Counter[tuple[str, str]]]]:
    """Compare the cases of all seeds; also return the rows that fired, by kind of world."""
    found = [compare(seed) for seed in seeds]
    fired: dict[str, Counter[tuple[str, str]]] = {DATAFLOW_PAIRS: Counter(), PARTITION_PAIRS: Counter()}
    for compared in found:
        fired[PARTITION_PAIRS if len(compared.case.partitions) > 1 else DATAFLOW_PAIRS] += compared.fired
    return found, fired


# --- what is compared -------------------------------------------------------------------------------------------


def first_difference(case: Case, model: ComparedInput, machines: ComparedInput) -> str:
    """Describe the first difference between the two sides; empty if there is none."""
    if model.crashed != machines.crashed:
        return f"the model lost {sorted(model.crashed)}, the machines {sorted(machines.crashed)}"
    expected = whole(model)
    for pair in (*case.pairs, case.egress):
        if len(model.live(pair)) != len(machines.live(pair)):
            return f"{pair} has {len(model.live(pair))} copies in the model, {len(machines.live(pair))} in the machines"
        for side, given in (("the model", model), ("the machines", machines)):
            for taken in given.taken:
                if taken.pair == pair and (what := _differs(taken, expected[pair])):
                    return f"{side}, {taken.name} of {pair}: {what}"
    return ""


def whole(given: ComparedInput) -> dict[CasePair, tuple[ComparedRow, ...]]:
    """What each pair consumed: by its first copy, then by those built from it."""
    found: dict[CasePair, tuple[ComparedRow, ...]] = {}
    for taken in sorted(given.taken, key=lambda taken: taken.begins):
        known = found.get(taken.pair, ())
        found[taken.pair] = known + taken.rows[max(0, len(known) - taken.begins) :]
    return found


def _differs(taken: ComparedRows, expected: tuple[ComparedRow, ...]) -> str:
    for k, row in enumerate(taken.rows, start=taken.begins):
        if k >= len(expected) or row != expected[k]:
            return f"its tuple {k} is {row}, not {expected[k] if k < len(expected) else 'the end'}"
    reached = taken.begins + len(taken.rows)
    if reached < len(expected) and not taken.crashed:
        return f"it ends after {reached} tuples and never gets {expected[reached]}"
    return ""


# --- the model ------------------------------------------------------------------------------------------------------


def run_model(case: Case, fired: Counter[tuple[str, str]]) -> ComparedInput:
    """Run the thesis's protocol; add the rows of its tables that were taken to `fired`."""
    run = sequences(
        case.values,
        case.partitions,
        [Fault(copy, crash.after_steps) for crash in case.crashes for copy in crash.copies],
        case.seed,
        route=route,
        fan=default_fan,
        standby_after=case.standby_after,
        capacity=case.capacity,
    )
    fired.update(run.fired)
    named = names(model_of(case.values, case.partitions))

    def seen(stage: int, rows: Iterable[Tuple]) -> tuple[ComparedRow, ...]:
        return tuple((*named[stage, sn][:2], value) for sn, value in rows)

    taken = [ComparedRows(EGRESS, case.egress, seen(case.egress[0], run.egress))]
    for copy in (*run.live, *run.crashed):
        rows, state = seen(copy.stage, run.consumed.get(copy, ())), run.installed.get(copy, 0)
        taken.append(ComparedRows(str(copy), copy.pair, rows, state, state, copy in run.crashed))
    return ComparedInput(tuple(taken), frozenset(map(str, run.crashed)))


# --- the machines ---------------------------------------------------------------------------------------------------


def run_machines(case: Case) -> ComparedInput:
    """Run the production machines in a simulated world, to its end."""
    plain = _Machines(replace(case, crashes=()))
    run = _Machines(case, choices_per_step=plain.to_the_end() / case.steps)
    run.to_the_end()
    taken = []
    for name, process in run.world.processes.items():
        for place, history in process.history.items():
            rows = _seen(history)
            state = run.states.get((name, place), 0)
            taken.append(ComparedRows(name, place, rows, 0, state, name in run.world.crashed))
    return ComparedInput(tuple(taken), frozenset(run.crashed))


def _seen(history: Iterable[Row]) -> tuple[ComparedRow, ...]:
    return tuple((row.sn, row.sub, row.value) for row in history if row.value != END)


class _Machines:
    """A run of the machines in progress. All uses of `World` are here."""

    def __init__(self, case: Case, choices_per_step: float = 1.0) -> None:
        self.random = random.Random(case.seed)
        self.choices_per_step = choices_per_step
        self.homes = {Copy(*pair, k): case.site_of(Copy(*pair, k)) for pair in case.pairs for k in (0, 1)}
        copies = tuple(
            tuple(tuple(self.homes[Copy(stage, i, k)] for k in (0, 1)) for i in range(count))
            for stage, count in enumerate(case.partitions, start=1)
        )
        self.crashes = list(case.crashes)
        scenario = Scenario(
            sites=case.sites + case.copies_lost,
            copies=copies,
            batches=tuple(case.values[k : k + case.batch] for k in range(0, len(case.values), case.batch)) or ((),),
            bound_rows=case.bound_rows,
            crashes=len(case.crashes),
            at_once=case.at_once,
        )
        self.world = World(scenario, checkers=())
        self.slow = frozenset(node for node in scenario.nodes if self.random.random() < SLOW_CHANCE)
        self.patience = self.random.choice(PATIENCE)
        self.versions = 0
        self.crashed: list[str] = []
        self.states: dict[tuple[str, CasePair], int] = {}  # How much was in the states that were installed.
        self.known = {name: set(process.history) for name, process in self.world.processes.items()}

    def to_the_end(self) -> int:
        """Choose at random until nothing is left to happen, with every possible crash; return the number of choices."""
        for done in range(CHOICES_MAX):
            while self.crashes and (self._is_due(done) or not self.world.choices):
                if not self._crash():
                    break
            if not self.world.choices:
                return done
            self._do(self._draw())
        raise MachineViolated(f"recovery ends: a run is not at rest after {CHOICES_MAX:,} choices")

    def _is_due(self, done: int) -> bool:
        return self.crashes[0].after_steps * self.choices_per_step <= done

    def _do(self, choice: Choice) -> None:
        self.world.do(choice)
        self._note_standbys()
        where = choice[2] if choice[0] == "deliver" else choice[1]
        if where in self.known:
            history = self.world.processes[str(where)].history
            for place in history.keys() - self.known[str(where)]:
                self.known[str(where)].add(place)
                self.states[str(where), place] = len(_seen(history[place]))

    def _draw(self) -> Choice:
        """A random choice; one at a slow node only when `patience` draws gave nothing else."""
        for _ in range(self.patience):
            choice = self.random.choice(self.world.choices)
            if (choice[2] if choice[0] == "deliver" else choice[1]) not in self.slow:
                return choice
        return self.random.choice(self.world.choices)

    def _note_standbys(self) -> None:
        """Give the copies that are being built their names of the model, in the order in which they were begun."""
        for standby in self.world.controller.view.standby:
            if standby.version > self.versions:
                self.versions = standby.version
                pair = (standby.stage, standby.partition)
                number = sum(copy.pair == pair for copy in self.homes)
                self.homes[Copy(*pair, number)] = standby.node

    def _crash(self) -> bool:
        """Crash the site that is next, if each of its copies has another complete one."""
        victim = self.homes.get(self.crashes[0].copies[0])
        if victim is None or victim not in self.world.may_crash():
            return False
        lost = [copy for copy, home in self.homes.items() if home == victim]
        if not all(self._has_another(copy, victim) for copy in lost):
            return False
        self.world.do(("crash", victim, NO_DETAIL))
        self.crashed += map(str, lost)
        self.crashes.pop(0)
        return True

    def _has_another(self, copy: Copy, victim: str) -> bool:
        return any(
            copy.pair in process.history
            for name, process in self.world.processes.items()
            if name != victim and name not in self.world.crashed
        )


if __name__ == "__main__":
    for argument in sys.argv[1:]:
        print(compare(int(argument)))
