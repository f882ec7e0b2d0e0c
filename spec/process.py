"""One simulated process: a production `Node` and the shell that carries out its effects.

The shell selects the rows of a `Send`, runs the operator on a `Consume`, and hands its output back.
A `Consume` or `Pull` is not answered at once: it stays in `work` until the world chooses to, so that
every other message may arrive in between, as in a process with a slow operator.

A process depends on nothing but itself: its next state is a function of its state and its input.
The exhaustive exploration rests on that, and so does the independence of events at different nodes.

The journal of an ingress survives its process: the numbering, which the scenario fixes, and what was
released. Its end may be lost with the power. The sink of an egress survives its process, with how far it is ahead of
its position.
A process that is started again begins with these.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from dataclasses import replace
from functools import cache
from typing import Any

from ..protocols.change_messages import (
    Bind,
    ChangeOrder,
    ChangeReport,
    CheckpointRetained,
    Prepare,
    Rehearse,
    Rehearsed,
    Unbind,
)
from ..protocols.controller import Controller
from ..protocols.egress import Egress
from ..protocols.ingress import Ingress
from ..protocols.inspection import buffers, trim
from ..protocols.machine import Fenced, Refused
from ..protocols.messages import (
    Ack,
    Ahead,
    Attach,
    Block,
    Connected,
    Consume,
    Consumed,
    CopyCosts,
    CopyFailed,
    CopyReady,
    Data,
    Drop,
    Edition,
    EndOfSource,
    Hello,
    Install,
    PeerMessage,
    Pull,
    Released,
    ReportRefused,
    RowCounts,
    Send,
    SendToController,
    Sourced,
    State,
    Stop,
    Trim,
    View,
)
from ..protocols.node import Node
from ..protocols.pooler import Pooler
from .checker import Checker as Checker
from .checker import CopyPlace as CopyPlace
from .checker import Violated as Violated
from .checker import Watch as Watch
from .dataflow import EGRESS, INGRESS, OperatorState, Reference, Row, Scenario
from .eras import Restored

Outgoing = list[tuple[str, PeerMessage | View | Hello | CopyReady | CopyFailed | ChangeReport | ChangeOrder]]
PendingWork = tuple[int, int]  # Stage, cohort.
Channel = tuple[int, int, int]  # Edge, producer partition, consumer partition.


CONTROLLER = "controller"
PULL: PendingWork = (0, 0)


class Reported(Refused):
    """What a rule refuses on purpose, with an error for the user: no message is wrong, but what was to be kept is."""


class SimulatedProcess:
    """Node `name` of `scenario`, watched by `checkers`; if it is an end, it may be started after `last` one.

    In an era after the first it begins with what is `restored`.
    """

    def __init__(
        self,
        scenario: Scenario,
        name: str,
        checkers: Iterable[Checker] | Watch,
        last: SimulatedProcess | None = None,
        restored: Restored | None = None,
    ) -> None:
        self.scenario = scenario
        self.name = name
        self.watch = checkers if isinstance(checkers, Watch) else Watch(checkers)
        self.released: int = last.released if last is not None else 0
        # The end of an ingress's journal. What is released may be beyond it: the numbers were given by an ingress
        # before the last, whose journal has lost them.
        self.numbered: int = 0 if last is None else last.numbered
        if last is not None and scenario.lost_tails:
            self.numbered = min(last.released, last.numbered)
        self.states: dict[CopyPlace, OperatorState] = {
            (stage, partition): scenario.first_state()
            for stage in range(1, len(scenario.partitions))
            for partition in scenario.held(name, stage)
        }
        self.through: dict[CopyPlace, int] = dict.fromkeys(self.states, 0)
        # In the order of arrival; for an unordered stage that means nothing, and they are sorted.
        self.history: dict[CopyPlace, tuple[Row, ...]] = dict.fromkeys(self.states, ())
        self.ahead: dict[int, tuple[Ahead, ...]] = {}  # Of each sink that is ahead, by its stage.
        if last is not None:
            self.states, self.through, self.history = dict(last.states), dict(last.through), dict(last.history)
            self.ahead = dict(last.ahead)
        self.begin = 0  # The position of the copies that are here from the first view on.
        if restored is not None:
            self.begin, self.states, self.through, self.history = restored
        self.released = max(self.released, self.begin)
        self.is_first = last is None
        self.node: Node = Node(name, list(self._machines()), last.node.incarnation + 1 if last is not None else 1)
        self.last_view: View | None = None  # That it had before the message that was delivered last.
        self.work: dict[PendingWork, Consume | Pull] = {}  # One piece of work at a time each.
        self.ended = False
        self.feeds: dict[Channel, str] = {}  # The node that was last asked to feed each channel.
        self.superseded: dict[int, Edition] = {}  # Those that no view lists any more; of the world.
        self.paced: dict[int, int] = {}  # By stage: the most positions that a step may take, as it was asked for.

    @property
    def role(self) -> str:
        """The role of the node: the ingress, the egress, or a site."""
        return role_of(self.name)

    @property
    def reference(self) -> Reference:
        """What a plain run gives with the editions that this process knows of."""
        return self.scenario.reference_of(self.editions)

    @property
    def editions(self) -> list[Edition]:
        """The editions that the view lists, and those before it that it does not list any more."""
        view = self.node.view
        if view is None or not (view.editions or self.superseded):
            return []
        listed = {edition.number: edition for edition in view.editions}
        return [edition for _, edition in sorted((self.superseded | listed).items())]

    def deliver(self, message: PeerMessage | View | Connected | ChangeOrder) -> Outgoing:
        """Take a message from a link; return what goes out."""
        before = self.node.view
        if type(message) is Data:
            for check in self.watch.delivered:
                check(self, message)
        elif type(message) is Ack:
            for check in self.watch.acknowledging:
                check(self, message)
        self.last_view = self.node.view
        try:
            effects = self.node.step(message)
        except Fenced:
            return []  # A real shell would inform the sender. Here the sender runs on, which is worse.
        if not isinstance(message, (View, Connected, Prepare, Bind, Unbind)):
            for check in self.watch.accepted:
                check(self, message)
        out = self._carry_out(effects)
        if isinstance(message, View):
            consumers = [message.members(consumer) for _, consumer in message.edges]
            self.feeds = {c: sender for c, sender in self.feeds.items() if self.name in consumers[c[0]]}
            for adopted in self.watch.adopted:
                adopted(self, before, message)
        return out

    def answer(self, which: PendingWork) -> Outgoing:
        """Let the operator, the sink or the source finish a piece of work."""
        work = self.work.pop(which)
        stage, cohort = which
        if isinstance(work, Pull):
            out = self._source(work)
        else:
            rows = self._operate(work)
            most = self.scenario.pace(work.upto)
            self.paced.pop(stage, None)
            if most:
                self.paced[stage] = most
            consumed = Consumed(
                stage=stage,
                cohort=cohort,
                upto=work.upto,
                rows=len(rows),
                emitted_upto=rows[-1].sn if rows else 0,
                most=most,
                counts=self.scenario.counts(rows, work.upto),
                body=tuple(rows),
            )
            self.ahead.pop(stage, None)
            if work.ahead:
                self.ahead[stage] = work.ahead
            out = self._carry_out(self.node.step(consumed))
        for check in self.watch.answered:
            check(self, stage)
        return out

    def floors_of(self, consumer: str, stage: int) -> list[int]:
        """What a copy of `stage` on `consumer` has acknowledged to the buffers here."""
        dests = {(edge, consumer) for edge, (_, to) in enumerate(self.scenario.plan.edges) if to == stage}
        return [buffer.floors[dest] for buffer in buffers(self.node) for dest in dests & buffer.floors.keys()]

    def clone(self) -> SimulatedProcess:
        """An independent copy; the scenario and the checkers are shared."""
        twin = object.__new__(SimulatedProcess)
        twin.__dict__.update(self.__dict__)
        twin.node = self.node.clone()
        twin.work = dict(self.work)
        twin.states = dict(self.states)
        twin.through = dict(self.through)
        twin.history = dict(self.history)
        twin.ahead = dict(self.ahead)
        twin.feeds = dict(self.feeds)
        twin.paced = dict(self.paced)
        return twin

    def key(self) -> tuple[Any, ...]:
        """The whole state as one hashable value."""
        return (
            self.node.key(),
            tuple(sorted(self.work.items(), key=_first)),
            self.released,
            self.numbered,
            tuple(sorted(self.states.items())),
            tuple(sorted(self.through.items())),
            tuple(sorted((place, len(rows)) for place, rows in self.history.items())),
            tuple(sorted((place, self.beyond(place)) for place in self.history if place[0] in self.scenario.unordered)),
            tuple(sorted(self.ahead.items())),
            tuple(sorted(self.feeds.items())),
            tuple(sorted(self.paced.items())),
        )

    def beyond(self, place: CopyPlace) -> tuple[Row, ...]:
        """What a copy of an unordered stage has consumed beyond its position."""
        rows = self.history[place]
        return rows[bisect_right(rows, self.through[place], key=_number) :]

    @property
    def highest(self) -> int:
        """The highest number of any row that was received here, or that a state or a sink here depends on."""
        consumers = [machine.cons for machine in self.node.machines.values() if not isinstance(machine, Ingress)]
        received = [lane.upto for cons in consumers for lane in cons.lanes.values()]
        return max([*received, *self.through.values()], default=0)

    def _machines(self) -> Iterable[Ingress | Pooler | Egress]:
        """The machines of a node: a site has a pooler for each stage, whether it holds partitions of it or not."""
        scenario = self.scenario
        if self.role == INGRESS:
            numbered = None if self.is_first else self.numbered
            yield Ingress(self.name, scenario.bound_rows, self.released, scenario.transfer_rows_max, numbered)
        elif self.role == EGRESS:
            for stage in range(scenario.stages + 1, len(scenario.partitions)):
                yield Egress(self.name, stage, self.through.get((stage, 0), 0), self.ahead.get(stage, ()))
        else:
            for stage in range(1, scenario.stages + 1):
                bounds = (scenario.bound_rows, scenario.transfer_rows_max, scenario.step)
                yield Pooler(self.name, stage, *bounds, begin=self.begin)

    def _source(self, pull: Pull) -> Outgoing:
        """Answer a pull. Every process gets the same rows under the same numbers: they are in the journal."""
        source = self.scenario.source
        place = bisect_right(source, pull.after, key=_last_number)
        if place == len(source):
            assert not self.ended, f"{self.name} asks a source that has ended"
            self.ended = True
            return self._carry_out(self.node.step(EndOfSource()))
        body = tuple(row for row in source[place] if row.sn > pull.after)
        self.numbered = max(self.numbered, body[-1].sn)
        counts = self.scenario.counts(body, body[-1].sn)
        sourced = Sourced(after=pull.after, upto=body[-1].sn, rows=len(body), counts=counts, body=body)
        return self._carry_out(self.node.step(sourced))

    def _operate(self, work: Consume) -> list[Row]:
        """Run every partition held here over its rows, and let the checkers see what it is given."""
        stage, after, upto = work.stage, work.after, work.upto
        given: dict[int, list[Row]] = {}
        reference = self.reference
        for frame in work.frames:
            first, last = (after, upto) if work.ordered else (frame.after, frame.upto)
            pairs = _pairs(frame.channels)
            for row in _between(frame.body, first, last):
                if not pairs or (row.producer, row.consumer) in pairs:
                    given.setdefault(row.consumer, []).append(row)
        out: list[Row] = []
        for partition in sorted(work.partitions | given.keys()):
            place = (stage, partition)
            rows = sorted(given.get(partition, ()))
            # The same rows in the same state as in the plain run give the same result.
            plain = reference.stretch(stage, partition, after, upto)
            is_plain = rows == plain.rows and self.states[place] == plain.before
            is_plain = is_plain and self.scenario.knows_states and (work.ordered or not self.beyond(place))
            if is_plain:
                state, emitted = plain.after, plain.output
            else:
                state = self._migrated(place, work.edition)
                state, emitted = self.scenario.operate(stage, partition, state, rows, after, upto)
            for check in self.watch.consumed_as_plain if is_plain else self.watch.consumed:
                check(self, work, partition, rows, state)
            self.states[place] = state
            self.through[place] = upto
            if work.ordered:
                self.history[place] += tuple(rows)
            elif rows:
                self.history[place] = tuple(sorted((*self.history[place], *rows)))
            out.extend(emitted)
        return sorted(out)

    def _migrated(self, place: CopyPlace, edition: int) -> OperatorState:
        """The state of a copy, as the first act of a step by that edition makes it."""
        state = self.states[place]
        for each in self.editions if state.edition != edition else ():
            if place[0] in each.stages and state.edition < each.number <= edition:
                state = self.scenario.migrate(state, each.number)
        return state

    def _carry_out(self, effects: list[Any]) -> Outgoing:
        out: Outgoing = []
        begun: list[Consume | Pull] = []
        for effect in effects:
            kind = type(effect)
            if kind is Send:
                out.append((effect.to, self._prepare(effect)))
            elif kind is Consume:
                which = (effect.stage, effect.cohort)
                assert which not in self.work, f"{self.name} is given work for {which} twice"
                self.work[which] = effect
                begun.append(effect)
            elif kind is Pull:
                assert PULL not in self.work, f"{self.name} pulls twice"
                self.work[PULL] = effect
                begun.append(effect)
            elif kind is Install:
                self._install(effect)
            elif kind is Drop:
                place = (effect.stage, effect.partition)
                del self.states[place], self.through[place], self.history[place]
            elif kind is Trim:
                trim(self.node, effect, _cut_body)
            elif kind is ReportRefused:
                raise Reported(effect.text)
            elif kind is SendToController:
                out.append((CONTROLLER, effect.message))
            elif kind is Rehearse:
                problem = "it has no such code" if self.name in self.scenario.cannot else ""
                if self.name not in self.scenario.silent:
                    out += self._carry_out(self.node.step(Rehearsed(number=effect.number, problem=problem)))
            else:
                assert kind is Released, f"a node cannot emit {effect}"
                self.released = effect.upto
        if begun and Install not in map(type, effects):  # Else the pool may have filled after these decisions.
            for work in begun:  # Held messages are of the same step: only now are the runs cut that they shorten.
                for check in self.watch.given:
                    check(self, work)
        return out

    def _install(self, effect: Install) -> None:
        place = (effect.stage, effect.partition)
        for check in self.watch.installed:
            check(self, place)
        self.states[place], self.through[place], self.history[place] = effect.body
        for resumed in self.watch.resumed:
            resumed(self, place, effect.edition)

    def _prepare(self, send: Send) -> PeerMessage:
        message = send.message
        if type(message) is Ack:
            return message
        if isinstance(message, Data):
            return self._with_rows(message, send.channels)
        if isinstance(message, State):
            return self._with_state(message)
        if isinstance(message, Attach):
            for check in self.watch.attached:
                check(self, send.to, message)
            for channel in channels_of(message):
                self.feeds[channel] = send.to
        elif isinstance(message, Stop):
            for check in self.watch.stopped:
                check(self, send.to, message)
            for channel in channels_of(message):
                self.feeds.pop(channel, None)
        return message

    def _with_rows(self, data: Data, channels: tuple[tuple[Block, ...], ...]) -> Data:
        edge, after, upto = data.edge, data.after, data.upto
        chosen: list[Row] = []
        for body, blocks in zip(data.bodies, channels, strict=True):
            pairs, rows = _pairs(blocks), _between(body, after, upto)
            chosen += [row for row in rows if row.edge == edge and (row.producer, row.consumer) in pairs]
        if len(data.bodies) > 1:
            chosen.sort()  # Those of an unordered stage overlap.
        return Data(
            sender=data.sender,
            view=data.view,
            edge=edge,
            lane_id=data.lane_id,
            after=after,
            upto=upto,
            bodies=(tuple(chosen),),
        )

    def _with_state(self, message: State) -> State:
        """Add what moves, all of one instant: state, position, and the partition's rows in the buffer (rule 16)."""
        view = self.node.view
        assert view is not None
        [partition] = [s.partition for s in view.standby if s.version == message.version]
        place = (message.stage, partition)
        at_work = [work for work in self.work.values() if isinstance(work, Consume) and work.stage == message.stage]
        # Here an operator works in one instant, when it answers. A real one would be half way, and so its state.
        torn = any(partition in work.partitions for work in at_work)
        assert not torn, f"{self.name} reads the state of {place} while the operator is at work on it"
        bodies = [
            tuple(row for row in run.body if row.producer == partition and partition not in run.without)
            for run in message.runs
        ]
        runs = tuple(
            replace(run, rows=len(body), without=frozenset(), counts=self.scenario.counts(body, run.upto), body=body)
            for run, body in zip(message.runs, bodies, strict=True)
        )
        return replace(message, runs=runs, body=(self.states[place], self.through[place], self.history[place]))


def _cut_body(body: tuple[Row, ...], counts: RowCounts) -> tuple[Row, ...]:
    needed = {count[:2] for count in counts}
    return tuple([row for row in body if (row.edge, row.consumer) in needed])


def channels_of(message: Attach | Stop) -> list[Channel]:
    """Every single channel a message names."""
    return [
        (message.edge, producer, consumer)
        for block in message.channels
        for producer in block.producers
        for consumer in block.consumers
    ]


def is_among(row: Row, channels: tuple[Block, ...]) -> bool:
    """Whether a row is of one of these channels."""
    return (row.producer, row.consumer) in _pairs(channels)


@cache
def _pairs(channels: tuple[Block, ...]) -> frozenset[tuple[int, int]]:
    """Producer and consumer of every single channel."""
    return frozenset((p, c) for block in channels for p in block.producers for c in block.consumers)


def begin_controller(scenario: Scenario, last: View, number_from: int = 1, retained: int = 0) -> Controller:
    """A controller that goes on from view `last`, and knows what copies cost and which checkpoint is `retained`."""
    controller = Controller(last, scenario.at_once, number_from, scenario.lead)
    controller.step(CopyCosts(costs=scenario.copy_costs))
    if scenario.checkpoints:
        controller.step(CheckpointRetained(position=scenario.checkpoints[min(retained, len(scenario.checkpoints) - 1)]))
    return controller


def role_of(name: str) -> str:
    """The role of the node of this name: an end that is started again has the name of the first, and a number."""
    return name.partition(".")[0]


def _between(body: tuple[Row, ...], after: int, upto: int) -> tuple[Row, ...]:
    """The rows of a body, which is in order, with sequence numbers in (after, upto]."""
    if body and body[0].sn > after and body[-1].sn <= upto:
        return body
    return body[bisect_left(body, (after + 1,)) : bisect_left(body, (upto + 1,))]


def _number(row: Row) -> int:
    return row.sn


def _last_number(body: tuple[Row, ...]) -> int:
    return body[-1].sn


def _first(item: tuple[PendingWork, Any]) -> PendingWork:
    return item[0]
