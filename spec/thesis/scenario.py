"""A scenario fixes a world except for the order of events: its shape, its input, its operator, its budget of faults.

Stage 0 is the ingress, followed by one or more stages of segments and the egress. One stage of one partition is a
dataflow pair (Thesis 3.2); more stages are partition pairs (3.4).

The operator of every segment is that of spec/dataflow.py: each partition keeps a running digest of its input values
and emits none, one or two tuples for each, whose values contain the digest. So one tuple lost, repeated or swapped
anywhere changes everything after it. `Scenario.reference` is the same in a plain loop, without copies.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

from .variants import LITERAL, WITHOUT
from .words import END, END_SN, Copy, Part, Sn, Violated

DIGEST_PRIME = 65_521
VALUES = 251  # Values are 0 to 250.
# Kinds of worlds: each has tables of its own.
DATAFLOW_PAIRS, PARTITION_PAIRS = "dataflow pairs", "partition pairs"
INDUCED_FAILURES, FLUX_LB = "induced failures", "Flux-LB"
KINDS = (DATAFLOW_PAIRS, PARTITION_PAIRS, INDUCED_FAILURES, FLUX_LB)
Tuple = tuple[Sn, int]
Route = Callable[[int, int, int], int]  # (value, stage, partitions) -> partition
Fan = Callable[[int], int]  # The number of tuples that an operator emits for one with this value.


def default_route(value: int, stage: int, partitions: int) -> int:
    """Return the partition of a value, the same as in spec/dataflow.py."""
    return (value * 7 + value // 5 + stage) % partitions


def default_fan(value: int) -> int:
    return (1, 2, 0)[value % 3]


def one_to_one(value: int) -> int:
    return 1


@dataclass(frozen=True)
class Scenario:
    """A small world. `partitions[s - 1]` counts the partitions of stage s; `crashes` and `standbys` are budgets."""

    values: tuple[int, ...]
    partitions: tuple[int, ...] = (1,)
    capacity: int = 2
    crashes: int = 1
    standbys: int = 1
    variant: frozenset[str] = frozenset()
    route: Route = default_route
    fan: Fan = one_to_one
    victims: frozenset[Copy] | None = None  # The copies that may crash; None for all.
    prelude: tuple[str, ...] = ()  # The steps before the world begins, as "node: action".
    fused: bool = False  # Rows that send nothing fire with the step that enables them: fewer states.

    def __post_init__(self) -> None:
        unknown = self.variant - LITERAL.keys() - WITHOUT.keys()
        if unknown:
            raise ValueError(
                f"a scenario names variants {sorted(unknown)}, which spec/thesis/variants.py does not have"
            )

    def __hash__(self) -> int:
        return id(self)  # One object per world: a scenario is part of every state's key.

    def __eq__(self, other: object) -> bool:
        return self is other

    @property
    def stages(self) -> int:
        return len(self.partitions)

    @property
    def is_coordinated(self) -> bool:
        """Whether the controller starts catch-ups (3.4.3.3); a dataflow pair starts its own (fig. 3.6)."""
        return self.stages > 1

    @property
    def kind(self) -> str:
        return PARTITION_PAIRS if self.is_coordinated else DATAFLOW_PAIRS

    def partitions_of(self, stage: int) -> int:
        return 1 if stage in (0, self.stages + 1) else self.partitions[stage - 1]

    @cached_property
    def pairs(self) -> tuple[tuple[int, int], ...]:
        """All partition pairs from source to destination."""
        return tuple((stage, i) for stage in range(1, self.stages + 1) for i in range(self.partitions_of(stage)))

    @cached_property
    def has_end(self) -> bool:
        """Whether the streams have end markers: an order-preserving merge of several streams needs them (3.3.1)."""
        return any(count > 1 for count in self.partitions)

    @cached_property
    def source(self) -> tuple[tuple[int, Sn, int], ...]:
        """The tuples that the ingress dequeues: (partition, sequence number, value)."""
        count = self.partitions_of(1)
        rows = [(self.route(value, 1, count), (sn,), value) for sn, value in enumerate(self.values, 1)]
        if self.has_end:
            rows += [(i, END_SN, END) for i in range(count)]
        return tuple(rows)

    @cached_property
    def reference(self) -> dict[tuple[int, int], list[Tuple]]:
        """The tuples that each partition, and the egress, must consume, by (stage, partition)."""
        found: dict[tuple[int, int], list[Tuple]] = {}
        stream = list(self.source)
        for stage in range(1, self.stages + 2):
            after: list[tuple[int, Sn, int]] = []
            for i in range(self.partitions_of(stage)):
                rows = sorted({(sn, value) for to, sn, value in stream if to == i})
                found[stage, i] = rows
                operator = Operator(stage, i)
                for sn, value in rows:
                    after += operator.process(self, sn, value, found)
            stream = after
        return found

    def digests(self, stage: int, partition: int, count: int) -> int:
        """Return the digest of an operator that has consumed the first `count` tuples."""
        digest = 1
        for _, value in self.reference[stage, partition][:count]:
            digest = fold(digest, value)
        return digest


def fold(digest: int, value: int) -> int:
    return digest if value == END else (digest * 31 + value + 7) % DIGEST_PRIME


class Operator(Part):
    """One copy of an operator partition: its digest, and the number of tuples it has consumed."""

    def __init__(self, stage: int, partition: int) -> None:
        self.stage = stage
        self.partition = partition
        self.digest = 1
        self.consumed = 0

    def process(
        self, scenario: Scenario, sn: Sn, value: int, reference: dict[tuple[int, int], list[Tuple]] | None = None
    ) -> list[tuple[int, Sn, int]]:
        """Consume one tuple; return the output as (consumer partition, sequence number, value)."""
        self.check(scenario.reference if reference is None else reference, sn, value)
        self.consumed += 1
        self.digest = fold(self.digest, value)
        is_last = self.stage > scenario.stages
        consumers = 0 if is_last else scenario.partitions_of(self.stage + 1)
        if value == END:
            return [(i, END_SN, END) for i in range(consumers)]
        if is_last:
            return []
        out = []
        for k in range(scenario.fan(value)):
            made = (self.digest + 101 * k) % VALUES
            out.append((scenario.route(made, self.stage + 1, consumers), (*sn, k), made))
        return out

    def check(self, reference: dict[tuple[int, int], list[Tuple]], sn: Sn, value: int) -> None:
        """Check that it is loss-free, dup-free and in order: the next tuple is the next of a plain run."""
        expected = reference[self.stage, self.partition]
        consumer = f"partition {self.partition} of stage {self.stage}"
        if (sn, value) in expected[: self.consumed]:
            raise Violated(f"dup-free: {consumer} gets tuple {sn} again")
        if self.consumed == len(expected) or expected[self.consumed] != (sn, value):
            due = expected[self.consumed] if self.consumed < len(expected) else "none"
            raise Violated(f"loss-free: {consumer} gets tuple {(sn, value)}, but the next is {due}")
