"""Ingress: numbers the source's rows and feeds both copies of the first stage (thesis 3.2.1.2).

It is FH-Prod with one producer partition that has one copy: its lanes go to both copies of every
consumer, and a row is released from its buffer when every live copy has consumed it. From then on the
source may forget the row. The bound of the buffer limits the drift of the two dataflows.

An ingress that is started again, under a name of its own, numbers from what the last one had `released`. The
shell keeps a journal of the numbering, so the same rows get the same numbers. Consumers attach at the position
they have received, as after any change of sender; the ingress sends them nothing up to that position (rule 14).

The journal may have lost its end, with the power of the machine. So a restarted ingress numbers nothing beyond it
before it knows what the others have seen: every live node has sent its highest position, and so has an end that was
dead (rule 39). By then nothing of the last ingress is in flight that a node could still take.

Positions count together if no node has died between the views in which they were sent. A node takes new rows from live
nodes only, and what those have seen is known as well. A node that has died may have sent on more than it reported. So
moves and slow marks, whose views may come faster than positions do, cannot keep an ingress waiting.

For a change of code that has been proposed in vain a few times, the ingress is bound: it numbers nothing after the
position, which is the one it has reached (rule 45). Rows that the source gives meanwhile wait.

Consumers acknowledge what they have, which may be beyond the end of such a journal. An ingress that is started then
begins at the end of the journal all the same, because its source stands there (rule 39).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from .fh_prod import FhProd
from .machine import Machine, Rule, always, ignore
from .messages import (
    Ack,
    Attach,
    Consumed,
    Effect,
    EndOfSource,
    HighestPosition,
    Merge,
    Position,
    Pull,
    Released,
    Sourced,
    Stop,
    View,
)

ONLY = 0  # The ingress's one cohort.


class Ingress(Machine):
    """The node `name` in front of stage 1; `numbered` is the end of the journal, if it was started after another."""

    def __init__(
        self,
        name: str,
        bound_rows: int,
        released: Position = 0,
        transfer_rows_max: int | None = None,
        numbered: Position | None = None,
        divided: bool = False,
    ) -> None:
        self.name = name
        self.pulling = False
        self.ended = False
        self.released = released
        self.bound: Position | None = None  # Nothing is numbered after it.
        self.waiting: Sourced | None = None  # What the source has given and is to be numbered after that.
        self.numbered = numbered
        self.knows_positions = numbered is None  # The first ingress has nothing to ask for.
        self.since = 0  # The view since which no node has died, as far as positions are not known.
        self.living: frozenset[str] = frozenset()  # The live nodes of the last view.
        self.awaited: frozenset[str] = frozenset()  # The nodes whose positions since then are not known yet.
        self.reported: dict[str, int] = {}  # The last view in which each of the others has sent its position.
        self.highest: Position = 0
        begin = released if numbered is None else min(released, numbered)
        self.prod = FhProd(name, 0, bound_rows, transfer_rows_max, divided)
        self.prod.buffer.dropped = begin
        self.prod.add_cohort(ONLY, frozenset({0}), begin)

    @property
    def title(self) -> str:
        return f"Ingress {self.name}"

    def bind(self, position: Position) -> Position:
        """Number nothing after `position`, or if that is more after the last row numbered; return which it is."""
        self.bound = max(position, self.prod.produced[ONLY], self.highest)
        return self.bound

    def unbind(self) -> Iterator[Effect]:
        self.bound = None
        waiting, self.waiting = self.waiting, None
        if waiting is not None:
            yield from self.number(waiting)

    # Guards.

    def answers_the_pull(self, message: Sourced) -> bool:
        return self.pulling and message.after == self.prod.produced[ONLY] < message.upto

    def goes_too_far(self, message: Sourced) -> bool:
        return self.answers_the_pull(message) and self.bound is not None and message.upto > self.bound

    def is_pulling(self, message: EndOfSource) -> bool:
        return self.pulling

    def is_awaited(self, message: HighestPosition) -> bool:
        is_new = message.view > self.reported.get(message.sender, 0)
        return is_new and self.since <= message.view <= self.prod.view and not self.knows_positions

    def is_not_needed(self, message: HighestPosition) -> bool:
        return self.knows_positions or message.view < self.since

    # Actions.

    def keep(self, message: Sourced) -> Iterable[Effect]:
        self.pulling = False
        self.waiting = message
        return ()

    def number(self, message: Sourced) -> Iterator[Effect]:
        self.pulling = False
        run = Consumed(
            stage=0, cohort=ONLY, upto=message.upto, rows=message.rows, counts=message.counts, body=message.body
        )
        yield from self.prod.step(run)
        yield from self._pull()

    def end(self, message: EndOfSource) -> Iterator[Effect]:
        self.pulling = False
        self.ended = True
        yield from ()

    def note_position(self, message: HighestPosition) -> Iterator[Effect]:
        self.highest = max(self.highest, message.position)
        self.reported[message.sender] = message.view
        self.awaited -= {message.sender}
        self.knows_positions = not self.awaited
        yield from self._pull()

    def adopt(self, view: View) -> Iterator[Effect]:
        if not self.knows_positions:
            if not self.since or self._has_died(view):
                self.since, self.reported = view.number, {}
            self.living = frozenset(filter(view.alive, view.nodes))
            self.awaited = self._others(view).difference(self.reported)
        yield from self.serve(view)
        yield from self.unbind()

    def serve(self, message: Ack | Attach | Stop | Merge | View) -> Iterator[Effect]:
        yield from self.prod.step(message)
        if self.prod.buffer.dropped > self.released:
            self.released = self.prod.buffer.dropped
            yield Released(upto=self.released)
        yield from self._pull()

    def _has_died(self, view: View) -> bool:
        """Whether a node that was alive in the last view is not alive any more."""
        return not self.living <= frozenset(filter(view.alive, view.nodes))

    def _others(self, view: View) -> frozenset[str]:
        """The nodes whose positions must be known: all that are alive, and the ends."""
        ends = {node for stage, copies in enumerate(view.copies) if view.is_end(stage) for node in copies[0]}
        return frozenset({*filter(view.alive, view.nodes), *ends} - {self.name})

    def _pull(self) -> Iterator[Effect]:
        after = self.prod.produced[ONLY]
        is_journalled = self.numbered is not None and after < self.numbered
        has_asked = self.pulling or self.ended or self.waiting is not None
        if has_asked or self.prod.buffer.full() or not (self.knows_positions or is_journalled):
            return
        self.pulling = True
        yield Pull(after=after, given_upto=self.highest)


_ROWS = (
    Rule(on=Sourced, guard=Ingress.goes_too_far, action=Ingress.keep, cites="rule 45"),
    Rule(on=Sourced, guard=Ingress.answers_the_pull, action=Ingress.number, cites="3.2.1.2; fig. 3.3 (1)"),
    Rule(on=EndOfSource, guard=Ingress.is_pulling, action=Ingress.end, cites="punctuation: end of stream"),
    Rule(on=Ack, guard=always, action=Ingress.serve, cites="fig. 3.3 (3)"),
    Rule(on=Attach, guard=always, action=Ingress.serve, cites="3.2.4: csync"),
    Rule(on=Stop, guard=always, action=Ingress.serve, cites="the copy lives elsewhere"),
    Rule(on=Merge, guard=always, action=Ingress.serve, cites="lanes, not channels"),
    Rule(on=View, guard=always, action=Ingress.adopt, cites="fig. 3.5 (1): fail; rule 39"),
    Rule(on=HighestPosition, guard=Ingress.is_awaited, action=Ingress.note_position, cites="rule 39"),
    Rule(on=HighestPosition, guard=Ingress.is_not_needed, action=ignore, cites="rule 39: of an earlier view, or known"),
)
Ingress.RULES = _ROWS
