"""Egress: merges the last stage's output in order and hands it to the sink (thesis 3.2.1.2, fig. 3.5).

It is FH-Cons with one partition that has one copy: it takes each producer from its primary copy, and
from the secondary when the primary's site has failed. It acknowledges what the sink made durable.
"""

from __future__ import annotations

from collections.abc import Iterator

from .fh_cons import FhCons
from .machine import Machine, Rule, always
from .messages import Consume, Consumed, Data, Effect, View


class Egress(Machine):
    """The node `name` behind the last segment; `stage` is its own, one more than the segment's."""

    def __init__(self, name: str, stage: int) -> None:
        self.name = name
        self.stage = stage
        self.working_upto = 0
        self.cons = FhCons(name, stage - 1)

    # Guards.

    def is_what_the_sink_was_given(self, message: Consumed) -> bool:
        return message.upto == self.working_upto > self.cons.consumed

    # Actions.

    def receive(self, message: Data | View) -> Iterator[Effect]:
        yield from self.cons.step(message)
        yield from self._consume()

    def acknowledge(self, message: Consumed) -> Iterator[Effect]:
        yield from self.cons.acknowledge(message.upto)
        yield from self._consume()

    def _consume(self) -> Iterator[Effect]:
        after, upto = self.cons.consumed, self.cons.frontier
        if self.working_upto == after < upto:
            self.working_upto = upto
            yield Consume(stage=self.stage, after=after, upto=upto, frames=self.cons.take(upto))


_ROWS = (
    Rule(on=Data, guard=always, action=Egress.receive, cites="3.2.1.2"),
    Rule(on=View, guard=always, action=Egress.receive, cites="fig. 3.5 (2)"),
    Rule(
        on=Consumed,
        guard=Egress.is_what_the_sink_was_given,
        action=Egress.acknowledge,
        cites="3.2.1.2: ack once the output is safe",
    ),
)
Egress.RULES = _ROWS
