"""A simulated world: processes, FIFO links, the controller, and every order in which things may happen.

What may happen next is a list of *choices*:

- ("deliver", a, b): the head of the link from a to b arrives. A message to oneself is one like any other.
- ("answer", a, (stage, cohort)): the operator, sink or source of a finishes a piece of work.
- ("crash", a): the process of site a is gone.
- ("notice", a): the controller sees that the connection to a is closed.
- ("move", i): somebody asks the controller for the i-th move of the scenario.

A world is fixed by its scenario and the sequence of choices; there is no clock and no randomness here.

What a crash does to messages on the way: those to the dead vanish. Those from the dead stay on their
links, and each receiver takes any prefix of them before it learns of the death from the next view, and
must ignore the rest. This covers all that TCP may do: each connection loses a tail of its own, whether
the tail was never sent (a crash between two effects of one step) or was sent and is still on its way.
The ingress, the egress and the controller do not fail here, and sites only after the first view.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Any

from flux.protocols.controller import Controller
from flux.protocols.machine import Refused
from flux.protocols.messages import Closed, Effect, Hello, Lost, Publish

from .dataflow import Scenario
from .invariants import Checker, Violated, all_checkers
from .process import CONTROLLER, Outgoing, Process, Work
from .story import describe

Choice = tuple[str, str, str | int | Work]
NO_DETAIL = ""


class World:
    """One run of `scenario`, choice by choice."""

    def __init__(self, scenario: Scenario, checkers: Iterable[Checker] | None = None, record: bool = False) -> None:
        self.scenario = scenario
        self.checkers = all_checkers() if checkers is None else tuple(checkers)
        self.processes = {node: Process(scenario, node, self.checkers) for node in scenario.nodes}
        self.crashed: set[str] = set()
        self.lost: tuple[tuple[int, int], ...] = ()
        self.trace: list[str] | None = [] if record else None
        self.links: dict[tuple[str, str], deque[Any]] = {}
        # The enabled choices in a list and their places in it: a random one is drawn in one step, and
        # the order depends on nothing but what has happened.
        self.choices: list[Choice] = []
        self._places: dict[Choice, int] = {}
        self.controller = Controller(scenario.plan, scenario.at_once)
        for index in range(len(scenario.moves)):
            self._enable(("move", CONTROLLER, index))
        for node in scenario.nodes:
            self._publish(self.controller.step(Hello(node=node)))

    def do(self, choice: Choice) -> None:
        """Let `choice` happen; raise `Violated` if an invariant does not survive it."""
        kind, name, detail = choice
        try:
            if kind == "deliver":
                self._deliver(name, str(detail))
            elif kind == "answer":
                assert isinstance(detail, tuple)
                self._answer(name, detail)
            elif kind == "crash":
                self.crash(name)
            elif kind == "move":
                assert isinstance(detail, int)
                self._move(detail)
            else:
                self._notice(name)
        except Refused as error:
            raise Violated(f"no refusal between correct nodes: {error}") from error
        except (AssertionError, KeyError) as error:
            raise Violated(f"no assertion fails: {error!r}") from error

    def crash(self, name: str) -> None:
        """The process of site `name` is gone; the controller may notice from now on."""
        self._note("crash", name, NO_DETAIL)
        self.crashed.add(name)
        for work in self.processes[name].work:
            self._disable(("answer", name, work))
        for link in [link for link in self.links if link[1] == name]:
            if self.links.pop(link):
                self._disable(("deliver", *link))
        self._enable(("notice", name, NO_DETAIL))

    def live(self) -> list[Process]:
        """The processes that have not crashed."""
        return [process for name, process in self.processes.items() if name not in self.crashed]

    def may_crash(self) -> list[str]:
        """The sites that may crash next."""
        if self.lost or len(self.crashed) >= self.scenario.crashes:
            return []
        return [name for name in self.scenario.nodes[1:-1] if name not in self.crashed]

    def at_rest(self) -> None:
        """Check what must hold when nothing is left to happen."""
        assert not self.choices, f"{len(self.choices)} choices are left"
        if not self.lost:
            for checker in self.checkers:
                checker.at_rest(self.scenario, self.live(), self.controller.view)

    def finish(self) -> None:
        """Go on with the oldest choice until nothing is left, then check."""
        while self.choices:
            self.do(self.choices[0])
        self.at_rest()

    def _deliver(self, sender: str, to: str) -> None:
        link = self.links[sender, to]
        message = link.popleft()
        if not link:
            self._disable(("deliver", sender, to))
        self._note("deliver", sender, to, message)
        if to == CONTROLLER:
            self._publish(self.controller.step(message))
            return
        process = self.processes[to]
        before = len(process.work)
        out = process.deliver(message)
        if len(process.work) > before:
            self._enable_work(process)
        self._post(to, out)

    def _answer(self, name: str, work: Work) -> None:
        process = self.processes[name]
        self._disable(("answer", name, work))
        self._note("answer", name, work, process.work[work])
        out = process.answer(work)
        if process.work:
            self._enable_work(process)
        self._post(name, out)

    def _notice(self, name: str) -> None:
        self._disable(("notice", name, NO_DETAIL))
        self._note("notice", name, NO_DETAIL)
        if self.links.pop((name, CONTROLLER), None):
            self._disable(("deliver", name, CONTROLLER))
        self._publish(self.controller.step(Closed(node=name)))

    def _move(self, index: int) -> None:
        self._disable(("move", CONTROLLER, index))
        self._note("move", CONTROLLER, index, self.scenario.moves[index])
        self._publish(self.controller.step(self.scenario.moves[index]))

    def _publish(self, effects: Iterable[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Publish):
                for checker in self.checkers:
                    checker.published(effect.view)
                alive = [node for node in effect.view.nodes if effect.view.alive(node)]
                self._post(CONTROLLER, [(node, effect.view) for node in alive])
            else:
                assert isinstance(effect, Lost), f"the controller has no business with {effect}"
                self.lost = effect.partitions
                self._note("lost", CONTROLLER, NO_DETAIL, effect.partitions)
                self.choices.clear()
                self._places.clear()

    def _post(self, sender: str, out: Outgoing) -> None:
        for to, message in out:
            if to in self.crashed:
                continue
            link = self.links.get((sender, to))
            if link is None:
                link = self.links[sender, to] = deque()
            if not link:
                self._enable(("deliver", sender, to))
            link.append(message)
            if self.trace is not None:
                self._note("send", sender, to, message)

    def _enable_work(self, process: Process) -> None:
        for work in process.work:
            choice: Choice = ("answer", process.name, work)
            if choice not in self._places:
                self._enable(choice)

    def _enable(self, choice: Choice) -> None:
        self._places[choice] = len(self.choices)
        self.choices.append(choice)

    def _disable(self, choice: Choice) -> None:
        """Remove a choice; the last one takes its place."""
        place = self._places.pop(choice)
        last = self.choices.pop()
        if place < len(self.choices):
            self.choices[place] = last
            self._places[last] = place

    def _note(self, kind: str, name: str, detail: str | int | Work, what: Any = None) -> None:
        if self.trace is not None:
            self.trace.append(describe(kind, name, detail, what))
