"""Memo of a world in small numbers: each step of a process is computed once by the production machines.

A process is a function of its own state and of its input. So each (process, event) is stepped once; an
*event* is a message that is taken from a link, or a piece of work that is finished. Processes, messages and
the rest are numbered in order of appearance, and a number stands for its value from then on.

A *cell* is a process together with the links that lead to it: the whole state of one node. A world is a row of cells,
one for each node and the last for the controller, which is a process like any other here. An event changes the
cell of its own node and appends to others; nothing else changes.

Not here: crashes, which concern two cells at once, except for the controller's reaction to one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Generic, NamedTuple, TypeVar

from ..protocols import messages
from ..protocols.change_messages import Ask, AttemptOverdue, Reconfigure, ReportChange
from ..protocols.machine import Fenced, Refused
from ..protocols.messages import Closed, Connected, Lost, Move, Publish, Retire, Slow, View
from .dataflow import Scenario
from .process import CONTROLLER, Checker, Outgoing, PendingWork, SimulatedProcess, Violated, Watch, begin_controller
from .world import CHUNKS, Choice

MemoState = tuple[int, ...]  # A cell for each node, then that of the controller.
Posts = tuple[tuple[int, int], ...]  # The receiver, and the number of the batch of messages.
Links = tuple[tuple[int, ...], ...]  # By sender: the numbers of the messages in flight.

DEAD = 0  # The cell of a node that has crashed.
# The stages of pieces of work that are a move, say which sites are slow, or retire the copies of one.
MOVE, SLOW, RETIRE, CHANGE, OVERDUE = -1, -2, -3, -4, -5
_REQUESTS = {MOVE: "move", SLOW: "slow", RETIRE: "retire", CHANGE: "change", OVERDUE: "overdue"}

T = TypeVar("T")


class MemoNumbers(Generic[T]):
    """Values, and the small numbers that stand for them."""

    def __init__(self) -> None:
        self.values: list[T] = []
        self._numbers: dict[Any, int] = {}

    def __len__(self) -> int:
        return len(self.values)

    def of(self, key: Any, value: T) -> int:
        known = self._numbers.get(key)
        if known is None:
            known = self._numbers[key] = len(self.values)
            self.values.append(value)
        return known


class Mail(NamedTuple):
    """A message in flight, with the numbers of both ends."""

    sender: int
    to: int
    message: Any


class Cell(NamedTuple):
    """A process and the links that lead to it."""

    process: int
    links: Links


class Action(NamedTuple):
    """The cell after an event, and what is sent to others; or the violation."""

    event: int
    cell: int
    posts: Posts
    violation: Violated | None = None


class Keeper:
    """The controller as a process: requests that have not been made yet are its work."""

    name = CONTROLLER

    def __init__(self, scenario: Scenario, watch: Watch) -> None:
        self.scenario = scenario
        self.controller = begin_controller(scenario, scenario.plan)
        self.watch = watch
        self.lost: tuple[tuple[int, int], ...] = ()
        self.work: dict[PendingWork, Move | Slow | Retire | Reconfigure | AttemptOverdue] = {
            (MOVE, index): move for index, move in enumerate(scenario.moves)
        }
        self.work |= {(SLOW, index): Slow(nodes=nodes) for index, nodes in enumerate(scenario.slow)}
        if scenario.changes:
            self.work[CHANGE, 0] = scenario.changes[0]

    @property
    def view(self) -> View:
        return self.controller.view

    def deliver(self, message: Any) -> Outgoing:
        before = self.controller.view
        try:
            effects = self.controller.step(message)
        except Fenced:
            return []
        out: Outgoing = []
        for effect in effects:
            if isinstance(effect, Publish):
                for check in self.watch.published:
                    check(self.scenario, before, effect.view)
                out.extend((node, effect.view) for node in effect.to)
            elif isinstance(effect, Ask):
                out.extend((node, effect.message) for node in effect.to)
            elif isinstance(effect, ReportChange):
                continue
            else:
                assert isinstance(effect, Lost), f"the controller cannot emit {effect}"
                self.lost = effect.partitions
        attempt = self.controller.changes.attempt
        if attempt is not None and self.controller.waiting:
            self.work[OVERDUE, attempt.number] = AttemptOverdue(number=attempt.number)
        return out

    def answer(self, which: PendingWork) -> Outgoing:
        message = self.work.pop(which)
        for index, node in enumerate(self.scenario.retires):
            if isinstance(message, Slow) and node in message.nodes:
                self.work[RETIRE, index] = Retire(node=node)
        if which[0] == CHANGE and (following := self.scenario.changes[which[1] + 1 : which[1] + 2]):
            self.work[CHANGE, which[1] + 1] = following[0]
        return self.deliver(message)

    def clone(self) -> Keeper:
        twin = object.__new__(Keeper)
        twin.__dict__.update(self.__dict__)
        twin.controller = self.controller.clone()
        twin.work = dict(self.work)
        return twin

    def key(self) -> tuple[Any, ...]:
        return (self.controller.key(), self.lost, tuple(self.work))


class Compact:
    """The processes, messages and cells of `scenario`, as far as they were needed.

    Events are numbers too: not negative for a message, negative for a piece of work.
    """

    def __init__(self, scenario: Scenario, checkers: Iterable[Checker]) -> None:
        self.scenario = scenario
        self.watch = Watch(checkers)
        # All possible senders; a site that sends state in chunks does so by a link of its own.
        self.names = (*scenario.nodes, CONTROLLER, *(node + CHUNKS for node in scenario.nodes if scenario.chunks))
        self.controller = len(scenario.nodes)
        self.sites = range(1, self.controller - 1)
        self.index = {name: i for i, name in enumerate(self.names)}
        self.mail: MemoNumbers[Mail] = MemoNumbers()
        self.batches: MemoNumbers[tuple[int, ...]] = MemoNumbers()
        self.processes: MemoNumbers[SimulatedProcess | Keeper | None] = MemoNumbers()
        self.processes.of(None, None)
        self.nodes: list[int] = [-1]  # By process: its node.
        self.work: list[tuple[int, ...]] = [()]  # By process: the events that are pieces of work.
        self.cells: MemoNumbers[Cell] = MemoNumbers()
        self.cells.of(None, Cell(0, ()))
        self.known_actions: list[tuple[Action, ...] | None] = [()]  # By cell.
        self._work: MemoNumbers[PendingWork] = MemoNumbers()
        self._steps: dict[tuple[int, int], tuple[int, Posts]] = {}
        self._appended: dict[tuple[int, int], int] = {}
        self._deaths: dict[tuple[int, int], tuple[int, int, Posts]] = {}

    @property
    def steps(self) -> int:
        """The number of steps that machines made."""
        return len(self._steps)

    def start(self) -> MemoState:
        """The first state: all nodes have sent their hello, and the first view is in flight."""
        keeper = Keeper(self.scenario, self.watch)
        views: Outgoing = []
        for name in self.scenario.nodes:
            [(_, hello)] = SimulatedProcess(self.scenario, name, ()).deliver(Connected())
            views.extend(keeper.deliver(hello))
        empty: Links = ((),) * len(self.names)
        processes: list[SimulatedProcess | Keeper] = [
            SimulatedProcess(self.scenario, name, self.watch) for name in self.scenario.nodes
        ]
        state = [self._cell(self._number(process), empty) for process in [*processes, keeper]]
        for to, batch in self._posts(self.controller, views):
            state[to] = self.append(state[to], batch)
        return tuple(state)

    # --- one process ----------------------------------------------------------------------------------

    def step(self, process: int, event: int) -> tuple[int, Posts]:
        """The process after `event`, and what it sends."""
        known = self._steps.get((process, event))
        if known is None:
            before = self.processes.values[process]
            assert before is not None, "the dead do nothing"
            twin = before.clone()
            out = (
                twin.deliver(self.mail.values[event].message) if event >= 0 else twin.answer(self._work.values[~event])
            )
            known = self._steps[process, event] = self._number(twin), self._posts(self.nodes[process], out)
        return known

    def has_given_up(self, process: int) -> bool:
        """Whether the process is the controller and data are lost: then nothing happens any more."""
        keeper = self.processes.values[process]
        return isinstance(keeper, Keeper) and bool(keeper.lost)

    def sender(self, event: int) -> int:
        """The sender of a message; -1 for a piece of work."""
        return self.mail.values[event].sender if event >= 0 else -1

    def choice(self, node: int, event: int) -> Choice:
        """The choice of a world for an event of `node`."""
        if event >= 0:
            return ("deliver", self.names[self.mail.values[event].sender], self.names[node])
        work = self._work.values[~event]
        request = _REQUESTS.get(work[0])
        return ("answer", self.names[node], work) if request is None else (request, CONTROLLER, work[1])

    def _number(self, process: SimulatedProcess | Keeper) -> int:
        number = self.processes.of((process.name, process.key()), process)
        if number == len(self.nodes):
            self.nodes.append(self.index[process.name])
            self.work.append(tuple(~self._work.of(work, work) for work in process.work))
        return number

    def _posts(self, sender: int, out: Outgoing) -> Posts:
        batches: dict[tuple[int, int], list[int]] = {}
        for name, message in out:
            to, by = self.index[name], sender
            if self.scenario.chunks and type(message) is messages.State:
                by = self.index[self.names[sender] + CHUNKS]
            mail = Mail(by, to, message)
            batches.setdefault((to, by), []).append(self.mail.of(mail, mail))
        return tuple((to, self.batches.of(tuple(batch), tuple(batch))) for (to, _), batch in batches.items())

    # --- one cell -------------------------------------------------------------------------------------

    def actions(self, cell: int) -> tuple[Action, ...]:
        """All that may happen at a cell; nothing after data were lost."""
        known = self.known_actions[cell]
        if known is None:
            known = self.known_actions[cell] = tuple(self._actions(self.cells.values[cell]))
        return known

    def append(self, cell: int, batch: int) -> int:
        """The cell with more messages on one of its links."""
        known = self._appended.get((cell, batch))
        if known is None:
            process, links = self.cells.values[cell]
            messages = self.batches.values[batch]
            link = self.mail.values[messages[0]].sender
            known = self._cell(process, _with(links, link, links[link] + messages))
            self._appended[cell, batch] = known
        return known

    def death(self, cell: int, node: int) -> tuple[int, int, Posts]:
        """The controller notices that `node` is gone: the event, its cell, and what it sends.

        Messages of the dead to the controller that are still in flight are lost with the connection.
        """
        known = self._deaths.get((cell, node))
        if known is None:
            process, links = self.cells.values[cell]
            mail = Mail(node, self.controller, Closed(node=self.names[node]))
            event = self.mail.of(mail, mail)
            after, posts = self.step(process, event)
            known = self._deaths[cell, node] = event, self._cell(after, _with(links, node, ())), posts
        return known

    def keeper(self, state: MemoState) -> Keeper:
        keeper = self.processes.values[self.cells.values[state[self.controller]].process]
        assert isinstance(keeper, Keeper)
        return keeper

    def live(self, state: MemoState) -> list[SimulatedProcess]:
        """The processes of nodes that have not crashed."""
        processes = (self.processes.values[self.cells.values[cell].process] for cell in state)
        return [process for process in processes if isinstance(process, SimulatedProcess)]

    def _cell(self, process: int, links: Links) -> int:
        cell = Cell(process, links)
        number = self.cells.of(cell, cell)
        if number == len(self.known_actions):
            self.known_actions.append(None)
        return number

    def _actions(self, cell: Cell) -> Iterator[Action]:
        process, links = cell
        for sender, waiting in enumerate(links):
            if waiting:
                yield self._action(process, waiting[0], _with(links, sender, waiting[1:]))
        for event in self.work[process]:
            yield self._action(process, event, links)

    def _action(self, process: int, event: int, links: Links) -> Action:
        try:
            after, posts = self.step(process, event)
        except Exception as error:
            return Action(event, DEAD, (), violation_of(error))
        cell = self._cell(after, links)
        others = []
        for to, batch in posts:
            if to == self.nodes[process]:
                cell = self.append(cell, batch)
            else:
                others.append((to, batch))
        return Action(event, cell, tuple(others))


def violation_of(error: Exception) -> Violated:
    """Return an error of a machine as the violation that a world reports."""
    if isinstance(error, Violated):
        return error
    if isinstance(error, Refused):
        return Violated(f"no refusal between correct nodes: {error}")
    return Violated(f"no assertion fails: {error!r}")


def _with(links: Links, link: int, messages: tuple[int, ...]) -> Links:
    return (*links[:link], messages, *links[link + 1 :])
