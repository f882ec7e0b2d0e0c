"""One process of a simulated cluster: a production `Node`, and a processor that does one step at a time.

The node's effects are carried out as a shell would. A `Consume` is a job: it takes rows x cost / speed, and the node
gets its `Consumed` when that time has passed. Messages are taken meanwhile. Jobs of the producers come first: they are
short, and a production system would not let them wait for a step of the aggregate either. State that is cut or
installed takes the processor too, and is counted as moving.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple, Protocol

from ...protocols.egress import Egress
from ...protocols.ingress import Ingress
from ...protocols.machine import Refused
from ...protocols.messages import (
    Connected,
    Consume,
    Consumed,
    Data,
    Drop,
    EndOfSource,
    Install,
    PeerMessage,
    Position,
    Pull,
    ReportRefused,
    Send,
    SendToController,
    Sourced,
    State,
    View,
)
from ...protocols.node import Node
from ...protocols.pooler import Pooler
from ..dataflow import EGRESS, INGRESS
from .cluster_setting import ClusterSetting
from .counted_rows import CountedRows, RowDraw, add_up, draw_by_room, select
from .timed_meter import TimedMeter

TRANSFER_POOLS_MAX = 64  # Pools of rows that a producer may buffer for a copy in transfer, as in production.
INGRESS_BATCHES = 4  # The ingress is never what the others wait for.
STEP_AIM_S = 0.05  # The length of a step at most, as in production (rule 36).
SINK_S = 0.05  # Rows are durable at the sink after this.


class Clock(Protocol):
    """What a process asks of the cluster around it: the time, a moment of its own, and the links."""

    now_s: float

    def at(self, at_s: float, action: Callable[..., None], *arguments: Any) -> None:
        """Have `action` called at a time."""

    def post(self, sender: str, to: str, message: PeerMessage, size: int) -> None:
        """Send a message of so many bytes over the link to a node."""

    def post_state(self, sender: str, to: str, message: State) -> None:
        """Send state over the links that are for that."""

    def post_to_controller(self, message: Any) -> None:
        """Send a message to the controller."""


class MovingJob(NamedTuple):
    """State that is cut or installed, and what follows."""

    then: Callable[[State], None]
    state: State


class TimedProcess:
    """Node `name` of a cluster."""

    def __init__(self, setting: ClusterSetting, name: str, clock: Clock, draw: RowDraw) -> None:
        self.setting = setting
        self.name = name
        self.clock = clock
        self.draw = draw
        self.node = Node(name, list(self._machines()))
        self.meter = TimedMeter()
        self.rows: dict[int, int] = {}  # The state of the aggregate's copies here: the rows that each has consumed.
        self.sourced: Counter[int] = Counter()  # The rows for each partition that were produced here.
        self._chance = random.Random(f"{setting.seed} {name}")
        self._moving: list[MovingJob] = []
        self._jobs: list[Consume] = []
        self._is_at_work = False
        self._report: Callable[[TimedProcess], None] | None = None

    def connect(self) -> None:
        """Greet the controller."""
        self._carry_out(self.node.step(Connected()))

    def deliver(self, message: PeerMessage | View) -> None:
        """Take a message from a link."""
        if type(message) is State:
            self._moving.append(MovingJob(self._take, message))
            self._begin()
        else:
            self._take(message)

    def report_when_free(self, report: Callable[[TimedProcess], None]) -> None:
        """Call `report` now, or after the step in progress: a process reports between two steps."""
        if self._is_at_work:
            self._report = report
        else:
            report(self)

    def _take(self, message: PeerMessage | View) -> None:
        self._carry_out(self.node.step(message))

    def _machines(self) -> list[Ingress | Pooler | Egress]:
        setting = self.setting
        pool, step = setting.producer_pool_rows, setting.batch_rows
        most = TRANSFER_POOLS_MAX * pool
        if self.name == EGRESS:
            return [Egress(self.name, setting.consuming + 1)]
        if self.name != INGRESS:
            aggregate = Pooler(self.name, setting.consuming, pool, most, step)
            if not setting.pinned_producers:
                return [aggregate]
            return [Pooler(self.name, setting.producing, pool, most, step, setting.divided), aggregate]
        if setting.pinned_producers:
            return [Ingress(self.name, max(INGRESS_BATCHES * step, pool * setting.sites))]
        return [Ingress(self.name, pool, transfer_rows_max=most, divided=setting.divided)]

    def _carry_out(self, effects: list[Any]) -> None:
        for effect in effects:
            kind = type(effect)
            if kind is Send:
                self._send(effect)
            elif kind is Consume:
                if self.name == EGRESS:
                    self.clock.at(self.clock.now_s + SINK_S, self._make_durable, effect)
                else:
                    self._jobs.append(effect)
            elif kind is Pull:
                self.clock.at(self.clock.now_s, self._source, effect)
            elif kind is Install:
                self.rows[effect.partition] = effect.body
            elif kind is Drop:
                self.rows.pop(effect.partition, None)
            elif kind is SendToController:
                self.clock.post_to_controller(effect.message)
            elif kind is ReportRefused:
                raise Refused(effect.text)
        self._begin()

    def _send(self, send: Send) -> None:
        message = send.message
        if type(message) is Data:
            body = select(message.bodies, send.channels, message.after, message.upto)
            data = Data(
                sender=message.sender,
                view=message.view,
                edge=message.edge,
                lane_id=message.lane_id,
                after=message.after,
                upto=message.upto,
                bodies=(body,),
            )
            rows = sum([sum(part.rows.values()) for part in body])
            self.clock.post(self.name, send.to, data, rows * self.setting.row_bytes)
        elif type(message) is State:
            view = self.node.view
            assert view is not None
            [partition] = [standby.partition for standby in view.standby if standby.version == message.version]
            state = replace(message, body=self.rows[partition])

            def send_state(cut: State) -> None:
                self.clock.post_state(self.name, send.to, cut)

            self._moving.append(MovingJob(send_state, state))
        else:
            self.clock.post(self.name, send.to, message, 0)

    # The source and the sink.

    def _source(self, pull: Pull) -> None:
        setting = self.setting
        upto = pull.after + setting.batch_rows
        if setting.source_rows is not None:
            upto = min(upto, setting.source_rows)
        if upto == pull.after:
            self._carry_out(self.node.step(EndOfSource()))
            return
        rows = upto - pull.after
        if setting.pinned_producers:
            share, more = divmod(rows, setting.sites)
            drawn: Mapping[int, int] = {producer: share + (producer < more) for producer in range(setting.sites)}
        else:
            drawn = self._drawn(0, rows, upto)
        sourced = Sourced(
            after=pull.after,
            upto=upto,
            rows=rows,
            counts=tuple([(0, partition, count) for partition, count in drawn.items() if count]),
            body=(CountedRows(0, pull.after, upto, drawn),),
        )
        self._carry_out(self.node.step(sourced))

    def _make_durable(self, work: Consume) -> None:
        self._carry_out(self.node.step(Consumed(stage=work.stage, cohort=work.cohort, upto=work.upto, rows=0, body=())))

    # The processor.

    def _begin(self) -> None:
        """Begin a job, if there is one and the processor is free."""
        if self._is_at_work or not (self._moving or self._jobs):
            return
        self._is_at_work = True
        now_s = self.clock.now_s
        if self._moving:
            moving = self._moving.pop(0)
            end_s = self.setting.finish(self.name, now_s, self.setting.state_cost_s)
            self.clock.at(end_s, self._finish_moving, moving, end_s - now_s)
            return
        job = min(self._jobs, key=lambda each: each.stage)
        self._jobs.remove(job)
        rows: Counter[int] = Counter()
        for frame in job.frames:
            after, upto = (job.after, job.upto) if job.ordered else (frame.after, frame.upto)
            add_up(frame.body, frame.channels, after, upto, rows)
        end_s = self.setting.finish(self.name, now_s, self._work_s(job.stage, rows.total()))
        self.clock.at(end_s, self._finish, job, rows, end_s - now_s)

    def _work_s(self, stage: int, rows: int) -> float:
        if stage != self.setting.consuming:
            return rows * self.setting.produce_s
        deviation_s = self.setting.row_deviation_s * math.sqrt(rows)
        return max(0.0, rows * self.setting.consumed_row_s + self._chance.gauss(0, 1) * deviation_s)

    def _finish_moving(self, job: MovingJob, took_s: float) -> None:
        self.meter.note_moving(took_s)
        self._is_at_work = False
        job.then(job.state)
        self._end_step()

    def _finish(self, job: Consume, rows: Counter[int], took_s: float) -> None:
        self.meter.note_step(self.node, job, rows, took_s)
        self._is_at_work = False
        if job.stage != self.setting.consuming:
            done = self._produce(job, rows)
        else:
            for partition, count in rows.items():
                self.rows[partition] = self.rows.get(partition, 0) + count
            most = self._next_step(job, took_s)
            done = Consumed(stage=job.stage, cohort=job.cohort, upto=job.upto, rows=0, most=most, body=())
        self._carry_out(self.node.step(done))
        self._end_step()

    def _end_step(self) -> None:
        report, self._report = self._report, None
        if report is not None:
            report(self)
        self._begin()

    def _next_step(self, job: Consume, took_s: float) -> Position:
        """The positions that the next step may take, so that it takes no longer than it should (rule 36)."""
        if not job.frames or took_s <= STEP_AIM_S:
            return 0
        positions = max(frame.upto for frame in job.frames) - min(frame.after for frame in job.frames)
        return max(16, int(positions * STEP_AIM_S / took_s))

    def _produce(self, job: Consume, rows: Counter[int]) -> Consumed:
        [(producer, count)] = rows.items() if rows else [(min(job.partitions), 0)]
        drawn = self._drawn(producer, count, job.upto)
        return Consumed(
            stage=job.stage,
            cohort=job.cohort,
            upto=job.upto,
            rows=count,
            counts=tuple([(1, partition, n) for partition, n in drawn.items()]),
            body=(CountedRows(producer, job.after, job.upto, drawn),),
        )

    def _drawn(self, producer: int, rows: int, upto: Position) -> Mapping[int, int]:
        """The rows that a producer makes, by partition."""
        drawn = self._draw_by_room(rows) if self.setting.by_free_space else self.draw(producer, rows, upto)
        self.sourced.update(drawn)
        return drawn

    def _draw_by_room(self, rows: int) -> Mapping[int, int]:
        machine, names = self.node.machines[self.setting.producing], self.setting.names
        assert not isinstance(machine, Egress)
        buffer, edge = machine.prod.buffer, self.setting.producing
        part = buffer.bound_rows // len(names)
        rooms = [part - buffer.kept_for((edge, name)) if (edge, name) in buffer.floors else part for name in names]
        places = [range(number, self.setting.partitions, len(names)) for number in range(len(names))]
        return draw_by_room(places, rooms, rows, self._chance)
