"""The production machines and policies on a simulated cluster: a heap of (time, what happens then).

Nodes, controller and balancer are those of production; what is simulated are processors, links and the passing of time.
The estimator and the policy of balance are handed in: this package does not know them. A run of the same setting is the
same, event by event.

Granularity. A row is never an event, because 44 s of 32 sites are 31 million rows. Rows are numbered `batch_rows` at a
time, and a step of the aggregate takes as many positions. With the default a batch takes each site 12 ms: an eighth of
the pools of thesis 4.4, and of the interval between reports. Each destination has one run free of charge (rule
37), so the pools hold up to an eighth more than they should; a batch must be small beside the pools.

A batch costs a message and an ack for each producer and site. The 32 producers are alike, so the ingress may stand for
all of them: then it is 64 messages and not 2,048.
"""

from __future__ import annotations

import heapq
from collections import Counter, deque
from collections.abc import Callable
from typing import Any

from ...protocols.balance_messages import Move, Planned, PlanRound, Slow, Tick, ToBalancer
from ...protocols.balancer import Balancer, Estimator
from ...protocols.controller import Controller
from ...protocols.messages import PeerMessage, Publish, State, View
from ..dataflow import EGRESS
from .cluster_outcome import ClusterOutcome, ClusterSample
from .cluster_setting import ClusterSetting
from .counted_rows import RowDraw, draw_by_shares
from .timed_process import TimedProcess

PlanAnswer = Callable[[PlanRound], Planned]  # A policy of balance.


class StateLinks:
    """Transfers of state: a few at once in all, and one at a time from a site to another; the others wait in turn."""

    def __init__(self, setting: ClusterSetting) -> None:
        self._setting = setting
        self._waiting: deque[tuple[str, str, State]] = deque()
        self._active: set[tuple[str, str]] = set()

    def add(self, sender: str, to: str, state: State) -> None:
        """Let a transfer wait for its turn."""
        self._waiting.append((sender, to, state))

    def end(self, sender: str, to: str) -> None:
        """Record that a transfer has ended."""
        self._active.remove((sender, to))

    def begin(self) -> list[tuple[str, str, State, float]]:
        """The transfers that begin now, each with the time it takes."""
        begun = []
        took_s = self._setting.state_bytes / self._setting.state_bytes_per_s
        for transfer in list(self._waiting):
            sender, to, state = transfer
            if len(self._active) < self._setting.state_transfers_at_once and (sender, to) not in self._active:
                self._waiting.remove(transfer)
                self._active.add((sender, to))
                begun.append((sender, to, state, took_s))
        return begun


class TimedCluster:
    """A cluster of `setting`; with an estimator and a policy its load is balanced."""

    def __init__(
        self,
        setting: ClusterSetting,
        estimator: Estimator | None = None,
        policy: PlanAnswer | None = None,
        draw: RowDraw | None = None,
    ) -> None:
        self.setting = setting
        self.now_s = 0.0
        self.messages = 0
        self._heap: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._count = 0
        self._free_s: dict[tuple[str, str], float] = {}  # When each link has sent what it was given.
        self._state_links = StateLinks(setting)
        chosen = draw or draw_by_shares(setting.known_shares, setting.seed)
        self.processes = {name: TimedProcess(setting, name, self, chosen) for name in setting.plan.nodes}
        self.controller = Controller(setting.plan)
        self.policy = policy
        self.balancer: Balancer | None = None
        if estimator is not None and policy is not None:
            self.balancer = Balancer(setting.plan, estimator, frozenset({setting.producing}))
        self._to_balancer: deque[ToBalancer] = deque()
        self._is_balancing = False
        self._samples: list[ClusterSample] = []
        self._moved_s: list[float] = []
        self._sustained: tuple[float, View | None, float] = (0.0, None, 0.0)
        for process in self.processes.values():
            self.at(0.0, process.connect)
        self.at(setting.sample_s, self._sample)
        for number, process in enumerate(self.processes.values()):
            if self.balancer is not None and process.name != EGRESS:
                # Sites do not report in the same instant.
                self.at(setting.report_s * (1 + number / len(self.processes)), self._have_reported, process)

    def run(self, until_s: float) -> ClusterOutcome:
        """Let time pass up to `until_s`, and return what has happened until then."""
        heap = self._heap
        while heap and heap[0][0] <= until_s:
            self.now_s, _, action, arguments = heapq.heappop(heap)
            action(*arguments)
        self.now_s = until_s
        return ClusterOutcome(
            samples=tuple(self._samples),
            rounds=self.balancer.rounds if self.balancer else (),
            moved_s=tuple(self._moved_s),
            messages=self.messages,
        )

    @property
    def view(self) -> View:
        """The view of the controller."""
        return self.controller.view

    def sourced_rows(self) -> Counter[int]:
        """The rows for each partition that were produced until now."""
        total: Counter[int] = Counter()
        for process in self.processes.values():
            total.update(process.sourced)
        return total

    def consumed_rows(self) -> dict[int, int]:
        """The rows that the live copy of each partition has consumed until now, each row once."""
        placed = enumerate(self.view.copies[self.setting.consuming])
        return {p: self.processes[name].rows.get(p, 0) for p, (name,) in placed}

    # What processes ask for.

    def at(self, at_s: float, action: Callable[..., None], *arguments: Any) -> None:
        """Have `action` called at a time."""
        self._count += 1
        heapq.heappush(self._heap, (at_s, self._count, action, arguments))

    def post(self, sender: str, to: str, message: PeerMessage, size: int) -> None:
        """Send a message over the link from a node to another; links keep the order."""
        self.messages += 1
        link = (sender, to)
        sent_s = max(self.now_s, self._free_s.get(link, 0.0)) + size / self.setting.link_bytes_per_s
        self._free_s[link] = sent_s
        self.at(sent_s + self.setting.latency_s, self.processes[to].deliver, message)

    def post_state(self, sender: str, to: str, message: State) -> None:
        """Send state over the links that are for that."""
        self._state_links.add(sender, to, message)
        self._begin_transfers()

    def post_to_controller(self, message: Any) -> None:
        """Send a message to the controller."""
        self.at(self.now_s + self.setting.latency_s, self._control, message)

    def _begin_transfers(self) -> None:
        for sender, to, state, took_s in self._state_links.begin():
            self.at(self.now_s + took_s, self._end_transfer, sender, to)
            self.at(self.now_s + took_s + self.setting.latency_s, self.processes[to].deliver, state)

    def _end_transfer(self, sender: str, to: str) -> None:
        self._state_links.end(sender, to)
        self._begin_transfers()

    # The controller and the balancer beside it.

    def _control(self, message: Any) -> None:
        for effect in self.controller.step(message):
            assert isinstance(effect, Publish), f"nothing fails here, and the controller emits {effect}"
            for name in effect.to:
                self.at(self.now_s + self.setting.latency_s, self.processes[name].deliver, effect.view)
            if self.balancer is not None:
                self._balance(effect.view)

    def _have_reported(self, process: TimedProcess) -> None:
        process.report_when_free(self._report)
        self.at(self.now_s + self.setting.report_s, self._have_reported, process)

    def _report(self, process: TimedProcess) -> None:
        work = process.meter.take(process.node, self.now_s, self.setting.state_bytes)
        self._balance(Tick(at_s=self.now_s), work)

    def _balance(self, *messages: ToBalancer) -> None:
        """Step the balancer for each message, and for those that its effects cause, one after the other."""
        assert self.balancer is not None and self.policy is not None
        self._to_balancer.extend(messages)
        if self._is_balancing:
            return
        self._is_balancing = True
        while self._to_balancer:
            for effect in list[Any](self.balancer.step(self._to_balancer.popleft())):
                if isinstance(effect, PlanRound):
                    self._to_balancer.append(self.policy(effect))
                else:
                    assert isinstance(effect, Move | Slow)
                    self._moved_s += [self.now_s] if isinstance(effect, Move) else []
                    self._control(effect)
        self._is_balancing = False

    def _sample(self) -> None:
        if self._sustained[1] is not self.view or self.setting.slow_spells:
            self._sustained = (self.now_s, self.view, self.setting.sustained_rate(self.view, self.now_s))
        self._samples.append(
            ClusterSample(
                at_s=self.now_s,
                rows=sum(self.consumed_rows().values()),
                sustained_rate=self._sustained[2],
                moves=len(self._moved_s),
            )
        )
        self.at(self.now_s + self.setting.sample_s, self._sample)
