"""A user's dataflow as the dataflow of a simulated world of `flux.spec`.

Rows and operators are the user's. Operators run as they do on a site, and between any two steps their state is bytes,
as on the wire. A punctuation is a row to every partition, as the end of the stream is in all simulated worlds. A
partition acts on it once, when its frontier passes it, and forwards it after the output that it caused. A stage that is
not ordered may get it long before.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import zip_longest
from types import GeneratorType
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from ..exchange.sides import widen
from ..model.batch import Batch
from ..model.punctuation import Punctuation
from ..model.subseq import Subseqs, at_level, padded, words_of
from ..plan import Plan
from ..plan.plan import INPUT
from ..site.steps import StepOutputs, Steps
from ..spec.dataflow import END, OperatorState, Row, Scenario
from ..wire.state_codec import decode, encode
from .source_prefix import PrefixPull

__all__ = ["Cells", "ConsumedRows", "FlowScenario", "KeptOutput", "first_difference", "plain_outputs"]

FlowPosition = tuple[int, int, int, int, int]  # Of a row: all but its value.

_WORD = 2**64 - 1
_NO_PLAN = Plan(name="none", segments=(), sites=1, standby=0, pool_rows=1)


class Cells:
    """A row of the user's, as a value: equal to another with the same text; the `nth` of those with one position.

    Rows of several partitions that one punctuation caused may have the same position, and so may their outputs. A merge
    keeps them in the order in which they were emitted. After a stage without order that means nothing: there, rows with
    the same position are sorted by their text.
    """

    __slots__ = ("arrow", "nth", "text")

    def __init__(self, arrow: pa.RecordBatch, text: str, nth: int = 0) -> None:
        self.arrow = arrow  # Of one row.
        self.text = text
        self.nth = nth

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Cells) and (self.nth, self.text) == (other.nth, other.text)

    def __lt__(self, other: object) -> bool:
        # The output of a punctuation, or of the end of the stream, has the same number and sorts before it.
        return (self.nth, self.text) < (other.nth, other.text) if isinstance(other, Cells) else True

    def __gt__(self, other: object) -> bool:
        return (self.nth, self.text) > (other.nth, other.text) if isinstance(other, Cells) else False

    def __hash__(self) -> int:
        return hash(self.text)

    def __repr__(self) -> str:
        return self.text


class KeptOutput(OperatorState):
    """The states of a copy's operators as bytes. Equal to another that has consumed as many rows.

    The bytes are not compared, because equal states may be encoded in different ways, such as those of sets. A real
    difference between them shows in the output.
    """

    packed: tuple[bytes, ...] | None = ()  # None: only the number of consumed rows is known.
    waiting: tuple[Punctuation, ...] = ()  # Those that the frontier has not passed yet.

    @classmethod
    def of(
        cls, seen: int, ends: int, packed: tuple[bytes, ...] | None, waiting: tuple[Punctuation, ...] = ()
    ) -> KeptOutput:
        kept = cls(seen, ends)
        kept.packed, kept.waiting = packed, waiting
        return kept


@dataclass(frozen=True)
class ConsumedRows:
    """The rows in (after..upto] that a partition has consumed."""

    stage: int
    partition: int
    after: int
    upto: int
    rows: list[Row]


@dataclass(frozen=True)
class FlowScenario(Scenario):
    """A scenario whose rows and operators are those of a plan."""

    plan_of_flow: Plan = _NO_PLAN
    pulls: tuple[PrefixPull, ...] = ()

    knows_states: ClassVar[bool] = False

    __hash__ = object.__hash__

    @cached_property
    def source(self) -> tuple[tuple[Row, ...], ...]:
        """The input that the ingress numbers: one body for each pull, without the empty ones."""
        first = Steps(self.plan_of_flow, 0)
        first.open([0])
        bodies = [tuple(sorted(self._numbered_rows(first, pull))) for pull in self.pulls]
        return (*filter(None, bodies), tuple(self.ended(0, 0, self.last_sn)))

    def _numbered_rows(self, first: Steps, pull: PrefixPull) -> Iterator[Row]:
        if len(pull.rows):
            batch = Batch(pull.rows, pull.sn, None, np.zeros(len(pull.rows), np.uint16))
            yield from self._routed_rows(0, 0, first.process(batch, place=INPUT - pull.source), Counter())
        for mark in pull.punctuations:
            yield from self._forwarded_rows(0, 0, mark)

    @cached_property
    def inferred_outputs(self) -> dict[tuple[int, int], Any]:
        """Inferred schemas of undeclared outputs, by stage and step; all runs start from those of the plain run."""
        return {}

    @cached_property
    def consumed(self) -> dict[str, ConsumedRows]:
        """The rows that were consumed last, under "last"."""
        return {}

    def first_state(self) -> OperatorState:
        return KeptOutput.of(0, 0, ())

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
        """Run the operators of a segment for one partition, from its state to the next."""
        assert isinstance(state, KeptOutput)
        given = list(rows)
        self.consumed["last"] = ConsumedRows(stage, partition, after, upto, given)
        seen, ends = state.digest, state.ends
        for row in given:
            ends += row.value == END
            seen += 1
            if trail is not None:
                trail.append(KeptOutput.of(seen, ends, None))
        if stage > self.stages or state.packed is None:
            return KeptOutput.of(seen, ends, None), []
        here = _FlowSegment(self, stage, partition, state.packed)
        punctuations = {mark.sn: mark for mark in (*state.waiting, *_marks(given))}
        due = [punctuations[sn] for sn in sorted(punctuations) if after < sn <= upto]
        if ends == self.producers[stage] and after < self.last_sn <= upto:
            due.append(Punctuation(self.last_sn, "end"))
        out = list(here.run([row for row in given if isinstance(row.value, Cells)], due))
        waiting = tuple(punctuations[sn] for sn in sorted(punctuations) if sn > upto)
        return KeptOutput.of(seen, ends, here.close(), waiting), sorted(out)

    def _routed_rows(self, stage: int, partition: int, taps: StepOutputs, ties: Counter[FlowPosition]) -> Iterator[Row]:
        """Yield a stage's output as rows for the consumers of all its edges; `ties` counts those with one position."""
        for number in self.plan_of_flow.outputs(stage):
            edge = self.plan_of_flow.edges[number]
            output = taps.get(edge.tap)
            if output is None:
                continue
            output, consumers = edge.route.distribute(output)
            sub = self._numbers(output.sub, len(output))
            for i, text in enumerate(_texts(output.arrow)):
                position = (int(output.sn[i]), sub[i], number, partition, int(consumers[i]))
                yield Row(*position, Cells(output.arrow.slice(i, 1), text, ties[position]))
                ties[position] += stage not in self.unordered  # There, the order of emission means nothing.

    @cached_property
    def _words(self) -> int:
        """The number of words in the longest `sub` that the flow can have."""
        plan = self.plan_of_flow
        steps = [step for segment in (plan.first, *plan.segments) for step in segment.steps]
        return max((len(words_of(at_level(None, np.zeros(1, np.int64), step.level))) for step in steps), default=1)

    def _numbers(self, sub: Subseqs | None, rows: int) -> list[int]:
        """Return each row's `sub` as one number; the numbers have the same order."""
        found = [0] * rows
        for word in words_of(padded(sub, rows, self._words)):
            found = [number << 64 | int(own) for number, own in zip(found, word, strict=True)]
        return found

    def sub_of(self, numbers: Sequence[int]) -> Subseqs | None:
        """Return the `sub` of these numbers: the inverse of `_numbers`."""
        if not any(numbers):
            return None
        shifts = range(64 * (self._words - 1), -1, -64)
        found = np.array([[number >> shift & _WORD for shift in shifts] for number in numbers], np.uint64)
        return found if self._words > 1 else found[:, 0]

    def _forwarded_rows(self, stage: int, partition: int, mark: Punctuation) -> Iterator[Row]:
        """Yield a punctuation for each partition that a stage feeds."""
        if mark.kind == "end":
            yield from self.ended(stage, partition, mark.sn)
            return
        for edge, _, partitions in self.outputs[stage]:
            for consumer in range(partitions):
                yield Row(mark.sn, 0, edge, partition, consumer, mark)


class _FlowSegment:
    """The operators of one partition of a stage, restored from their states, for one step."""

    def __init__(self, scenario: FlowScenario, stage: int, partition: int, packed: tuple[bytes, ...]) -> None:
        self._scenario, self._stage, self._partition = scenario, stage, partition
        self._plan = scenario.plan_of_flow
        self._ties: Counter[FlowPosition] = Counter()  # All rows of one sequence number are in one step.
        self._steps = Steps(self._plan, stage)
        self._steps.open([] if packed else [partition])
        for number, step in enumerate(self._steps):
            if (stage, number) in scenario.inferred_outputs:
                step.learn(scenario.inferred_outputs[stage, number])
        if packed:
            for step, pieces in zip(self._steps, packed, strict=True):
                step.init_trans(partition)
                for piece in decode(pieces, words=step.words):
                    step.install_partition_state(partition, piece)
                step.end_trans(partition)

    def run(self, rows: list[Row], punctuations: Iterable[Punctuation]) -> Iterator[Row]:
        """Yield the output of rows, which are in order, and of the punctuations among them, as a site's worker does."""
        punctuations = list(punctuations)
        own = [replace(mark, partitions=frozenset({self._partition})) for mark in punctuations]
        yield from self._routed_rows(self._steps.process(self._batch(rows) if rows else None, own))
        for mark in punctuations:
            yield from self._scenario._forwarded_rows(self._stage, self._partition, mark)

    def _routed_rows(self, taps: StepOutputs) -> Iterator[Row]:
        return self._scenario._routed_rows(self._stage, self._partition, taps, self._ties)

    def _batch(self, rows: list[Row]) -> Batch:
        sides = self._plan.segment(self._stage).sides
        parts = [row.value.arrow for row in rows]
        if sides:
            edges = self._plan.edges
            parts = [widen(part, edges[row.edge].side, sides) for part, row in zip(parts, rows, strict=True)]
        sub = self._scenario.sub_of([row.sub for row in rows])
        sn = np.array([row.sn for row in rows], np.int64)
        where = np.full(len(rows), self._partition, np.uint16)
        return Batch(pa.concat_batches(parts), sn, sub, where)

    def close(self) -> tuple[bytes, ...]:
        """Close the operators; return their states, as they are sent over the wire."""
        partition, packed = self._partition, []
        for number, step in enumerate(self._steps):
            if step.step.output is None:
                self._scenario.inferred_outputs[self._stage, number] = step.output
            step.init_trans(partition)
            state = step.get_partition_state(partition)
            pieces = list(state) if isinstance(state, GeneratorType) else [state]
            packed.append(encode(pieces, f"step {step.step.name!r}, partition {partition}", words=step.words))
            step.end_trans(partition)
            step.close()
        return tuple(packed)


def plain_outputs(scenario: FlowScenario) -> list[list[Row]]:
    """Return the rows of each sink in the plain run, in order."""
    given = [scenario.reference.rows(stage, 0, 0, scenario.last_sn) for stage in scenario.plan_of_flow.sink_stages]
    return [[row for row in rows if isinstance(row.value, Cells)] for rows in given]


def first_difference(scenario: FlowScenario) -> tuple[ConsumedRows, Row | None, Row | None] | None:
    """Compare the rows consumed last with the plain run; return the first pair that differs, or None."""
    last = scenario.consumed.get("last")
    if last is None:
        return None
    expected = scenario.reference.rows(last.stage, last.partition, last.after, last.upto)
    pairs = zip_longest(expected, sorted(last.rows))
    return next(((last, one, other) for one, other in pairs if one != other), None)


def _marks(rows: Iterable[Row]) -> Iterator[Punctuation]:
    return (row.value for row in rows if isinstance(row.value, Punctuation))


def _texts(arrow: pa.RecordBatch) -> list[str]:
    try:
        return [repr(row) for row in arrow.to_pylist()]
    except ValueError:  # Nanoseconds, for which Python has no type.
        columns = [column.cast(pa.string()).to_pylist() for column in arrow.columns]
        return [repr(dict(zip(arrow.schema.names, row, strict=True))) for row in zip(*columns, strict=True)]
