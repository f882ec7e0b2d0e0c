"""A small world of Flux-LB: a producer-consumer stage, its input, and the moves that the controller orders.

There is one FL-Prod for each producer and one FL-Cons for each instance of the consumer operator. Partitions are
mini-partitions: many of them belong to one instance (Thesis 4.4.1). Nothing fails: Flux-LB is not concerned with
failures.

FL-Cons merges its input streams as tuples arrive. With `ordered` it merges them in the order of the ingress
(3.3.1), partition by partition, as FH-Cons does: the thesis does not combine the two, the machines do.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from .fl_words import MiniState, PartitionMove, Unprocessed
from .scenario import DIGEST_PRIME, FLUX_LB, Fan, Operator, Route, Scenario, Tuple, default_route, fold, one_to_one
from .variants import LITERAL, WITHOUT
from .words import END, Sn, Violated


@dataclass(frozen=True, eq=False)
class LbScenario:
    """`rounds` are the moves that the policy gives in each round; with `is_stuck` no transfer of state ends."""

    values: tuple[int, ...]
    rounds: tuple[tuple[PartitionMove, ...], ...] = ()
    producers: int = 1
    partitions: int = 2
    instances: int = 2
    capacity: int = 2  # Tuples in the transient skew buffer of an FL-Prod.
    connection: int = 1  # Tuples on the connection of an FL-Prod to an FL-Cons.
    ordered: bool = False
    is_stuck: bool = False
    variant: frozenset[str] = frozenset()
    route: Route = default_route
    fan: Fan = one_to_one
    fused: bool = False  # As in `Scenario`.

    kind = FLUX_LB

    def __post_init__(self) -> None:
        unknown = self.variant - LITERAL.keys() - WITHOUT.keys()
        if unknown:
            raise ValueError(
                f"a scenario names variants {sorted(unknown)}, which spec/thesis/variants.py does not have"
            )

    @cached_property
    def flow(self) -> Scenario:
        """The dataflow around the stage: its first stage are the producer operators."""
        return Scenario(
            values=self.values, partitions=(self.producers, self.partitions), route=self.route, fan=self.fan
        )

    @cached_property
    def sources(self) -> tuple[tuple[tuple[int, Sn, int], ...], ...]:
        """The tuples that each FL-Prod dequeues: (partition, sn, value). A merge in order needs the ends."""
        found = []
        for i in range(self.producers):
            operator, made = Operator(1, i), list[tuple[int, Sn, int]]()
            for sn, value in self.flow.reference[1, i]:
                made += operator.process(self.flow, sn, value)
            found.append(tuple(row for row in made if self.ordered or row[2] != END))
        return tuple(found)

    @cached_property
    def expected(self) -> dict[int, tuple[Tuple, ...]]:
        """The tuples that each partition must process, in the order of the ingress."""
        return {j: tuple(row for row in self.flow.reference[2, j] if row[1] != END) for j in range(self.partitions)}

    @cached_property
    def expected_from(self) -> dict[tuple[int, int], tuple[Tuple, ...]]:
        """The same by producer and partition, as they are produced."""
        return {
            (i, j): tuple((sn, value) for to, sn, value in source if to == j and value != END)
            for i, source in enumerate(self.sources)
            for j in range(self.partitions)
        }

    @cached_property
    def first_state(self) -> MiniState:
        return MiniState((0,) * self.producers)

    def instance_of(self, partition: int) -> int:
        """Return the instance that has a partition at the beginning."""
        return partition % self.instances

    def process(self, state: MiniState, t: Unprocessed) -> MiniState:
        """Return the state of a partition after a tuple; check that it is the next one."""
        expected = self.expected_from[t.producer, t.partition]
        taken = state.taken[t.producer]
        whose = f"partition {t.partition}"
        if (t.sn, t.value) in expected[:taken]:
            raise Violated(f"dup-free: {whose} gets tuple {t.sn} of producer {t.producer} again")
        if taken == len(expected) or expected[taken] != (t.sn, t.value):
            due = expected[taken] if taken < len(expected) else "none"
            raise Violated(f"loss-free: {whose} gets tuple {(t.sn, t.value)}, but the next is {due}")
        if self.ordered and self.expected[t.partition][sum(state.taken)] != (t.sn, t.value):
            raise Violated(f"in order: {whose} gets tuple {t.sn} too early")
        counts = list(state.taken)
        counts[t.producer] += 1
        return MiniState(tuple(counts), self.digest(state.digest, t.value))

    def digest(self, digest: int, value: int) -> int:
        """Order counts only where it is fixed."""
        return fold(digest, value) if self.ordered else (digest + value * value + 7) % DIGEST_PRIME

    def last_state(self, partition: int) -> MiniState:
        """Return the state of a partition that has processed all of its input."""
        digest = self.first_state.digest
        for value in self._values(partition):
            digest = self.digest(digest, value)
        return MiniState(tuple(len(self.expected_from[i, partition]) for i in range(self.producers)), digest)

    def _values(self, partition: int) -> Iterable[int]:
        if self.ordered:
            return (value for _, value in self.expected[partition])
        return (value for i in range(self.producers) for _, value in self.expected_from[i, partition])


AnyScenario = Scenario | LbScenario
