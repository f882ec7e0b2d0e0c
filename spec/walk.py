"""Random exploration: large worlds, a seed each, and a short story when one of them fails.

A seed fixes a scenario, when and which sites crash, which nodes are slow, and every choice. A failing
sequence of choices is shrunk: as many of them as possible are left out, and the rest of the run continues
with the oldest choice each time, until no single choice can be left out.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from ..protocols.change_messages import OF_INGRESS, OF_RECEIVERS, Reconfigure
from ..protocols.messages import Move
from .dataflow import EGRESS, INGRESS, VALUES, Scenario, declustered, site
from .invariants import Checker, Violated
from .process import CONTROLLER, role_of
from .world import Choice, World

SITES_MAX = 5
STAGES_MAX = 3
PARTITIONS_MAX = 8
TUPLES_MAX = 40
BATCHES_MAX = 8
BOUND_ROWS_MAX = 3
REPLAY = "python -m flux.spec.replay"


@dataclass(frozen=True)
class Walked:
    """One world that was walked to its end, or to its failure."""

    seed: int
    scenario: Scenario
    choices: tuple[Choice, ...]
    violation: Violated | None
    lost: bool

    def __str__(self) -> str:
        if self.violation is None:
            return f"seed {self.seed}: {len(self.choices)} choices"
        return f"seed {self.seed}: {self.violation}\nreplay with: {REPLAY} {self.seed}"


def scenario_of(rng: random.Random, scale: int = 1) -> Scenario:
    """A random dataflow: sites, stages, partitions, batches, bounds; mostly pairs, sometimes one copy.

    `scale` multiplies the length of the stream.
    """
    sites = rng.randint(2, SITES_MAX)
    spare = rng.choice((0, 0, 1, 1, 2))
    partitions = [rng.randint(1, PARTITIONS_MAX) for _ in range(rng.randint(1, STAGES_MAX))]
    degree = 1 if rng.random() < 0.1 else 2
    tuples = rng.randint(1, TUPLES_MAX * scale)
    values = [rng.randrange(VALUES) for _ in range(tuples)]
    cuts = sorted({0, tuples, *(rng.randint(0, tuples) for _ in range(rng.randint(0, BATCHES_MAX * scale - 1)))})
    bound_rows = rng.randint(1, BOUND_ROWS_MAX * scale)
    more = random.Random(f"bounds {values}")  # Drawn separately, so that seeds keep their worlds.
    return Scenario(
        sites=sites + spare,
        copies=declustered(sites, partitions, degree),
        batches=tuple(tuple(values[a:b]) for a, b in pairwise(cuts)),
        bound_rows=bound_rows,
        transfer_rows_max=bound_rows * more.choice((1, 2, 16)),
        step=more.choice((None, 1, 2, 5)),
        paces=random.Random(f"paces {values}").choice(((), (), (1,), (1, 4), (2, 3))),
        counted=random.Random(f"counted {values}").random() < 0.5,
        some_uncounted=random.Random(f"uncounted {values}").random() < 0.3,
        crashes=min(sites + spare, rng.choice((0, 1, 1, 1, 2, 2, 3, 4))),
        at_once=rng.choice((1, 1, 2, 4)),
        moves=tuple(_move(rng, sites + spare, partitions, degree) for _ in range(rng.choice((0, 0, 1, 3)))),
        edges=_edges(rng, len(partitions)),
        restarts=rng.choice((0, 0, 1, 2)),
        suspicions=rng.choice((0, 0, 0, 1)),
        cuts=rng.choice((0, 0, 0, 1)),
        arrivals=rng.choice((0, 0, 0, 1, 2)),
        slow_start=rng.random() < 0.3,
        unordered=_unordered(random.Random(str(values)), len(partitions)),
        chunks=random.Random(f"chunks {values}").random() < 0.5,
        slow=_slow(random.Random(f"slow {values}"), sites + spare),
        retires=random.Random(f"retires {values}").choice(((), tuple(site(n) for n in range(sites + spare)))),
        lost_tails=random.Random(f"tails {values}").random() < 0.2,
        lost_sinks=random.Random(f"sinks {values}").random() < 0.2,
    )


def with_changes(scenario: Scenario, rng: random.Random) -> Scenario:
    """The same dataflow, whose code changes up to three times."""
    stages = range(1, scenario.stages + 1)
    changes = tuple(
        Reconfigure(
            number=number,
            stages=frozenset(stage for stage in stages if rng.random() < 0.6) or frozenset({rng.choice(stages)}),
            scheduler=rng.choice((OF_RECEIVERS, OF_RECEIVERS, OF_RECEIVERS, OF_INGRESS)),
        )
        for number in range(1, rng.choice((1, 1, 2, 3)) + 1)
    )
    return replace(
        scenario,
        changes=changes,
        lead=rng.choice((0, 1, 1, 2)),
        aborts=(1,) if rng.random() < 0.1 else (),
        cannot=(site(rng.randrange(scenario.sites)),) if rng.random() < 0.05 else (),
    )


def _slow(rng: random.Random, sites: int) -> tuple[tuple[str, ...], ...]:
    """In one world of three, sites that are slow for a while. Drawn separately: seeds keep their worlds."""
    sets = rng.choice((0, 0, rng.randint(1, 4)))
    return tuple(tuple(site(n) for n in range(sites) if rng.random() < 0.3) for _ in range(sets))


def _unordered(rng: random.Random, stages: int) -> frozenset[int]:
    """In one world of three, stages that do not wait for the merge. Drawn separately: seeds keep their worlds."""
    chance = rng.choice((0, 0, 0.6))
    return frozenset(stage for stage in range(1, stages + 2) if rng.random() < chance)


def _edges(rng: random.Random, stages: int) -> tuple[tuple[int, int], ...]:
    """A chain, or one with shortcuts: streams that feed several stages, joins, and an edge twice (a self-join)."""
    chain = [(stage, stage + 1) for stage in range(stages + 1)]
    pairs = [(a, b) for a in range(stages + 1) for b in range(a + 1, stages + 2)]
    more = rng.sample(pairs, min(len(pairs), rng.choice((0, 0, 1, 2))))
    return tuple(sorted([*chain, *more]))


def _move(rng: random.Random, sites: int, partitions: list[int], degree: int) -> Move:
    stage = rng.randint(1, len(partitions))
    return Move(
        stage=stage,
        partition=rng.randrange(partitions[stage - 1]),
        slot=rng.randrange(degree),
        to=site(rng.randrange(sites)),
    )


def walk(seed: int, checkers: Iterable[Checker] | None = None, scale: int = 1, changes: bool = False) -> Walked:
    """Walk the world of `seed` to its end; in one with `changes` the code of stages changes meanwhile."""
    rng = random.Random(seed)
    scenario = scenario_of(rng, scale)
    if changes:
        scenario = with_changes(scenario, random.Random(f"changes {seed}"))
    world = World(scenario, checkers)
    done: list[Choice] = []
    violation: Violated | None = None
    try:
        for choice in steps(world, rng):
            done.append(choice)
            world.do(choice)
        world.at_rest()
    except Violated as found:
        violation = found
    return Walked(seed, scenario, tuple(done), violation, bool(world.lost))


def steps(world: World, rng: random.Random) -> Iterator[Choice]:
    """Yield random choices and faults until nothing is left; the caller does each before it takes the next."""
    scenario = world.scenario
    # A slow node lets others run ahead of it: drift is where take-over is interesting.
    slow = frozenset(node for node in scenario.nodes if rng.random() < 0.25)
    patience = rng.choice((0, 2, 8))
    # About as many choices as such a world makes, so that faults fall everywhere in it.
    length = 14 * scenario.sites * scenario.stages + 6 * scenario.sites * len(scenario.batches)
    allowed = scenario.crashes + scenario.restarts + scenario.suspicions + scenario.cuts
    when = sorted((rng.randrange(length) for _ in range(allowed)), reverse=True)
    done = 0
    while world.choices:
        faults: list[Choice] = []
        if when and done >= when[-1]:
            when.pop()
            faults = _sensible(world, rng)
        done += 1
        yield rng.choice(faults) if faults else _draw(world.choices, slow, patience, rng)


def _sensible(world: World, rng: random.Random) -> list[Choice]:
    """The faults to draw from, mostly those that cost no last copy: a world that has lost data ends."""
    faults = world.faults()
    if rng.random() < 0.1:
        return faults
    view = world.controller.view
    view = replace(view, dead=view.dead | world.crashed)
    return [f for f in faults if role_of(f[1]) in (INGRESS, EGRESS, CONTROLLER) or not view.needs(f[1])]


def _draw(choices: Sequence[Choice], slow: frozenset[str], patience: int, rng: random.Random) -> Choice:
    """A random choice; one at a slow node only when `patience` draws gave nothing else."""
    for _ in range(patience):
        choice = choices[int(rng.random() * len(choices))]
        where = choice[2] if choice[0] == "deliver" else choice[1]
        if where not in slow:
            return choice
    return choices[int(rng.random() * len(choices))]


def replay(
    scenario: Scenario,
    choices: Iterable[Choice],
    checkers: Iterable[Checker] | None = None,
    record: bool = False,
) -> tuple[World, Violated | None]:
    """Do `choices` as far as they are possible, and finish with the oldest choice each time."""
    world = World(scenario, checkers, record)
    try:
        for choice in choices:
            if is_possible(world, choice):
                world.do(choice)
        world.finish()
    except Violated as violation:
        return world, violation
    return world, None


def is_possible(world: World, choice: Choice) -> bool:
    """Whether `choice` may happen now."""
    return choice in world.choices or choice in world.faults()


def shrink(
    scenario: Scenario,
    choices: Sequence[Choice],
    checkers: Iterable[Checker] | None = None,
    tries_max: int = 2_000,
) -> list[Choice]:
    """The shortest sequence found that still violates something; any claim counts as the same failure."""
    kept = tuple(checkers) if checkers is not None else None
    return leave_out(list(choices), lambda tried: replay(scenario, tried, kept)[1] is not None, tries_max)


def leave_out(choices: list[Choice], fails: Callable[[list[Choice]], bool], tries_max: int) -> list[Choice]:
    """Leave out blocks of choices, half as long each round, while it still fails."""
    tries = 0
    size = max(1, len(choices) // 2)
    while True:
        start = 0
        before = len(choices)
        while start < len(choices) and tries < tries_max:
            tried = choices[:start] + choices[start + size :]
            tries += 1
            if fails(tried):
                choices = tried
            else:
                start += size
        if tries >= tries_max or (size == 1 and len(choices) == before):
            return choices
        size = max(1, size // 2)


def story(scenario: Scenario, choices: Iterable[Choice], checkers: Iterable[Checker] | None = None) -> str:
    """Return the scenario and everything that happens as text."""
    world, violation = replay(scenario, choices, checkers, record=True)
    assert world.trace is not None
    placed = [f"stage {stage + 1} on {list(copies)}" for stage, copies in enumerate(scenario.copies)]
    head = [
        f"{scenario.sites} sites, {scenario.bound_rows} rows per pool; " + "; ".join(placed),
        f"the source gives {list(scenario.batches)}",
    ]
    return "\n".join([*head, *world.trace, f"=> {violation or 'all invariants hold'}"])
