"""A simulated world: processes, FIFO links, the controller, and every order in which things may happen.

What may happen next is a list of *choices*:

- ("deliver", a, b): the head of the link from a to b arrives; b may be a itself. States may be sent by a link of their
  own (`Scenario.chunks`): from "a in chunks" to b.
- ("answer", a, (stage, cohort)): the operator, sink or source of a finishes a piece of work.
- ("notice", a): the controller notices that the connection to a is closed.
- ("restart", a): the ingress, egress or controller that was a is started again.
- ("connect", a): node a has a connection to the controller that was started again.
- ("report", a, b) and ("heal", a, b): what follows when the link between a and b is cut.
- ("move", i): the i-th move of the scenario is requested from the controller.
- ("slow", i): the controller is sent which sites are slow, by the i-th set of the scenario.
- ("retire", i): the controller is requested to retire the copies of the i-th site of `retires`, which was slow.
- ("change", i): the i-th change of code is requested, and again when the controller was started again.
- ("checkpoint", i): the i-th checkpoint is the oldest that copies may go back to; all have reached it.
- ("abort", n): change n is to be given up.
- ("overdue", n): the attempt at change n has kept others waiting for too long.
- ("arrive", a): a site that was not in the plan appears.

and *faults*, whose number a scenario limits: ("crash", a), ("suspect", a), ("cut", a, b), and ("era",), in which all
processes are lost, and all begin again from a checkpoint.

A world is fixed by its scenario and the sequence of choices; there is no clock and no randomness here.

What a crash does to messages in flight: those to the dead are lost. Those from the dead stay on their
links. Each receiver takes any prefix of them before it gets the view with the death, and
must ignore the rest. This covers all that TCP may do: each connection loses a tail of its own, whether
the tail was never sent (a crash between two effects of one step) or was sent and is still in flight.

When the controller crashes, messages to it in flight are lost. Of what it sent each node takes any prefix before
it connects to the next controller. Its journal stays. A suspected site runs on, and nodes that do not have
the view yet take its messages. A link that is cut delivers nothing until the controller has removed one of its ends. If
it may remove neither, the link is restored, with all that was sent.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from ..protocols.change_messages import (
    CLOSED,
    COMMITTED,
    AbortChange,
    Ask,
    AttemptOverdue,
    Bind,
    CheckpointRetained,
    ReportChange,
)
from ..protocols.machine import Fenced, Refused
from ..protocols.messages import (
    Closed,
    Connected,
    Edition,
    Effect,
    Hello,
    LinkDown,
    Lost,
    Publish,
    Resend,
    Retire,
    Slow,
    State,
    Suspected,
    View,
    ViewsLost,
)
from ..protocols.view_retention import ViewRetention
from .choices import Choice as Choice
from .choices import EnabledChoices
from .dataflow import EGRESS, INGRESS, WANTED_MAX, Scenario, site
from .eras import Restored, restored
from .invariants import all_checkers
from .process import (
    CONTROLLER,
    PULL,
    Checker,
    Outgoing,
    PendingWork,
    Reported,
    SimulatedProcess,
    Violated,
    Watch,
    begin_controller,
    role_of,
)
from .story import describe

NO_DETAIL = ""
FAULTS = ("crash", "suspect", "cut", "era")
CHUNKS = " in chunks"
VIEWS_MAX = 10_000  # Of one controller.
PROPOSALS_MAX = 5  # In a view: three, one to the ingress, and one with the position that it has answered.
STEPS_MAX = 200_000  # A hundred times what a large world takes.


class World:
    """One run of `scenario`, choice by choice."""

    def __init__(self, scenario: Scenario, checkers: Iterable[Checker] | None = None, record: bool = False) -> None:
        self.scenario = scenario
        self.watch = _ALL if checkers is None else Watch(checkers)
        self.processes: dict[str, SimulatedProcess] = {}
        self.crashed: set[str] = set()
        self.fenced: set[str] = set()  # Declared dead while alive.
        self.dismissed: set[str] = set()  # Those of them whose connection to this controller is closed.
        self.cut: set[frozenset[str]] = set()
        self.used = {"crash": 0, "restart": 0, "suspect": 0, "cut": 0, "era": 0}
        self.lost: tuple[tuple[int, int], ...] = ()
        self.views_lost = False  # The journal of views has lost its end: a run that notices it
        self.ended_early = False  # has ended with an error.
        self.sinks_lost = False  # The same of the journal of a sink.
        self.outcomes: dict[int, str] = {}  # Of changes that were requested.
        self.asked = 0  # How many have been,
        self.given_up: set[int] = set()  # and those that the program has aborted.
        self.wanted = 0  # How many moves have been, since the first attempt at a change.
        self.retained = 0  # The number of the oldest checkpoint that is retained.
        self.proposals: dict[tuple[int, int, int], int] = {}  # By controller, view and change: how many.
        self.superseded: dict[int, Edition] = {}  # Editions that no view lists any more.
        self.has_thawed = False  # Slow sites stood still, and do not any more.
        self.steps = 0
        self.trace: list[str] | None = [] if record else None
        self.links: dict[tuple[str, str], deque[Any]] = {}
        self._enabled = EnabledChoices()
        self.plan = scenario.plan  # The view from which the first controller began, or that of this era.
        self.first_number = 1
        self.controller = begin_controller(scenario, self.plan)
        self.journal: list[View] = []
        self.seen = ViewRetention(None)
        self._listed: dict[str, int] = {}  # The view that first listed each node.
        self._doing = {
            "deliver": self._deliver,
            "answer": self._answer,
            "crash": self._crash,
            "notice": self._notice,
            "restart": self._restart,
            "connect": self._connect,
            "suspect": self._suspect,
            "cut": self._cut,
            "report": self._report,
            "heal": self._heal,
            "move": self._move,
            "slow": self._slow,
            "retire": self._retire,
            "change": self._change,
            "abort": self._abort,
            "overdue": self._overdue,
            "checkpoint": self._checkpoint,
            "era": self._era,
            "arrive": self._arrive,
        }
        for index in range(len(scenario.moves) if not scenario.restless else 0):
            self._enabled.add(("move", CONTROLLER, index))
        for index in range(len(scenario.slow)):
            self._enabled.add(("slow", CONTROLLER, index))
        if scenario.changes:
            self._enabled.add(("change", CONTROLLER, 0))
        for index in range(scenario.arrivals):
            self._enabled.add(("arrive", site(scenario.sites + index), NO_DETAIL))
        for node in scenario.nodes:
            self._start(SimulatedProcess(scenario, node, self.watch), at_once=not scenario.slow_start)

    def do(self, choice: Choice) -> None:
        """Do `choice`; raise `Violated` if an invariant does not hold after it."""
        kind, name, detail = choice
        self.steps += 1
        if self.steps > STEPS_MAX:
            raise Violated(f"all comes to rest: {STEPS_MAX:,} steps, and {self.choices[:4]} may be the next")
        try:
            self._doing[kind](name, detail)
        except Refused as error:
            if self.views_lost or (self.sinks_lost and isinstance(error, Reported)):
                self._end(str(error))
                return
            raise Violated(f"no refusal between correct nodes: {error}") from error
        except (AssertionError, LookupError, TypeError, ValueError, AttributeError, RuntimeError) as error:
            raise Violated(f"no assertion fails: {error!r}") from error

        if self._enabled.frozen and not self.choices:
            for check in self.watch.standing:
                check(self.scenario, self.live(), self.controller.view)
            self._enabled.thaw()
            self.has_thawed = True

    # --- what a world looks like ----------------------------------------------------------------------

    @property
    def choices(self) -> list[Choice]:
        """What may happen next."""
        return self._enabled.choices

    def live(self) -> list[SimulatedProcess]:
        """The processes that have not crashed and were not declared dead."""
        return [p for name, p in self.processes.items() if name not in self.crashed and name not in self.fenced]

    def faults(self) -> list[Choice]:
        """The faults that may happen next."""
        if self.lost or self.ended_early:
            return []
        scenario, used = self.scenario, self.used
        sites = [p.name for p in self.live() if p.role not in (INGRESS, EGRESS)]
        ends = [p.name for p in self.live() if p.role in (INGRESS, EGRESS)]
        faults: list[Choice] = []
        if used["crash"] < scenario.crashes:
            faults += [("crash", name, NO_DETAIL) for name in sites]
        if used["restart"] < scenario.restarts:
            ends += [] if CONTROLLER in self.crashed else [CONTROLLER]
            faults += [("crash", name, NO_DETAIL) for name in ends]
        if CONTROLLER not in self.crashed and used["suspect"] < scenario.suspicions:
            faults += [("suspect", name, NO_DETAIL) for name in sites if self.controller.view.alive(name)]
        if used["cut"] < scenario.cuts:
            names = [p.name for p in self.live()]
            pairs = [(a, b) for i, a in enumerate(names) for b in names[i + 1 :]]
            faults += [("cut", a, b) for a, b in pairs if frozenset({a, b}) not in self.cut]
        if used["era"] < scenario.eras:
            faults.append(("era", CONTROLLER, NO_DETAIL))
        return faults

    def may_crash(self) -> list[str]:
        """The sites that may crash next."""
        return [name for kind, name, _ in self.faults() if kind == "crash" and role_of(name) not in _RESTARTED]

    def at_rest(self) -> None:
        """Check what must hold when nothing is left to happen."""
        assert not self.choices, f"{len(self.choices)} choices are left"
        if not (self.lost or self.ended_early):
            for check in self.watch.at_rest:
                check(self.scenario, self.live(), self.controller.view)
            for settled in self.watch.settled:
                settled(self.controller, self.live())

    def finish(self) -> None:
        """Do the oldest choice until nothing is left, then check."""
        while self.choices:
            self.do(self.choices[0])
        self.at_rest()

    # --- the choices ------------------------------------------------------------------------------------

    def _deliver(self, sender: str, to: Any) -> None:
        link = self.links[sender, to]
        message = link.popleft()
        if not link:
            self._enabled.remove(("deliver", sender, to))
        if self.trace is not None:
            self._note("deliver", sender, to, message)
        if to == CONTROLLER:
            self._control(message)
            return
        process = self.processes[to]
        before = len(process.work)
        out = process.deliver(message)
        if type(message) is View and CONTROLLER not in self.crashed:
            self.seen.take(to, message.number)
        if len(process.work) > before:
            self._enable_work(process)
        self._post(to, out)

    def _answer(self, name: str, work: Any) -> None:
        process = self.processes[name]
        self._enabled.remove(("answer", name, work))
        if self.trace is not None:
            self._note("answer", name, work, process.work[work])
        if work == PULL and self.scenario.lost_tails:
            # Of an egress that has crashed, what it gave to its sinks is left.
            sinks = [self.processes[egress] for egress in self.crashed if role_of(egress) == EGRESS]
            seen = {egress.name: max(egress.through.values()) for egress in sinks}
            seen |= {other.name: other.highest for other in self.live()}
            for check in self.watch.numbering:
                check(seen, process, process.work[work])
        out = process.answer(work)
        if process.work:
            self._enable_work(process)
        self._post(name, out)
        self._complete_checkpoint()

    def _crash(self, name: str, _: Any) -> None:
        self._note("crash", name, NO_DETAIL)
        is_restarted = role_of(name) in _RESTARTED
        self.used["restart" if is_restarted else "crash"] += 1
        self.crashed.add(name)
        if name == CONTROLLER:
            for choice in [c for c in self.choices if c[0] in ("notice", "connect", "report")]:
                self._enabled.remove(choice)
        else:
            for work in self.processes[name].work:
                self._enabled.remove(("answer", name, work))
            self._enabled.discard(("connect", name, NO_DETAIL))
            if CONTROLLER not in self.crashed:
                self._enabled.add(("notice", name, NO_DETAIL))
        for link in [link for link in self.links if link[1] == name]:
            self._empty(*link)
        if is_restarted:
            self._enabled.add(("restart", name, NO_DETAIL))

    def _notice(self, name: str, _: Any) -> None:
        self._enabled.remove(("notice", name, NO_DETAIL))
        self._note("notice", name, NO_DETAIL)
        self._empty(name, CONTROLLER)
        self._control(Closed(node=name))

    def _suspect(self, name: str, _: Any) -> None:
        self._note("suspect", name, NO_DETAIL)
        self.used["suspect"] += 1
        self._control_and_fence(Suspected(node=name), name)

    def _control_and_fence(self, message: Any, *names: str) -> None:
        """Step the controller. A live node that is declared dead loses its connection, and runs on."""
        before = self.controller.view
        self._control(message)
        removed = [name for name in names if before.alive(name) and not self.controller.view.alive(name)]
        for check in self.watch.doubted:
            check(before, names, removed)
        for name in removed:
            self.fenced.add(name)
            self._enabled.discard(("connect", name, NO_DETAIL))
            self.dismissed.add(name)
            self._empty(name, CONTROLLER)

    def _restart(self, name: str, _: Any) -> None:
        self._enabled.remove(("restart", name, NO_DETAIL))
        self._note("restart", name, NO_DETAIL)
        if name != CONTROLLER:
            role, _, incarnation = name.partition(".")
            again = f"{role}.{int(incarnation or 1) + 1}"
            if role == EGRESS and self.scenario.lost_sinks:
                self._lose_position(self.processes[name])
            self._start(SimulatedProcess(self.scenario, again, self.watch, self.processes[name]))
            return
        if not self.choices and self._is_not_missed():
            for check in self.watch.alone:
                check(self.scenario, self.live())
        self.crashed.discard(CONTROLLER)
        if self.scenario.lost_tails and self.journal:
            self.views_lost = True
            self.journal.pop()
        last = self.journal[-1] if self.journal else self.plan
        self.controller = begin_controller(self.scenario, last, self._number_from(last), self.retained)
        self.seen = ViewRetention(self.journal[-1] if self.journal else None)
        self.fenced = {node for node in self.fenced if not last.alive(node)}  # The journal alone survives.
        self.dismissed.clear()  # They do not know why they were cut off, and connect to the next controller.
        self._ask_again()
        for node in self.processes:
            if node not in self.crashed:
                self._enabled.add(("connect", node, NO_DETAIL))
            elif last.alive(node):
                self._enabled.add(("notice", node, NO_DETAIL))
        for a, b in sorted(map(sorted, self.cut)):
            if self._both_go_on(a, b) and ("heal", a, b) not in self._enabled:
                self._enabled.add(("report", a, b))

    def _lose_position(self, egress: SimulatedProcess) -> None:
        """Cut the last position off the journal of a sink, if all producers have the acknowledgement of it."""
        for (stage, _), through in egress.through.items():
            floors = [floor for process in self.live() for floor in process.floors_of(egress.name, stage)]
            if floors and min(floors) >= through > 0:
                self.sinks_lost = True
                egress.through = {**egress.through, (stage, 0): through - 1}
                return

    def _number_from(self, last: View) -> int:
        """Return a number above all that any controller may have given; a real one takes the time of day."""
        return (
            max(last.number + 1, self.first_number)
            if not self.scenario.lost_tails
            else VIEWS_MAX * (1 + self.used["restart"])
        )

    def _connect(self, name: str, _: Any) -> None:
        self._enabled.remove(("connect", name, NO_DETAIL))
        self._note("connect", name, NO_DETAIL)
        self._empty(CONTROLLER, name)
        self._post(name, self.processes[name].deliver(Connected()))

    def _arrive(self, name: str, _: Any) -> None:
        self._enabled.remove(("arrive", name, NO_DETAIL))
        self._note("arrive", name, NO_DETAIL)
        self._start(SimulatedProcess(self.scenario, name, self.watch))

    def _ask_again(self) -> None:
        """Let the program repeat the requests of which it does not know the outcome."""
        listed = {edition.number for edition in self.controller.view.editions} | self.superseded.keys()
        for index, change in enumerate(self.scenario.changes[: self.asked]):
            is_known = change.number in listed or self.outcomes.get(change.number, COMMITTED) not in (COMMITTED, CLOSED)
            is_known = is_known or change.number in self.given_up
            if not is_known and ("change", CONTROLLER, index) not in self._enabled:
                self._enabled.add(("change", CONTROLLER, index))

    def _start(self, process: SimulatedProcess, at_once: bool = False) -> None:
        self.processes[process.name] = process
        process.superseded = self.superseded
        if CONTROLLER in self.crashed:
            return
        out = process.deliver(Connected())
        if not at_once:
            self._post(process.name, out)
            return
        for _, hello in out:
            self._control(hello)

    def _move(self, _: str, index: Any) -> None:
        self._enabled.remove(("move", CONTROLLER, index))
        self._note("move", CONTROLLER, index, self.scenario.moves[index])
        if CONTROLLER not in self.crashed:
            before, move = self.controller.view, self.scenario.moves[index]
            self._control(move)
            for check in self.watch.asked if move not in self.controller.waiting else ():
                check(before, move, self.controller.view)

    def _want_a_move(self) -> None:
        """Want the next move that is possible, if none is under way and a change is not over."""
        controller, moves, changes = self.controller, self.scenario.moves, self.scenario.changes
        is_over = all(change.number in self.outcomes for change in changes)
        if is_over or controller.view.standby or controller.waiting or any(c[0] == "move" for c in self.choices):
            return
        is_tried = controller.changes.attempt is not None or controller.changes.failed > 0
        self.wanted = self.wanted + 1 if is_tried else 0
        if self.wanted > WANTED_MAX:
            raise Violated(
                f"changes end: {self.wanted} moves were wanted meanwhile, and the outcomes are {self.outcomes}"
            )
        following = [(controller.view.versions + n) % len(moves) for n in range(len(moves))]
        index = next((n for n in following if controller.is_possible(moves[n])), None)
        if index is not None:
            self._enabled.add(("move", CONTROLLER, index))

    def _slow(self, _: str, index: Any) -> None:
        self._enabled.remove(("slow", CONTROLLER, index))
        slow = Slow(nodes=self.scenario.slow[index])
        self._note("slow", CONTROLLER, index, slow)
        if CONTROLLER not in self.crashed:
            self._control(slow)
        if self.scenario.freezes and not self.has_thawed:
            self._enabled.freeze(self.controller.view.slow)
        for number, node in enumerate(self.scenario.retires):
            if node in slow.nodes and ("retire", CONTROLLER, number) not in self._enabled:
                self._enabled.add(("retire", CONTROLLER, number))

    def _retire(self, _: str, index: Any) -> None:
        self._enabled.remove(("retire", CONTROLLER, index))
        retire = Retire(node=self.scenario.retires[index])
        self._note("retire", CONTROLLER, index, retire)
        if CONTROLLER not in self.crashed:
            self._control(retire)

    def _change(self, _: str, index: Any) -> None:
        self._enabled.remove(("change", CONTROLLER, index))
        change = self.scenario.changes[index]
        self._note("change", CONTROLLER, index, change)
        if index == self.asked:
            self.asked += 1
            if self.scenario.twice:
                self._enabled.add(("change", CONTROLLER, index))
            if self.asked < len(self.scenario.changes):
                self._enabled.add(("change", CONTROLLER, self.asked))
            if change.number in self.scenario.aborts:
                self._enabled.add(("abort", CONTROLLER, change.number))
        if CONTROLLER not in self.crashed:
            self._control(change)

    def _abort(self, _: str, number: Any) -> None:
        self._enabled.remove(("abort", CONTROLLER, number))
        self._note("abort", CONTROLLER, number)
        self.given_up.add(number)
        for index, change in enumerate(self.scenario.changes):
            if change.number == number:  # The program does not ask for it again.
                self._enabled.discard(("change", CONTROLLER, index))
        if CONTROLLER not in self.crashed:
            self._control(AbortChange(number=number))

    def _complete_checkpoint(self) -> None:
        """Let the next checkpoint be retained at any time, if all live copies, and the sinks, have reached it."""
        following = self.retained + 1
        choice: Choice = ("checkpoint", CONTROLLER, following)
        if following < len(self.scenario.checkpoints) and choice not in self._enabled:
            at = [through for process in self.live() for through in process.through.values()]
            if min([*at, *self._sinks().through.values()]) >= self.scenario.checkpoints[following]:
                self._enabled.add(choice)

    def _sinks(self) -> Restored:
        """What the sinks have: with the last process that has served them."""
        last = [process for process in self.processes.values() if process.role == EGRESS][-1]
        return Restored(0, dict(last.states), dict(last.through), dict(last.history))

    def _checkpoint(self, _: str, index: Any) -> None:
        self._enabled.remove(("checkpoint", CONTROLLER, index))
        self.retained = index
        retained = CheckpointRetained(position=self.scenario.checkpoints[index])
        self._note("checkpoint", CONTROLLER, index, retained)
        if CONTROLLER not in self.crashed:
            self._control(retained)
        self._complete_checkpoint()

    def _era(self, _: str, __: Any) -> None:
        """Begin again from the oldest checkpoint. The journals and the sinks are left, and so are changes of code."""
        self._note("era", CONTROLLER, NO_DETAIL)
        self.used["era"] += 1
        last, sinks = self.journal[-1] if self.journal else self.plan, self._sinks()
        for choice in [choice for choice in self.choices if choice[0] not in _REQUESTS]:
            self._enabled.remove(choice)
        self.links.clear()
        for gone in (self.crashed, self.fenced, self.dismissed, self.cut):
            gone.clear()
        self.plan = replace(self.scenario.plan, editions=last.editions)
        self.first_number = max(self.first_number, last.number + 1)
        self.journal, self.seen, self._listed = [], ViewRetention(None), {}
        self.controller = begin_controller(self.scenario, self.plan, self.first_number, self.retained)
        self.processes = {}
        editions = sorted((self.superseded | {e.number: e for e in last.editions}).items())
        position = self.scenario.checkpoints[self.retained]
        for node in self.scenario.nodes:
            begin = restored(self.scenario, node, position, [edition for _, edition in editions], sinks)
            self._start(SimulatedProcess(self.scenario, node, self.watch, restored=begin), at_once=True)
        self._ask_again()

    def _overdue(self, _: str, number: Any) -> None:
        self._enabled.remove(("overdue", CONTROLLER, number))
        self._note("overdue", CONTROLLER, number)
        if CONTROLLER not in self.crashed:
            self._control(AttemptOverdue(number=number))

    def _cut(self, a: str, b: Any) -> None:
        a, b = sorted((a, b))
        self._note("cut", a, b)
        self.used["cut"] += 1
        self.cut.add(frozenset({a, b}))
        for link in _between(a, b):
            self._enabled.discard(("deliver", *link))
        if CONTROLLER not in self.crashed:
            self._enabled.add(("report", a, b))

    def _report(self, a: str, b: Any) -> None:
        """Report a cut link to the controller; if it removes neither end, the link can be restored."""
        self._enabled.remove(("report", a, b))
        self._note("report", a, b)
        if {a, b} <= set(self.controller.view.nodes):
            self._control_and_fence(LinkDown(a=a, b=b), a, b)
        if self._both_go_on(a, b) and not self.lost:
            self._enabled.add(("heal", a, b))

    def _is_not_missed(self) -> bool:
        """Whether no node needs the crashed controller: all have the last view, and it lists all the dead."""
        if not self.journal or self.cut:
            return False
        last = self.journal[-1]
        knows = all(process.node.number == last.number and not process.node.is_bound for process in self.live())
        is_right = not any(map(last.alive, self.crashed)) and all(last.live_copies(s, 0) for s in (0, -1))
        return knows and is_right and all(last.alive(standby.donor) for standby in last.standby)

    def _both_go_on(self, a: str, b: str) -> bool:
        return not {a, b} & (self.crashed | self.fenced)

    def _heal(self, a: str, b: Any) -> None:
        self._enabled.remove(("heal", a, b))
        self._note("heal", a, b)
        self.cut.discard(frozenset({a, b}))
        for link in _between(a, b):
            if self.links.get(link):
                self._enabled.add(("deliver", *link))

    # --- how it is done -----------------------------------------------------------------------------------

    def _control(self, message: Any) -> None:
        try:
            effects = self.controller.step(message)
        except Fenced:
            self._fence(message.node)
            return
        if isinstance(message, Hello):
            self.seen.take(message.node, message.view)
        self._carry_out(effects)
        if self.lost or self.ended_early:
            return
        if self.scenario.restless:
            self._want_a_move()
        attempt = self.controller.changes.attempt
        if attempt is not None and self.controller.waiting:
            overdue: Choice = ("overdue", CONTROLLER, attempt.number)
            if overdue not in self._enabled:
                self._enabled.add(overdue)

    def _fence(self, name: str) -> None:
        """Dismiss a live node that the controller has refused; what it has sent before is still delivered."""
        if name not in self.crashed:
            self.fenced.add(name)
            self.dismissed.add(name)

    def _carry_out(self, effects: Iterable[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Publish):
                assert all(map(effect.view.alive, effect.to)), f"a view is sent to the dead among {effect.to}"
                before = self.journal[-1] if self.journal else self.plan
                self._note_editions(before, effect.view)
                self._write(effect.view)
                for check in self.watch.published:
                    check(self.scenario, before, effect.view)
                self._post(CONTROLLER, [(node, effect.view) for node in effect.to])
            elif isinstance(effect, Resend):
                views = [v for v in self.journal if v.number > effect.after and effect.to in v.nodes]
                is_next = (
                    views[0].last_number == effect.after if effect.after else views[0].number == self._listed[effect.to]
                )
                if not is_next and not self.views_lost:
                    there = [view.number for view in views]
                    raise Violated(f"views have no gaps: {effect.to} has {effect.after}, and the journal has {there}")
                self._post(CONTROLLER, [(effect.to, view) for view in views])
            elif isinstance(effect, Ask):
                # The view of that moment: later effects of the same step may publish another, in which one is dead.
                view = self.journal[-1] if self.journal else self.controller.view
                assert all(map(view.alive, effect.to)), f"the dead among {effect.to} are asked"
                assert self.controller.present.issuperset(effect.to), (
                    f"{effect.to} are asked, and not all are connected"
                )
                self._post(CONTROLLER, [(node, effect.message) for node in effect.to])
                if isinstance(effect.message, Bind):
                    self._count_proposal(effect.message)
            elif isinstance(effect, ReportChange):
                self._note("outcome", CONTROLLER, effect.number, effect)
                self.outcomes[effect.number] = effect.outcome
                known = self.superseded | {edition.number: edition for edition in self.controller.view.editions}
                for reported in self.watch.reported:
                    reported(effect, known, self.controller)
            elif isinstance(effect, ViewsLost):
                assert self.views_lost, f"no view was lost: {effect}"
                self._end(f"{effect.node} has seen view {effect.seen}, and the journal ends with {effect.last}")
            else:
                assert isinstance(effect, Lost), f"the controller cannot emit {effect}"
                self.lost = effect.partitions
                for check in self.watch.lost:
                    check(self.live(), self.journal[-1] if self.journal else self.plan, self.lost)
                self._must_stop()
                self._note("lost", CONTROLLER, NO_DETAIL, self.lost)
                self._clear()

    def _count_proposal(self, bind: Bind) -> None:
        """Check that proposals end: the fourth in a view is to the ingress, and all agree to its position."""
        attempt = (self.used["restart"], bind.view, bind.number)
        self.proposals[attempt] = self.proposals.get(attempt, 0) + 1
        given_up = self.scenario.moves or self.scenario.slow or self.scenario.lost_tails or self.scenario.restarts
        if self.proposals[attempt] > PROPOSALS_MAX and not given_up:
            raise Violated(f"changes end: {bind} is proposal {self.proposals[attempt]} in its view")

    def _note_editions(self, before: View, view: View) -> None:
        known = {edition.number: edition for edition in before.editions}
        listed = {edition.number for edition in view.editions}
        self.superseded |= {number: edition for number, edition in known.items() if number not in listed}
        for edition in view.editions:
            if edition.closed and not known[edition.number].closed:
                for check in self.watch.closing:
                    check(edition, self.live(), view, self.controller.changes.retained)

    def _end(self, why: str) -> None:
        """End the run with an error, as it must if a journal that it depends on was cut."""
        self._note("ends", CONTROLLER, why)
        self.ended_early = True
        self._clear()

    def _clear(self) -> None:
        self._enabled.clear()

    def _write(self, view: View) -> None:
        """Write to the journal, which keeps the last view and those that a live node may not have seen (rule 33)."""
        for node in view.nodes:
            self._listed.setdefault(node, view.number)
        self.seen.publish(view)
        self.journal = [old for old in self.journal if old.number > self.seen.by_all] + [view]
        living = {node for node in view.nodes if view.alive(node)}
        if living <= self.controller.present:
            seen = min(self.processes[node].node.number for node in living)
            kept = [old.number for old in self.journal[:-1] if old.number <= seen]
            if kept:
                raise Violated(f"the journal stays short: all have seen view {seen}, and it has {kept}")

    def _must_stop(self) -> None:
        """Check that no view follows on lost data, whichever nodes are lost next."""
        twin = self.controller.clone()
        for process in self.live():
            effects = twin.step(Closed(node=process.name))
            assert not any(isinstance(effect, Publish) for effect in effects), "a view follows on lost data"

    def _post(self, sender: str, out: Outgoing) -> None:
        for to, message in out:
            if to in self.crashed or (to == CONTROLLER and sender in self.dismissed):
                continue
            by = sender + CHUNKS if self.scenario.chunks and type(message) is State else sender
            link = self.links.get((by, to))
            if link is None:
                link = self.links[by, to] = deque()
            if not link and not (self.cut and frozenset({sender, to}) in self.cut):
                self._enabled.add(("deliver", by, to))
            link.append(message)
            if self.trace is not None:
                self._note("send", sender, to, message)

    def _empty(self, sender: str, to: str) -> None:
        """Drop the messages in flight on a link."""
        if self.links.pop((sender, to), None):
            self._enabled.discard(("deliver", sender, to))

    def _enable_work(self, process: SimulatedProcess) -> None:
        for work in process.work:
            choice: Choice = ("answer", process.name, work)
            if choice not in self._enabled:
                self._enabled.add(choice)

    def _note(self, kind: str, name: str, detail: str | int | PendingWork, what: Any = None) -> None:
        if self.trace is not None:
            self.trace.append(describe(kind, name, detail, what))


def _between(a: str, b: str) -> tuple[tuple[str, str], ...]:
    """The links between two nodes, also those for states."""
    return ((a, b), (b, a), (a + CHUNKS, b), (b + CHUNKS, a))


_ALL = Watch(all_checkers())
_REQUESTS = ("move", "slow", "retire", "change", "abort", "arrive")  # What eras do not end.
_RESTARTED = (INGRESS, EGRESS, CONTROLLER)
