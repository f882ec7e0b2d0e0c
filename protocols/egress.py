"""Egress: hands the last stage's output to the sink, merged in order or as it arrives (thesis 3.2.1.2, fig. 3.5).

It is FH-Cons with one partition that has one copy: it takes each producer from its primary copy, and
from the secondary when the primary's site has failed. It acknowledges what the sink made durable.

An egress that is started again, under a name of its own, resumes after what its sink has made `durable`. Rows that
the last one had not acknowledged are still in the producers' buffers, which keep them while no egress is live.
The sink of an unordered egress has rows beyond that position. It stores with them how far `ahead` of that position it
is for each producer, as every `Consume` says. The next egress begins exactly there, so each row arrives once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from .editions import has_passed, reached
from .fh_cons import FhCons
from .machine import Machine, Rule, always
from .messages import Ahead, Consumed, Data, Effect, Merged, Position, Stopped, View

ONLY = 0  # The egress's one cohort.


class Egress(Machine):
    """The node `name` after the last segment; `stage` is its own, one more than the segment's."""

    def __init__(self, name: str, stage: int, durable: Position = 0, ahead: tuple[Ahead, ...] = ()) -> None:
        self.name = name
        self.stage = stage
        self.cons = FhCons(name, stage)
        self.cons.acked = durable
        self.ahead = ahead  # Of what was durable when this process began.

    @property
    def title(self) -> str:
        return f"Egress {self.name}"

    def reached(self, stages: frozenset[int], made: frozenset[int]) -> Position:
        """How far rows of the change of `stages` have come here (rule 46)."""
        return reached(self.cons, stages, made)

    def has_passed(self, position: Position) -> bool:
        """Whether the sink has taken rows after `position`."""
        return has_passed(self.cons, position)

    # Guards.

    def is_what_the_sink_was_given(self, message: Consumed) -> bool:
        own = self.cons.cohorts.get(message.cohort)
        return own is not None and message.upto == own.working_upto

    # Actions.

    def receive(self, message: Data | Stopped | Merged) -> Iterator[Effect]:
        yield from self.cons.step(message)
        yield from self._consume()

    def adopt(self, view: View) -> Iterator[Effect]:
        yield from self.cons.step(view)
        if not self.cons.cohorts:
            yield from self.cons.add_cohort(ONLY, frozenset({0}), self.cons.acked, self.ahead)

    def acknowledge(self, message: Consumed) -> Iterator[Effect]:
        self.cons.finish(ONLY)
        yield from self.cons.acknowledge()
        yield from self._consume()

    def _consume(self) -> Iterator[Effect]:
        own, upto = self.cons.cohorts[ONLY], self.cons.reach(ONLY)
        if own.idle and (upto > own.consumed or self.cons.has_early(ONLY)):
            work = self.cons.begin(ONLY, upto)
            yield replace(work, ahead=self.cons.ahead(0, upto))


_ROWS = (
    Rule(on=Data, guard=always, action=Egress.receive, cites="3.2.1.2"),
    Rule(on=Stopped, guard=always, action=Egress.receive, cites="fig. 3.7 (8): psync"),
    Rule(on=Merged, guard=always, action=Egress.receive, cites="lanes, not channels"),
    Rule(on=View, guard=always, action=Egress.adopt, cites="fig. 3.5 (2)"),
    Rule(
        on=Consumed,
        guard=Egress.is_what_the_sink_was_given,
        action=Egress.acknowledge,
        cites="3.2.1.2: ack once the output is safe",
    ),
)
Egress.RULES = _ROWS
