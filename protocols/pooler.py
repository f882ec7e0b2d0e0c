"""Pooler: one segment on one site: FH-Cons, the operator's partitions, FH-Prod (thesis 3.4, fig. 3.10).

It decides when the operator runs: when the frontier has moved, the output pool has room, and the
operator is not busy with the rows before. One `Consume` covers all partitions of the site. What was
consumed is acknowledged after its output is in the buffer, so that a crash loses both or neither.

Departure: the queues of thesis 2.1.2 (push, pull, passive) are not needed: a segment is pulled by its
pooler, and the buffers at its two ends are the slack between segments.
"""

from __future__ import annotations

from collections.abc import Iterator

from .fh_cons import FhCons
from .fh_prod import FhProd
from .machine import Machine, Rule, always
from .messages import Ack, Attach, Consume, Consumed, Data, Effect, View


class Pooler(Machine):
    """Stage `stage` of the dataflow on site `name`."""

    def __init__(self, name: str, stage: int, bound_rows: int) -> None:
        self.name = name
        self.stage = stage
        self.working_upto = 0  # The operator is busy with everything up to here, if ahead of consumed.
        self.cons = FhCons(name, stage - 1)
        self.prod = FhProd(name, stage, bound_rows)

    @property
    def title(self) -> str:
        return f"Pooler of stage {self.stage} on {self.name}"

    # Guards.

    def is_what_the_operator_was_given(self, message: Consumed) -> bool:
        return message.upto == self.working_upto > self.cons.consumed

    def rows_wait_and_there_is_room(self) -> bool:
        idle = self.working_upto == self.cons.consumed
        return idle and self.cons.frontier > self.cons.consumed and not self.prod.buffer.full()

    # Actions.

    def receive(self, message: Data) -> Iterator[Effect]:
        yield from self.cons.step(message)
        yield from self._consume()

    def serve(self, message: Ack | Attach) -> Iterator[Effect]:
        yield from self.prod.step(message)
        yield from self._consume()

    def emit_and_acknowledge(self, message: Consumed) -> Iterator[Effect]:
        yield from self.prod.step(message)
        yield from self.cons.acknowledge(message.upto)
        yield from self._consume()

    def adopt(self, view: View) -> Iterator[Effect]:
        yield from self.prod.step(view)
        yield from self.cons.step(view)
        yield from self._consume()

    def _consume(self) -> Iterator[Effect]:
        if not self.rows_wait_and_there_is_room():
            return
        after, upto = self.cons.consumed, self.cons.frontier
        self.working_upto = upto
        yield Consume(stage=self.stage, after=after, upto=upto, frames=self.cons.take(upto))


_ROWS = (
    Rule(on=Data, guard=always, action=Pooler.receive, cites="3.4.1"),
    Rule(on=Ack, guard=always, action=Pooler.serve, cites="fig. 3.3 (3)"),
    Rule(on=Attach, guard=always, action=Pooler.serve, cites="fig. 3.13"),
    Rule(
        on=Consumed,
        guard=Pooler.is_what_the_operator_was_given,
        action=Pooler.emit_and_acknowledge,
        cites="fig. 3.3 (1); 3.2.1.2",
    ),
    Rule(on=View, guard=always, action=Pooler.adopt, cites="3.2.3.1"),
)
Pooler.RULES = _ROWS
