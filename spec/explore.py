"""Exhaustive exploration: every state a small world can reach, with a crash at every step.

The states are those of `World`, in a compact form. A process is a function of its own state and of what
it is given, so each (process state, message) is stepped once, by the production machines, and remembered;
a world is a row of small numbers that stand for process states and contents of links. The search is
depth-first, so that the path to a violation is at hand, and it never enters a state twice.

Reduction: *sleep sets* (Godefroid 1996). Two choices at different nodes are independent: each changes its
own node, takes the head of a link to it, and appends to links from it; so neither enables or disables the
other, and both orders give the same state. A crash counts as a choice at its site and at the
controller, because a world has a budget of crashes; it empties the links to its site, and whether a
message is posted to them before (and vanishes) or after (and is not posted) is the same state as well. When a
choice has been explored, and a later sibling is independent of it, exploring it again behind the sibling
gives only states already seen: there it sleeps. Sleep sets alone leave out transitions, never states, so
every reachable state is still checked; and they use nothing but the locality of processes, which no bug
in a machine can break. A state met again with a smaller sleep set is entered again for the difference.

One more: messages from a node that is dead in the receiver's view are delivered at once when that changes
nothing. They commute with all else because the dead stay dead.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from flux.protocols.controller import Controller
from flux.protocols.machine import Refused
from flux.protocols.messages import Closed, Connected, Publish, View
from flux.protocols.node import Node

from .dataflow import Scenario
from .invariants import Checker, Violated, all_checkers
from .process import CONTROLLER, Process, Work
from .world import NO_DETAIL, Choice

GlobalState = tuple[int, ...]
EMPTY = 0  # The number of the empty link.
COHORTS_MAX = 8  # Versions of copies that a small world may reach; more is an error, not a shorter search.


@dataclass(frozen=True)
class Explored:
    """What an exploration covered; `violation` and the choices that lead to it, if there is one."""

    states: int
    transitions: int
    ends: int
    steps_of_machines: int
    seconds: float
    violation: Violated | None = None
    path: tuple[Choice, ...] = ()

    def __str__(self) -> str:
        found = f"; {self.violation}" if self.violation else ""
        return (
            f"{self.states:,} states, {self.transitions:,} transitions, {self.ends:,} ends, "
            f"{self.steps_of_machines:,} steps of machines, {self.seconds:.1f} s{found}"
        )


class _Numbers:
    """Values and the small numbers that stand for them."""

    def __init__(self) -> None:
        self.values: list[Any] = []
        self._numbers: dict[Any, int] = {}

    def number(self, key: Any, value: Any) -> int:
        known = self._numbers.get(key)
        if known is None:
            known = self._numbers[key] = len(self.values)
            self.values.append(value)
        return known


class Explorer:
    """Every state of `scenario`.

    A state is a tuple: one number per process (0 when it has crashed), one for the controller, one per
    link, then the moves asked for and the crashes not yet noticed, as bits.
    """

    def __init__(self, scenario: Scenario, checkers: Iterable[Checker] | None = None) -> None:
        self.scenario = scenario
        self.checkers = all_checkers() if checkers is None else tuple(checkers)
        self.nodes = scenario.nodes
        names = (*self.nodes, CONTROLLER)
        ends = {0, len(self.nodes) - 1}  # Ingress and egress do not talk to each other or themselves.
        self.links = [(a, b) for b in range(len(self.nodes)) for a in range(len(names)) if not {a, b} <= ends]
        self.links += [(a, len(self.nodes)) for a in range(1, len(self.nodes) - 1)]
        self._link_places = {link: i for i, link in enumerate(self.links)}
        self._first_link = len(self.nodes) + 1
        self._processes = _Numbers()
        self._processes.number(None, None)
        self._messages = _Numbers()
        self._contents = _Numbers()
        self._contents.number((), ())
        self._controllers = _Numbers()
        self._lost: list[bool] = []  # By controller number: whether a partition has no copy left.
        self._steps: dict[tuple[int, int], tuple[int, tuple[tuple[int, int], ...]]] = {}
        self._answers: dict[tuple[int, Work], tuple[int, tuple[tuple[int, int], ...]]] = {}
        self._appended: dict[tuple[int, int], int] = {}
        self._work_bits: list[int] = [0]  # By process number: the answers it has outstanding.
        self._list_choices()

    def _list_choices(self) -> None:
        """Number all choices, and say which are independent of which, as bits."""
        sites = range(1, len(self.nodes) - 1)
        self.choices: list[Choice] = []
        places: list[set[int]] = []
        controller = len(self.nodes)
        names = (*self.nodes, CONTROLLER)
        for a, b in self.links:
            self.choices.append(("deliver", names[a], names[b]))
            places.append({b})
        self._answer_bits: dict[tuple[int, Work], int] = {}
        for node in range(len(self.nodes)):
            is_site = 0 < node < len(self.nodes) - 1
            for stage in range(self.scenario.stages + 2):
                for cohort in range(COHORTS_MAX if is_site else 1):
                    self._answer_bits[node, (stage, cohort)] = len(self.choices)
                    self.choices.append(("answer", names[node], (stage, cohort)))
                    places.append({node})
        self._move_bits = {}
        for index in range(len(self.scenario.moves)):
            self._move_bits[index] = len(self.choices)
            self.choices.append(("move", CONTROLLER, index))
            places.append({controller})
        self._crash_bits = {}
        self._notice_bits = {}
        for node in sites:
            self._crash_bits[node] = len(self.choices)
            self.choices.append(("crash", names[node], NO_DETAIL))
            places.append({node, controller})
            self._notice_bits[node] = len(self.choices)
            self.choices.append(("notice", names[node], NO_DETAIL))
            places.append({controller})
        self._crashes = sum(1 << bit for bit in self._crash_bits.values())
        self._independent = [sum(1 << j for j, other in enumerate(places) if not (other & own)) for own in places]
        self._indices = {name: i for i, name in enumerate(names)}

    # --- the search ---------------------------------------------------------------------------------

    def run(self, states_max: int = 3_000_000) -> Explored:
        """Visit every reachable state; stop at the first violation."""
        started = time.perf_counter()
        start = self._start()
        asleep: dict[GlobalState, int] = {start: 0}
        transitions = ends = 0
        path: list[int] = []
        violation: Violated | None = None
        # One entry per state on the path: the state, what is left to do there, what sleeps there.
        stack: list[tuple[GlobalState, int, int]] = [(start, self._enabled(start), 0)]
        try:
            while stack:
                state, todo, sleep = stack.pop()
                if not todo:
                    if path:
                        path.pop()
                    continue
                bit = todo & -todo
                index = bit.bit_length() - 1
                stack.append((state, todo ^ bit, sleep | bit))
                path.append(index)
                after = self._successor(state, index)
                transitions += 1
                sleep_after = sleep & self._independent[index]
                known = asleep.get(after)
                if known is None:
                    asleep[after] = sleep_after
                    enabled = self._enabled(after)
                    if not enabled & ~self._crashes:
                        ends += 1
                        self._at_rest(after)
                    todo = enabled & ~sleep_after
                    if len(asleep) > states_max:
                        raise MemoryError(f"more than {states_max:,} states; choose a smaller world")
                else:
                    # What slept on every visit so far and is awake now has not been explored from here.
                    todo = known & ~sleep_after
                    sleep_after &= known
                    if todo:
                        asleep[after] = sleep_after
                        todo &= self._enabled(after)
                stack.append((after, todo, sleep_after))
        except Refused as error:
            violation = Violated(f"no refusal between correct nodes: {error}")
        except AssertionError as error:
            violation = Violated(f"no assertion fails: {error}")
        except Violated as error:
            violation = error
        return Explored(
            states=len(asleep),
            transitions=transitions,
            ends=ends,
            steps_of_machines=len(self._steps) + len(self._answers),
            seconds=time.perf_counter() - started,
            violation=violation,
            path=tuple(self.choices[i] for i in path),
        )

    def nodes_seen(self) -> list[Node]:
        """Every state of a node that was reached, for tests that try every message in it."""
        return [process.node for process in self._processes.values if process is not None]

    def messages_seen(self) -> list[Any]:
        """Every message that was on a link."""
        return list(self._messages.values)

    # --- one step -----------------------------------------------------------------------------------

    def _start(self) -> GlobalState:
        controller = Controller(self.scenario.plan, self.scenario.at_once)
        views: list[View] = []
        for node in self.nodes:
            [(_, hello)] = Process(self.scenario, node, ()).deliver(Connected())
            effects = controller.step(hello)
            views.extend(effect.view for effect in effects if isinstance(effect, Publish))
        processes = [self._process_number(Process(self.scenario, node, self.checkers)) for node in self.nodes]
        self._controller_number(controller)
        state = [*processes, 0, *([EMPTY] * len(self.links)), 0, 0]
        for view in views:
            self._post_view(state, view)
        return tuple(state)

    def _enabled(self, state: GlobalState) -> int:
        """The choices a state allows, as bits."""
        if self._lost[state[len(self.nodes)]]:
            return 0
        bits, bit = 0, 1
        for content in state[self._first_link : -2]:
            if content:
                bits |= bit
            bit <<= 1
        crashed = 0
        for process in state[: len(self.nodes)]:
            bits |= self._work_bits[process]
            crashed += process == 0
        unnoticed = state[-1]
        for index, move in self._move_bits.items():
            if not state[-2] >> index & 1:
                bits |= 1 << move
        for site, notice in self._notice_bits.items():
            if unnoticed >> site & 1:
                bits |= 1 << notice
            if crashed < self.scenario.crashes and state[site]:
                bits |= 1 << self._crash_bits[site]
        return bits

    def _successor(self, state: GlobalState, index: int) -> GlobalState:
        kind, name, detail = self.choices[index]
        after = list(state)
        if kind == "deliver":
            self._deliver(after, index)
        elif kind == "answer":
            assert isinstance(detail, tuple)
            self._answer(after, self._indices[name], detail)
        elif kind == "move":
            assert isinstance(detail, int)
            after[-2] |= 1 << detail
            self._control(after, self.scenario.moves[detail])
        elif kind == "crash":
            self._crash(after, self._indices[name])
        else:
            self._notice(after, self._indices[name])
        return tuple(after)

    def _deliver(self, after: list[int], index: int) -> None:
        to = self.links[index][1]
        place = self._first_link + index
        content = self._contents.values[after[place]]
        after[place] = self._contents.number(content[1:], content[1:])
        if to == len(self.nodes):
            self._control(after, self._messages.values[content[0]])
            return
        after[to], out = self._step(after[to], content[0])
        self._post(after, out)
        if isinstance(self._messages.values[content[0]], View):
            self._drop_what_the_dead_said(after, to)

    def _drop_what_the_dead_said(self, after: list[int], to: int) -> None:
        view = self._processes.values[after[to]].node.view
        for name in view.dead:
            place = self._first_link + self._link_places[self._indices[name], to]
            for message in self._contents.values[after[place]]:
                if self._step(after[to], message) != (after[to], ()):
                    return
            after[place] = EMPTY

    def _answer(self, after: list[int], node: int, work: Work) -> None:
        known = self._answers.get((after[node], work))
        if known is None:
            process = self._processes.values[after[node]].clone()
            out = process.answer(work)
            known = self._answers[after[node], work] = self._outcome(node, process, out)
        after[node] = known[0]
        self._post(after, known[1])

    def _crash(self, after: list[int], node: int) -> None:
        after[node] = 0
        after[-1] |= 1 << node
        for i, link in enumerate(self.links):
            if link[1] == node:
                after[self._first_link + i] = EMPTY

    def _notice(self, after: list[int], node: int) -> None:
        after[-1] &= ~(1 << node)
        after[self._first_link + self._link_places[node, len(self.nodes)]] = EMPTY
        self._control(after, Closed(node=self.nodes[node]))

    def _control(self, after: list[int], message: Any) -> None:
        """One step of the controller."""
        place = len(self.nodes)
        controller = self._controllers.values[after[place]].clone()
        effects = controller.step(message)
        after[place] = self._controller_number(controller)
        for effect in effects:
            if isinstance(effect, Publish):
                for checker in self.checkers:
                    checker.published(effect.view)
                self._post_view(after, effect.view)

    def _step(self, number: int, message: int) -> tuple[int, tuple[tuple[int, int], ...]]:
        known = self._steps.get((number, message))
        if known is None:
            process = self._processes.values[number].clone()
            out = process.deliver(self._messages.values[message])
            known = self._outcome(self._indices[process.name], process, out)
            self._steps[number, message] = known
        return known

    def _outcome(self, node: int, process: Process, out: Any) -> tuple[int, tuple[tuple[int, int], ...]]:
        """A process and what it sends as numbers: its own, and (link, message) for each message."""
        posts = tuple(
            (self._link_places[node, self._indices[to]], self._messages.number(message, message)) for to, message in out
        )
        return self._process_number(process), posts

    def _process_number(self, process: Process) -> int:
        number = self._processes.number(process.key(), process)
        if number == len(self._work_bits):
            node = self._indices[process.name]
            self._work_bits.append(sum(1 << self._answer_bits[node, work] for work in process.work))
        return number

    def _controller_number(self, controller: Controller) -> int:
        number = self._controllers.number(controller.key(), controller)
        if number == len(self._lost):
            self._lost.append(bool(controller.view.lost()))
        return number

    def _post(self, after: list[int], posts: tuple[tuple[int, int], ...]) -> None:
        for link, message in posts:
            to = self.links[link][1]
            if to < len(self.nodes) and not after[to]:
                continue  # To the dead.
            place = self._first_link + link
            known = self._appended.get((after[place], message))
            if known is None:
                content = (*self._contents.values[after[place]], message)
                known = self._contents.number(content, content)
                self._appended[after[place], message] = known
            after[place] = known

    def _post_view(self, after: list[int], view: View) -> None:
        message = self._messages.number(view, view)
        controller = len(self.nodes)
        for node, name in enumerate(self.nodes):
            if view.alive(name):
                self._post(after, ((self._link_places[controller, node], message),))

    def _at_rest(self, state: GlobalState) -> None:
        if self._lost[state[len(self.nodes)]]:
            return
        live = [self._processes.values[number] for number in state[: len(self.nodes)] if number]
        view = self._controllers.values[state[len(self.nodes)]].view
        for checker in self.checkers:
            checker.at_rest(self.scenario, live, view)
