"""Cases for both the reference models and the production machines, drawn from a seed.

A case is an input, one to three stages of one to three partition pairs, and which copies crash, when. The operator, its
routing and its fan-out are those of spec/dataflow.py.

A model's sequence number is a compound key, (sn, k1, k2, ...); spec/dataflow.py has (sn, sub), with
a binary digit for each k. `names` translates them.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

from .dataflow import END, VALUES, route, site
from .thesis import Copy
from .thesis.scenario import Operator, Scenario, default_fan
from .thesis.words import Sn

CasePair = tuple[int, int]  # Stage, partition; the egress is one after the last stage.

STAGES, PARTITIONS = (1, 1, 2, 2, 2, 3), (1, 1, 1, 2, 2, 3)  # Drawn from: most worlds are small.
TUPLES_MAX = 8
ROOMY = 1_000_000
CRASHES, OTHERS = (0, 1, 1, 2, 2, 3), (0, 0, 0, 1, 2)  # In one pair, and in other pairs.
LOST_MAX = 6  # Copies: the models have names for as many standbys.
GAPS = (1, 20, 60)  # Steps between two crashes, at most: so close that a catch-up is under way.
STEPS_IDLE, STEPS_PER_TUPLE = 10, 6  # About as many as a model makes at least, and per tuple and pair.


@dataclass(frozen=True)
class Crash:
    """The copies of one site crash, after this many steps of the model, or as far into a run of the machines."""

    copies: tuple[Copy, ...]
    after_steps: int


@dataclass(frozen=True)
class Case:
    """Everything that both sides are given; crashes are in the order in which they happen."""

    seed: int
    values: tuple[int, ...]
    partitions: tuple[int, ...]
    apart: bool
    crashes: tuple[Crash, ...]
    standby_after: int  # Steps until a model's standby appears.
    capacity: int  # Tuples in a model's buffer.
    bound_rows: int  # Rows in a machine's pool.
    batch: int  # Tuples that the machines' source gives at a time.
    at_once: int

    @property
    def pairs(self) -> tuple[CasePair, ...]:
        return tuple((stage, i) for stage, count in enumerate(self.partitions, start=1) for i in range(count))

    @property
    def steps(self) -> int:
        """About as many as the model makes without crashes."""
        return STEPS_IDLE + STEPS_PER_TUPLE * len(self.values) * len(self.pairs)

    @property
    def egress(self) -> CasePair:
        return len(self.partitions) + 1, 0

    def site_of(self, copy: Copy) -> str:
        """Where one of the first two copies of a pair is."""
        nth = self.pairs.index(copy.pair) if self.apart else copy.partition
        return site(2 * nth + copy.number)

    @property
    def copies_lost(self) -> int:
        return sum(len(crash.copies) for crash in self.crashes)

    @property
    def sites(self) -> int:
        """How many sites hold copies at the beginning."""
        return 2 * (len(self.pairs) if self.apart else max(self.partitions))


def case_of(seed: int) -> Case:
    """Draw the case of a seed."""
    rng = random.Random(seed)
    partitions = tuple(rng.choice(PARTITIONS) for _ in range(rng.choice(STAGES)))
    values = tuple(rng.randrange(VALUES) for _ in range(rng.randint(0, TUPLES_MAX)))
    # With a merge of several producers, bounded buffers of the thesis's kind can deadlock without any fault.
    is_tight = max(partitions) == 1 and rng.random() < 0.5
    case = Case(
        seed=seed,
        values=values,
        partitions=partitions,
        apart=rng.random() < 0.75,
        crashes=(),
        standby_after=rng.choice((0, 0, rng.randrange(40))),
        capacity=rng.randint(1, 2) if is_tight else ROOMY,
        bound_rows=rng.randint(1, 3),
        batch=rng.choice((1, 1, 2, 3)),
        at_once=rng.choice((1, 1, 2)),
    )
    return replace(case, crashes=_crashes(rng, case))


def _crashes(rng: random.Random, case: Case) -> tuple[Crash, ...]:
    """A chain of crashes in one pair, its standbys included, and then some in others; times never decrease."""
    first, *others = rng.sample(case.pairs, len(case.pairs))
    live, victims = [0, 1], []
    for nth in range(rng.choice(CRASHES)):
        number = rng.choice((*live, live[-1]))
        live = [n for n in live if n != number] + [2 + nth]
        victims.append(Copy(*first, number))
    if victims:
        victims += [Copy(*other, rng.randint(0, 1)) for other in others[: rng.choice(OTHERS)]]
    crashes: list[Crash] = []
    due, lost = rng.randrange(case.steps), 0
    for copies in [(victim,) for victim in victims] if case.apart else _whole_sites(case.pairs, victims):
        lost += len(copies)
        if lost > LOST_MAX:
            break
        crashes.append(Crash(copies, due))
        due += rng.randrange(rng.choice((*GAPS, case.steps)))
    return tuple(crashes)


def _whole_sites(pairs: tuple[CasePair, ...], victims: list[Copy]) -> list[tuple[Copy, ...]]:
    """For each victim all copies on its site, each site once. Standbys are left out: one site may have several."""
    sites = dict.fromkeys((victim.partition, victim.number) for victim in victims if victim.number < 2)
    return [tuple(Copy(*pair, number) for pair in pairs if pair[1] == i) for i, number in sites]


# --- the numbers of tuples ------------------------------------------------------------------------------------------


def model_of(values: tuple[int, ...], partitions: tuple[int, ...]) -> Scenario:
    return Scenario(values=values, partitions=partitions, route=route, fan=default_fan)


def names(model: Scenario) -> dict[tuple[int, Sn], tuple[int, int, int]]:
    """(sn, sub, producer) of every tuple of a plain run, by stage and compound key."""
    found = {(1, sn): (sn[0], 0, 0) for _, sn, _ in model.source}
    for (stage, i), rows in model.reference.items():
        operator = Operator(stage, i)
        for sn, value in rows:
            children = [key for _, key, made in operator.process(model, sn, value) if made != END]
            for k, key in enumerate(children):
                found[stage + 1, key] = (sn[0], 2 * found[stage, sn][1] + k, i)
    return found
