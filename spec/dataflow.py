"""The dataflow of a simulated world: rows, a stateful operator, and what a plain run gives.

Every stage has the same operator: each partition keeps a running digest of the values it has seen, and
emits none, one or two rows for each row, whose values contain the digest. So one row lost, repeated or
swapped anywhere changes everything after it, and is noticed at the next consumer.

The operator of an unordered stage is indifferent to the order of its input, as it must be: its digest is a sum over
the rows, and what it emits for a row depends on that row alone.

A stage may have several edges in and out: what it emits goes to the consumers of all its edges. The end of the
stream is a row to every partition. A partition forwards it when it has arrived from every producer partition, and
the frontier has passed it: then no row before it can arrive any more, also in an unordered stage.
All arithmetic is on small integers and nothing depends on the order of a hash table.

`Reference` runs the same stages one after the other in plain loops, without
machines, copies or frames. All invariants compare with it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Any, ClassVar, NamedTuple

from ..protocols.messages import Move, RowCounts, View

INGRESS, EGRESS = "ingress", "egress"
END = -1  # The value of a row that stands for the end of the stream.
DIGEST_PRIME = 65_521
VALUES = 251  # Values are 0 to 250.


class Row(NamedTuple):
    """One tuple from a producer partition to a consumer partition.

    The order of the fields is that of the merge: ties between branches of a DAG break by edge, then by partition.
    """

    sn: int
    sub: int
    edge: int
    producer: int
    consumer: int
    value: Any  # A small number; a row of the user's, where the user's operators run.


class OperatorState(NamedTuple):
    """The state of one copy of a partition: a digest of its input, and how many ends have arrived."""

    digest: int = 1
    ends: int = 0


@dataclass(frozen=True)
class Scenario:
    """Everything that fixes a world but for the order of events.

    `copies[s - 1][p]` are the sites of partition p of stage s, primary first. `batches` are the values
    the source gives at each pull; the last one includes the end of the stream. A site without copies is
    a standby. `at_once` copies of a stage are rebuilt at the same time; `moves` may be asked for at any time, and at
    any time each of the sets `slow` may be the sites that are slow. After one of the sites in `retires` was in such a
    set, it may be requested to retire its copies. If it `freezes`, slow sites do nothing until nothing else is left to
    happen. `copy_costs` are those of a copy on some sites.
    `edges` are the producing and consuming stage of each exchange; left out, the stages are a chain. The stages in
    `unordered`, the egress may be one, do not wait for the merge.

    Faults: `crashes` of sites; `restarts` of the ingress, the egress and the controller; `suspicions`: a live site is
    declared dead; `cuts` of the link between two nodes. `arrivals` are sites that appear later. With a `slow_start`
    events may also happen before the first view. With `chunks`, state is sent in pieces between other messages, which
    may overtake it. `transfer_rows_max` bounds what is kept for a site with a state transfer in flight, if that is not
    `bound_rows`; `step` bounds how far one step takes an operator, and after each one of the `paces` is asked for. If
    rows are `counted`, pools are charged by destination; with `some_uncounted`, runs that end at odd positions are not,
    as they are not while all consumers take the same partitions. Each of the `sinks` is a stage of its own after all
    others, and the egress serves all. With `lost_tails`, an ingress that is started again finds nothing in its journal
    that was not released, and a controller not the last view. With `lost_sinks`, the journal of a sink has lost the
    last position that it had acknowledged, and the sink still has its row.
    """

    sites: int
    copies: tuple[tuple[tuple[str, ...], ...], ...]
    batches: tuple[tuple[int, ...], ...]
    bound_rows: int
    crashes: int = 1
    at_once: int = 1
    moves: tuple[Move, ...] = ()
    slow: tuple[tuple[str, ...], ...] = ()
    retires: tuple[str, ...] = ()
    freezes: bool = False
    copy_costs: tuple[tuple[str, float], ...] = ()
    edges: tuple[tuple[int, int], ...] = ()
    restarts: int = 0
    suspicions: int = 0
    cuts: int = 0
    arrivals: int = 0
    slow_start: bool = False
    chunks: bool = False
    unordered: frozenset[int] = frozenset()
    transfer_rows_max: int | None = None
    step: int | None = None
    paces: tuple[int, ...] = ()
    counted: bool = False
    some_uncounted: bool = False
    sinks: int = 1
    lost_tails: bool = False
    lost_sinks: bool = False

    # Whether equal states are the same in every respect, so that what follows from one is known of the other.
    knows_states: ClassVar[bool] = True

    def first_state(self) -> OperatorState:
        """The state in which a partition begins."""
        return OperatorState()

    def operate(
        self,
        stage: int,
        partition: int,
        state: OperatorState,
        rows: Iterable[Row],
        after: int,
        upto: int,
        trail: list[OperatorState] | None = None,
    ) -> tuple[OperatorState, list[Row]]:
        """Run a partition over its rows: `operate` below, unless a dataflow has operators of its own."""
        return operate(self, stage, partition, state, rows, after, upto, trail)

    def pace(self, upto: int) -> int:
        """The positions that steps may take from now on, as a process asks for them after a step; 0: as was set."""
        return self.paces[upto % len(self.paces)] if self.paces else 0

    def counts(self, rows: Iterable[Row], upto: int) -> RowCounts:
        """How many rows of a run that ends at `upto` each consumer partition gets, if they are counted."""
        is_counted = self.counted and not (self.some_uncounted and upto % 2)
        counts = Counter((row.edge, row.consumer) for row in rows if is_counted)
        return tuple((edge, consumer, count) for (edge, consumer), count in sorted(counts.items()))

    @property
    def stages(self) -> int:
        """The number of operator stages; the ingress is stage 0, the egress has those after them."""
        return len(self.copies)

    @cached_property
    def nodes(self) -> tuple[str, ...]:
        return (INGRESS, *(site(i) for i in range(self.sites)), EGRESS)

    @cached_property
    def plan(self) -> View:
        """The view the controller starts from."""
        copies = (((INGRESS,),), *self.copies, *[((EGRESS,),)] * self.sinks)
        return View(
            number=0,
            nodes=self.nodes,
            dead=frozenset(),
            copies=copies,
            edges=self.edges,
            unordered=self.unordered,
        )

    @cached_property
    def partitions(self) -> tuple[int, ...]:
        """The number of partitions of each stage, ingress and egress included."""
        return tuple(len(partitions) for partitions in self.plan.copies)

    @cached_property
    def producers(self) -> tuple[int, ...]:
        """How many producer partitions feed each stage, over all its edges."""
        edges = self.plan.edges
        return tuple(
            sum(self.partitions[edges[edge][0]] for edge in self.plan.inputs(stage))
            for stage in range(len(self.partitions))
        )

    @cached_property
    def outputs(self) -> tuple[tuple[tuple[int, int, int], ...], ...]:
        """For each stage its edges out: the edge, the stage it leads to, and the partitions there."""
        edges = self.plan.edges
        return tuple(
            tuple((edge, edges[edge][1], self.partitions[edges[edge][1]]) for edge in self.plan.outputs(stage))
            for stage in range(len(self.partitions))
        )

    @cached_property
    def emitted(self) -> dict[tuple[int, int, Row], list[Row]]:
        """The rows emitted for each row in unordered stages, as far as they are known."""
        return {}

    @cached_property
    def reference(self) -> Reference:
        return Reference(self)

    @cached_property
    def last_sn(self) -> int:
        """The number of the end of the stream."""
        return sum(map(len, self.batches)) + 1

    @cached_property
    def source(self) -> tuple[tuple[Row, ...], ...]:
        """The rows that the ingress numbers, one body for each pull."""
        bodies, sn = [], 0
        for i, values in enumerate(self.batches):
            body: list[Row] = []
            for value in values:
                sn += 1
                body.extend(self.sent(0, 0, sn, 0, value))
            if i == len(self.batches) - 1:
                sn += 1
                body.extend(self.ended(0, 0, sn))
            bodies.append(tuple(body))
        return tuple(bodies)

    def sent(self, stage: int, partition: int, sn: int, sub: int, value: int) -> list[Row]:
        """The rows for a value that a partition of `stage` emits: one for each edge."""
        return [
            Row(sn, sub, edge, partition, route(value, following, partitions), value)
            for edge, following, partitions in self.outputs[stage]
        ]

    def ended(self, stage: int, partition: int, sn: int) -> Iterator[Row]:
        """The rows for the end of a partition of `stage`: one for each partition that it feeds."""
        for edge, _, partitions in self.outputs[stage]:
            for consumer in range(partitions):
                yield Row(sn, 0, edge, partition, consumer, END)

    def held(self, node: str, stage: int) -> tuple[int, ...]:
        """The partitions of `stage` of which `node` has a copy."""
        return tuple(p for p, nodes in enumerate(self.plan.copies[stage]) if node in nodes)


def site(index: int) -> str:
    """The name of the site with this index, counted from 0."""
    return f"site-{index + 1}"


def declustered(sites: int, partitions: Iterable[int], degree: int = 2) -> tuple[tuple[tuple[str, ...], ...], ...]:
    """Chained declustering: copy 0 of partition i on site i mod N, each further copy on the next site.

    >>> declustered(2, [1])
    ((('site-1', 'site-2'),),)
    """
    assert degree <= sites, f"{degree} copies of a partition need as many sites, not {sites}"
    return tuple(
        tuple(tuple(site((p + copy) % sites) for copy in range(degree)) for p in range(count)) for count in partitions
    )


def route(value: int, stage: int, partitions: int) -> int:
    """The partition of `stage` that rows with this value go to."""
    return (value * 7 + value // 5 + stage) % partitions


def operate(
    scenario: Scenario,
    stage: int,
    partition: int,
    state: OperatorState,
    rows: Iterable[Row],
    after: int,
    upto: int,
    trail: list[OperatorState] | None = None,
) -> tuple[OperatorState, list[Row]]:
    """Run one partition of the operator of `stage` over `rows`; return the new state and the output.

    The frontier advances from `after` to `upto` with them; in an unordered stage there may be rows beyond it. The state
    after each row is appended to the `trail`, if there is one.
    """
    digest, ends = state
    is_ordered = stage not in scenario.unordered
    out: list[Row] = []
    for row in rows:
        if row.value == END:
            ends += 1
        elif is_ordered:
            digest = (digest * 31 + row.value + 7) % DIGEST_PRIME
            out += _emitted(scenario, stage, partition, row, digest)
        else:
            digest = (digest + _weight(row)) % DIGEST_PRIME
            known = scenario.emitted.get((stage, partition, row))
            if known is None:  # Every copy emits the same for a row, in whatever state it is.
                known = _emitted(scenario, stage, partition, row, _weight(row))
                scenario.emitted[stage, partition, row] = known
            out += known
        if trail is not None:
            trail.append(OperatorState(digest, ends))
    has_ended = state.ends == scenario.producers[stage] and after >= scenario.last_sn
    if ends == scenario.producers[stage] and upto >= scenario.last_sn and not has_ended:
        out.extend(scenario.ended(stage, partition, scenario.last_sn))
    return OperatorState(digest, ends), out


def _emitted(scenario: Scenario, stage: int, partition: int, row: Row, seed: int) -> list[Row]:
    """The rows emitted for a row: none, one or two for each edge."""
    emits = (1, 2, 0)[row.value % 3]
    # One binary digit for each stage: (sn, sub) orders all descendants of one input.
    out = scenario.sent(stage, partition, row.sn, 2 * row.sub, seed % VALUES) if emits else []
    return out if emits < 2 else out + scenario.sent(stage, partition, row.sn, 2 * row.sub + 1, (seed + 101) % VALUES)


def _weight(row: Row) -> int:
    """A number for a row that no other row of a small world has, most likely."""
    value: int = row.value
    return (value + 7) * 31 + row.sn * 1_009 + row.sub * 4_001 + row.edge * 16_001 + row.producer * 32_003


class Stretch(NamedTuple):
    """What a plain run does with one partition between two positions."""

    rows: list[Row]
    before: OperatorState
    after: OperatorState
    output: list[Row]


class Reference:
    """What every partition and the egress must consume: the same operators in a plain run."""

    def __init__(self, scenario: Scenario) -> None:
        # By stage and partition: input, its numbers, the states before and after each row, output, its numbers.
        self._whole: dict[tuple[int, int], tuple[list[Row], list[int], list[OperatorState], list[Row], list[int]]] = {}
        sent: dict[tuple[int, int], list[Row]] = {}  # By edge and consumer.
        for row in chain.from_iterable(scenario.source):
            sent.setdefault((row.edge, row.consumer), []).append(row)
        self.last_sn = scenario.source[-1][-1].sn
        for stage in range(1, len(scenario.partitions)):
            edges = scenario.plan.inputs(stage)
            for partition in range(scenario.partitions[stage]):
                rows = sorted(row for edge in edges for row in sent.get((edge, partition), ()))
                states = [scenario.first_state()]
                _, output = scenario.operate(stage, partition, states[0], rows, 0, self.last_sn, states)
                for row in output:
                    sent.setdefault((row.edge, row.consumer), []).append(row)
                numbers, output_numbers = [row.sn for row in rows], [row.sn for row in output]
                self._whole[stage, partition] = (rows, numbers, states, output, output_numbers)

    def stretch(self, stage: int, partition: int, after: int, upto: int) -> Stretch:
        """What a partition does with its input with sequence numbers in (after, upto]."""
        rows, numbers, states, output, output_numbers = self._whole[stage, partition]
        a, b = bisect_right(numbers, after), bisect_right(numbers, upto)
        emitted = output[bisect_right(output_numbers, after) : bisect_right(output_numbers, upto)]
        return Stretch(rows[a:b], states[a], states[b], emitted)

    def rows(self, stage: int, partition: int, after: int, upto: int) -> list[Row]:
        """The input of a partition with sequence numbers in (after, upto], in order."""
        return self.stretch(stage, partition, after, upto).rows

    def state(self, stage: int, partition: int, upto: int) -> OperatorState:
        """The state of a partition that has consumed everything up to `upto`."""
        return self.stretch(stage, partition, upto, upto).after
