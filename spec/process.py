"""One simulated process: a production `Node` and the shell that carries out its effects.

The shell selects the rows of a `Send`, runs the operator when it is told to, and hands its output back.
A `Consume` or `Pull` is not answered at once: it stays in `work` until the world chooses to, so that
every other message may come in between, as in a process whose operator takes its time.

A process knows nothing but itself: its next state is a function of its state and of what it is given.
The exhaustive exploration rests on that, and so does the independence of events at different nodes.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from flux.protocols.egress import Egress
from flux.protocols.ingress import Ingress
from flux.protocols.messages import (
    Attach,
    Block,
    Consume,
    Consumed,
    Data,
    PeerMessage,
    Pull,
    Released,
    Send,
    Sourced,
    SourceEnded,
    View,
)
from flux.protocols.node import Node
from flux.protocols.pooler import Pooler

from .dataflow import EGRESS, INGRESS, OperatorState, Row, Scenario, operate

if TYPE_CHECKING:
    from .invariants import Checker

Outgoing = list[tuple[str, PeerMessage | View]]
Channel = tuple[int, int, int]  # Edge, producer partition, consumer partition.


class Process:
    """Node `name` of `scenario`, watched by `checkers`."""

    def __init__(self, scenario: Scenario, name: str, checkers: Iterable[Checker]) -> None:
        self.scenario = scenario
        self.name = name
        self.checkers = tuple(checkers)
        self.node = Node(name, list(_machines(scenario, name)))
        self.work: dict[int, Consume | Pull] = {}  # By stage; one piece of work at a time each.
        self.pulls = 0
        self.released = 0
        self.states: dict[tuple[int, int], OperatorState] = {
            (stage, partition): OperatorState()
            for stage in self.node.machines
            if stage > 0
            for partition in scenario.held(name, stage)
        }
        self.through: dict[int, int] = dict.fromkeys(self.node.machines, 0)
        self.history: dict[tuple[int, int], list[Row]] = {place: [] for place in self.states}
        self.feeds: dict[Channel, str] = {}  # Who was last asked to feed each channel.

    def deliver(self, message: PeerMessage | View) -> Outgoing:
        """Take a message from a link; return what goes out."""
        if type(message) is Data:
            for checker in self.checkers:
                checker.delivered(self, message)
        return self._carry_out(self.node.step(message))

    def answer(self, stage: int) -> Outgoing:
        """Let the operator, the sink or the source finish its work for `stage`."""
        work = self.work.pop(stage)
        if isinstance(work, Pull):
            return self._source(work)
        out = self._operate(work)
        self.through[stage] = work.upto
        consumed = Consumed(stage=stage, upto=work.upto, rows=len(out), body=tuple(out))
        return self._carry_out(self.node.step(consumed))

    def clone(self) -> Process:
        """An independent copy; the scenario and the checkers are shared."""
        twin = object.__new__(Process)
        twin.__dict__.update(self.__dict__)
        twin.node = self.node.clone()
        twin.work = dict(self.work)
        twin.states = dict(self.states)
        twin.through = dict(self.through)
        twin.history = {place: list(rows) for place, rows in self.history.items()}
        twin.feeds = dict(self.feeds)
        return twin

    def key(self) -> tuple[Any, ...]:
        """The whole state as one hashable value."""
        return (
            self.node.key(),
            tuple(sorted(self.work.items(), key=_first)),
            self.pulls,
            self.released,
            tuple(self.states.values()),
            tuple(self.through.values()),
            tuple(len(rows) for rows in self.history.values()),
            tuple(sorted(self.feeds.items())),
        )

    def _source(self, pull: Pull) -> Outgoing:
        bodies = self.scenario.source
        if self.pulls == len(bodies):
            return self._carry_out(self.node.step(SourceEnded()))
        body = bodies[self.pulls]
        self.pulls += 1
        sourced = Sourced(after=pull.after, upto=body[-1].sn, rows=len(body), body=body)
        return self._carry_out(self.node.step(sourced))

    def _operate(self, work: Consume) -> list[Row]:
        """Run every partition held here over its rows, and let the checkers see what it is given."""
        stage, after, upto = work.stage, work.after, work.upto
        given: dict[int, list[Row]] = {}
        for frame in work.frames:
            for row in frame.body:
                if after < row.sn <= upto:
                    given.setdefault(row.consumer, []).append(row)
        out: list[Row] = []
        for place in self.states:
            if place[0] != stage:
                continue
            rows = sorted(given.get(place[1], ()))
            state, emitted = operate(self.scenario, stage, place[1], self.states[place], rows)
            for checker in self.checkers:
                checker.consumed(self, work, place[1], rows, state)
            self.states[place] = state
            self.history[place].extend(rows)
            out.extend(emitted)
        return sorted(out)

    def _carry_out(self, effects: Iterable[Any]) -> Outgoing:
        out: Outgoing = []
        for effect in effects:
            kind = type(effect)
            if kind is Send:
                out.append((effect.to, self._prepare(effect)))
            elif kind is Consume:
                assert effect.stage not in self.work, f"{self.name} is given work for {effect.stage} twice"
                self.work[effect.stage] = effect
            elif kind is Pull:
                assert 0 not in self.work, f"{self.name} is told to pull twice"
                self.work[0] = effect
            else:
                assert kind is Released, f"a node has no business with {effect}"
                self.released = effect.upto
        return out

    def _prepare(self, send: Send) -> PeerMessage:
        message = send.message
        if isinstance(message, Data):
            return replace(message, body=select(message.body, send.channels, message.after))
        if isinstance(message, Attach):
            for checker in self.checkers:
                checker.attached(self, send.to, message)
            for channel in channels_of(message):
                self.feeds[channel] = send.to
        return message


def channels_of(attach: Attach) -> list[Channel]:
    """Every single channel an attach names."""
    return [
        (attach.edge, producer, consumer)
        for block in attach.channels
        for producer in block.producers
        for consumer in block.consumers
    ]


def select(body: tuple[Row, ...], channels: tuple[Block, ...], after: int) -> tuple[Row, ...]:
    """The rows of `channels` behind `after`, as the shell of a site selects them."""
    return tuple(
        row
        for row in body
        if row.sn > after
        and any(row.producer in block.producers and row.consumer in block.consumers for block in channels)
    )


def _machines(scenario: Scenario, name: str) -> Iterable[Ingress | Pooler | Egress]:
    """The machines of a node: a site has a pooler for each stage of which it holds a partition."""
    if name == INGRESS:
        yield Ingress(name, scenario.bound_rows)
    elif name == EGRESS:
        yield Egress(name, scenario.stages + 1)
    else:
        for stage in range(1, scenario.stages + 1):
            if scenario.held(name, stage):
                yield Pooler(name, stage, scenario.bound_rows)


def _first(item: tuple[int, Any]) -> int:
    return item[0]
