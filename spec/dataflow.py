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

The code of stages may change at a position. An edition of it makes other digests, and so other rows, and it migrates
the state as the first act of the first step after the position.

`Reference` runs the same stages one after the other in plain loops, without
machines, copies or frames, and changes their code after the row at which an edition begins. All invariants compare
with it.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, pairwise
from typing import Any, ClassVar, NamedTuple

from ..protocols.change_messages import Reconfigure
from ..protocols.messages import Edition, Move, RowCounts, View

INGRESS, EGRESS = "ingress", "egress"
END = -1  # The value of a row that stands for the end of the stream.
DIGEST_PRIME = 65_521
WANTED_MAX = 6  # Moves of a restless world while attempts at a change are made, which succeed before.
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
    """The state of one copy of a partition: a digest of its input, how many ends have arrived, and its edition."""

    digest: int = 1
    ends: int = 0
    edition: int = 0


@dataclass(frozen=True)
class Scenario:
    """Everything that fixes a world but for the order of events.

    `copies[s - 1][p]` are the sites of partition p of stage s, primary first. `batches` are the values
    the source gives at each pull; the last one includes the end of the stream. A site without copies is
    a standby. `at_once` copies of a stage are rebuilt at the same time; `moves` may be asked for at any time, if it is
    `restless` again and again while a change is wanted, and at any time each of the sets `slow` may be the sites that
    are slow. After one of the sites in `retires` was in such a
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

    The `changes` of code are requested at any time, in their order, or `twice`, and each of the numbers in `aborts` may
    be aborted at any time after that. The nodes in `cannot` refuse them, and those in `silent` do not answer whether
    they can make them. Positions are proposed `lead` steps after the furthest.
    Copies may go back to the first of the `checkpoints`, and to the next one only at any time after all of them have
    reached it. In each of the `eras` all processes are lost, and the dataflow begins again from the checkpoint.
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
    changes: tuple[Reconfigure, ...] = ()
    aborts: tuple[int, ...] = ()
    cannot: tuple[str, ...] = ()
    silent: tuple[str, ...] = ()
    twice: bool = False
    restless: bool = False
    checkpoints: tuple[int, ...] = ()
    eras: int = 0
    lead: int = 1

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

    def migrate(self, state: OperatorState, number: int) -> OperatorState:
        """Turn a state of the edition before into one of edition `number`."""
        return state._replace(digest=(state.digest * 17 + number) % DIGEST_PRIME, edition=number)

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
    def emitted(self) -> dict[tuple[int, int, int, Row], list[Row]]:
        """The rows emitted for each row in unordered stages, as far as they are known."""
        return {}

    @cached_property
    def reference(self) -> Reference:
        return Reference(self)

    @cached_property
    def _references(self) -> dict[tuple[tuple[int, frozenset[int], int], ...], Reference]:
        return {}

    def reference_of(self, editions: Iterable[Edition]) -> Reference:
        """What a plain run with these editions gives."""
        key = tuple((edition.number, edition.stages, edition.position) for edition in editions)
        if not key:
            return self.reference
        if key not in self._references:
            self._references[key] = Reference(self, editions)
        return self._references[key]

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
    digest, ends, edition = state
    is_ordered = stage not in scenario.unordered
    out: list[Row] = []
    for row in rows:
        if row.value == END:
            ends += 1
        elif is_ordered:
            digest = (digest * 31 + row.value + 7 + 1_013 * edition) % DIGEST_PRIME
            out += _emitted(scenario, stage, partition, row, digest)
        else:
            digest = (digest + _weight(row)) % DIGEST_PRIME
            known = scenario.emitted.get((stage, partition, edition, row))
            if known is None:  # Every copy emits the same for a row, in whatever state it is.
                known = _emitted(scenario, stage, partition, row, _weight(row) + 1_013 * edition)
                scenario.emitted[stage, partition, edition, row] = known
            out += known
        if trail is not None:
            trail.append(OperatorState(digest, ends, edition))
    has_ended = state.ends == scenario.producers[stage] and after >= scenario.last_sn
    if ends == scenario.producers[stage] and upto >= scenario.last_sn and not has_ended:
        out.extend(scenario.ended(stage, partition, scenario.last_sn))
    return OperatorState(digest, ends, edition), out


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


class CodeSpan(NamedTuple):
    """What a plain run does with one partition between two changes of its code."""

    begin: int  # The position of the first of them,
    first: int  # and how many rows are up to it.
    states: list[OperatorState]  # Before and after each row.


class Whole(NamedTuple):
    """What a plain run does with one partition."""

    rows: list[Row]
    numbers: list[int]
    spans: list[CodeSpan]
    output: list[Row]
    output_numbers: list[int]


class Reference:
    """What every partition and the egress must consume: the same operators in a plain run, with these editions."""

    def __init__(self, scenario: Scenario, editions: Iterable[Edition] = ()) -> None:
        self._whole: dict[tuple[int, int], Whole] = {}  # By stage and partition.
        every = sorted(editions, key=lambda edition: (edition.position, edition.number))
        sent: dict[tuple[int, int], list[Row]] = {}  # By edge and consumer.
        for row in chain.from_iterable(scenario.source):
            sent.setdefault((row.edge, row.consumer), []).append(row)
        self.last_sn = scenario.source[-1][-1].sn
        for stage in range(1, len(scenario.partitions)):
            edges = scenario.plan.inputs(stage)
            # By position: the editions that begin there. One may begin at 0, where the state is still the first.
            migrations: dict[int, list[int]] = {-1: []}
            for edition in every:
                if stage in edition.stages and edition.position < self.last_sn:
                    migrations.setdefault(edition.position, []).append(edition.number)
            for partition in range(scenario.partitions[stage]):
                rows = sorted(row for edge in edges for row in sent.get((edge, partition), ()))
                whole = self._run(scenario, stage, partition, rows, migrations)
                for row in whole.output:
                    sent.setdefault((row.edge, row.consumer), []).append(row)
                self._whole[stage, partition] = whole

    def _run(
        self, scenario: Scenario, stage: int, partition: int, rows: list[Row], migrations: dict[int, list[int]]
    ) -> Whole:
        numbers = [row.sn for row in rows]
        state, output, spans = scenario.first_state(), list[Row](), list[CodeSpan]()
        for begin, end in pairwise([*migrations, self.last_sn]):
            for number in migrations[begin]:
                state = scenario.migrate(state, number)
            first, last = bisect_right(numbers, begin), bisect_right(numbers, end)
            spans.append(CodeSpan(begin, first, [state]))
            state, made = scenario.operate(stage, partition, state, rows[first:last], begin, end, spans[-1].states)
            output += made
        return Whole(rows, numbers, spans, output, [row.sn for row in output])

    def stretch(self, stage: int, partition: int, after: int, upto: int) -> Stretch:
        """What a partition does with its input with sequence numbers in (after, upto]."""
        whole = self._whole[stage, partition]
        numbers = whole.output_numbers
        emitted = whole.output[bisect_right(numbers, after) : bisect_right(numbers, upto)]
        rows = whole.rows[bisect_right(whole.numbers, after) : bisect_right(whole.numbers, upto)]
        return Stretch(rows, _state_at(whole, after), _state_at(whole, upto), emitted)

    def rows(self, stage: int, partition: int, after: int, upto: int) -> list[Row]:
        """The input of a partition with sequence numbers in (after, upto], in order."""
        return self.stretch(stage, partition, after, upto).rows

    def state(self, stage: int, partition: int, upto: int) -> OperatorState:
        """The state of a partition that has consumed everything up to `upto`."""
        return self.stretch(stage, partition, upto, upto).after


def _state_at(whole: Whole, position: int) -> OperatorState:
    """The state at `position`. Where the code changes it is that of the edition before."""
    span = whole.spans[max(0, bisect_left(whole.spans, position, key=_begin) - 1)]
    return span.states[bisect_right(whole.numbers, position) - span.first]


def _begin(span: CodeSpan) -> int:
    return span.begin
