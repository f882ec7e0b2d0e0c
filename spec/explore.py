"""Exhaustive exploration: everything that may happen in a small world, with a crash at every step.

Every order of events is covered, but not every order is executed: orders that differ by events that commute have the
same result, and one of them is enough. What is explored is chosen so that (1) every step that any process can make in
any order was made by the production machines and watched by the checkers, and (2) every state at which a world comes to
rest was visited. Checkers see nothing else, with one exception. Whether data are rightly reported lost depends on
all processes at once, and is checked only in states that the exploration visits. Why it is enough:

**A crash is merged with its notice.** A site that crashes and is noticed later cannot be distinguished from one that is
just slow until then. So a death is one choice, at any time, and leaves out no run of the others.

**A site dies only when it has nothing left to do.** Let it die earlier, with messages to take or work to finish. Let it
do that first: its steps change only itself and add to the links from it, after all that it has sent. All other nodes
may continue as before, and take no more of it than before. What is left on the links arrives after the view that
declares the site dead, and has no effect there, or a checker reports it ("a fenced site has no effect"). What it has
sent to the controller is lost with the connection in both runs. So each run is covered by one with a later death. A
site has nothing left to do at some time because worlds end, see below.

**Stubborn sets** (Valmari 1989), found by trial. In each state a set of events is chosen at some nodes, and only these
are followed, on the claim that nothing that may happen before the first of them at these nodes fails to
commute with them. Let w be any run from the state. If it has a chosen event, the first of them can be moved to the
front, and the rest of the run is shorter; if it has none, each of them can be put in front, and w is still
possible after it. A death commutes with events of others, and after an event of the site that dies it is only
later. So by induction over the length of runs, and over the states after a chosen event, all steps of w are made in
what is explored, or tried by `commutation`, and if w ends at rest the same state at rest is visited. The same
induction shows that a false claim is refuted: take the first event of w that does not commute with a
chosen one; the run up to it, moved after the chosen event, is covered, so that event was seen there, and tried.
When a claim is refuted, the states that rest on it are expanded again without it. A choice that ends the world,
because data are lost, is never claimed to commute. If no claim holds, all events are followed, and all deaths.

The induction over states needs that no run is cyclic. That is checked, not assumed: every step changes its process to a
new state, or sends nothing (`MessageHistory.goes_round`). If that fails, all states are expanded again without claims.

None of this assumes anything of the machines, so it cannot hide a bug in them. It rests on what a process
is: a function of its own state and its input, whose work is taken from it only by finishing it, and on FIFO links.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from ..protocols.controller import Controller
from ..protocols.node import Node
from .commutation import NO_NODE, Commutation, Commutations, Terms
from .dataflow import Scenario
from .invariants import all_checkers
from .memo import DEAD, Action, Compact, Keeper, MemoState, Posts, violation_of
from .process import Checker, SimulatedProcess, Violated
from .world import NO_DETAIL, Choice

STATES_MAX = 3_000_000
PROGRESS_EVERY_S = 5.0
START = -1  # The parent of the first state.

ExploreProgress = Callable[[str], None]


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


class Explorer:
    """Explorer of all that may happen in `scenario`, in as few states as claims allow."""

    def __init__(self, scenario: Scenario, checkers: Iterable[Checker] | None = None) -> None:
        # With more than one change, views may leave one out that processes would have to remember.
        changes = (scenario.changes[1:], scenario.checkpoints, scenario.aborts)
        others = (scenario.restarts, scenario.suspicions, scenario.cuts, scenario.arrivals, scenario.slow_start)
        if any(changes) or any(others) or scenario.chunks:
            raise ValueError(f"only crashes of sites are explored to the end; walk through the others: {scenario}")
        self.scenario = scenario
        self.compact = Compact(scenario, all_checkers() if checkers is None else checkers)
        self.claims = Commutations(self.compact)
        self.states: list[MemoState] = []
        self.ends: list[MemoState] = []  # The states at rest.
        self._numbers: dict[MemoState, int] = {}
        self._origins = (array("q"), array("q"), array("q"))  # By state: the one before it, a node, its event.
        self._transitions = 0
        self._todo: list[int] = []
        self._makes_claims = True
        self._singles: dict[tuple[int, int], list[Terms]] = {}
        self._members: dict[tuple[int, int, int], Terms] = {}

    def run(self, states_max: int = STATES_MAX, progress: ExploreProgress = lambda line: None) -> Explored:
        """Explore all that may happen, or up to the first violation."""
        began = last = time.perf_counter()
        found = _FoundState(None)
        start = self.compact.start()
        self.claims.history.begin(start)
        self._reach(start, START, 0, 0)
        try:
            while self._todo or self._must_go_on_without_claims():
                self._expand(self._todo.pop())
                self._settle()
                if len(self.states) > states_max:
                    raise MemoryError(f"more than {states_max:,} states; choose a smaller world")
                if time.perf_counter() > last + PROGRESS_EVERY_S:
                    last = time.perf_counter()
                    progress(f"{len(self.states):,} states, {self._transitions / (last - began):,.0f} transitions/s")
        except _FoundState as violation:
            found = violation
        return Explored(
            states=len(self.states),
            transitions=self._transitions,
            ends=len(self.ends),
            steps_of_machines=self.compact.steps,
            seconds=time.perf_counter() - began,
            violation=found.violation,
            path=found.path,
        )

    def nodes_seen(self) -> list[Node]:
        """Every state of a node that was reached or tried, for tests that try every message in it."""
        return [process.node for process in self.compact.processes.values if isinstance(process, SimulatedProcess)]

    def controllers_seen(self) -> list[Controller]:
        """Every state of the controller that was reached or tried."""
        return [process.controller for process in self.compact.processes.values if isinstance(process, Keeper)]

    def messages_seen(self) -> list[Any]:
        """Every message that was on a link."""
        return [mail.message for mail in self.compact.mail.values]

    # --- from one state to the next ---------------------------------------------------------------------

    def _expand(self, number: int) -> None:
        """Follow the events that are chosen in a state."""
        state = self.states[number]
        if self.compact.keeper(state).lost:
            return
        events = [(node, action) for node, cell in enumerate(state) for action in self.compact.actions(cell)]
        for node, action in events:
            if action.violation is not None:
                raise _FoundState(action.violation, (*self._path(number), self.compact.choice(node, action.event)))
        if not events:
            self._rest(number)
        claims = self._choose(state) if self._makes_claims else None
        for claim in claims or ():
            claim.states.append(number)
        for node, action in events:
            if claims is None or any(action.event in c.terms.chosen and self._is_of(c, node) for c in claims):
                self._follow(number, node, action)
        if claims is None and self._may_crash(state):
            for site in self.compact.sites:
                if state[site] and not self.compact.actions(state[site]):
                    self._let_die(number, site)

    def _is_of(self, claim: Commutation, node: int) -> bool:
        return self.compact.nodes[claim.terms.process] == node

    def _follow(self, number: int, node: int, action: Action) -> None:
        state = self.states[number]
        self.claims.see(self.compact.cells.values[state[node]].process, action.event)
        after = list(state)
        after[node] = action.cell
        self._post(after, action.posts)
        self._reach(tuple(after), number, node, action.event)

    def _let_die(self, number: int, site: int) -> None:
        controller = self.compact.controller
        after = list(self.states[number])
        keeper = self.compact.cells.values[after[controller]].process
        try:
            event, after[controller], posts = self.compact.death(after[controller], site)
        except Exception as error:
            raise _FoundState(violation_of(error), (*self._path(number), *self._death(site))) from error
        self.claims.see(keeper, event)
        after[site] = DEAD
        self._post(after, posts)
        self._reach(tuple(after), number, controller, event)

    def _post(self, after: list[int], posts: Posts) -> None:
        for to, batch in posts:
            if after[to] != DEAD:
                after[to] = self.compact.append(after[to], batch)

    def _reach(self, state: MemoState, *origin: int) -> None:
        self._transitions += 1
        if state in self._numbers:
            return
        self._numbers[state] = len(self.states)
        self._todo.append(len(self.states))
        self.states.append(state)
        for values, value in zip(self._origins, origin, strict=True):
            values.append(value)
        lost = self.compact.keeper(state).lost
        if lost:
            published = self.compact.keeper(self.states[origin[0]]).view
            self._check(len(self.states) - 1, self.compact.watch.lost, self.compact.live(state), published, lost)

    def _rest(self, number: int) -> None:
        state = self.states[number]
        self.ends.append(state)
        view = self.compact.keeper(state).view
        self._check(number, self.compact.watch.at_rest, self.scenario, self.compact.live(state), view)
        self._check(number, self.compact.watch.settled, self.compact.keeper(state).controller, self.compact.live(state))

    def _check(self, number: int, checks: Iterable[Callable[..., None]], *arguments: Any) -> None:
        try:
            for check in checks:
                check(*arguments)
        except Violated as violation:
            raise _FoundState(violation, self._path(number)) from violation

    def _may_crash(self, state: MemoState) -> bool:
        return state.count(DEAD) < self.scenario.crashes

    # --- what to follow -----------------------------------------------------------------------------------

    def _choose(self, state: MemoState) -> list[Commutation] | None:
        """Return claims not refuted until now, one for each node with chosen events; the fewer events the better."""
        dead = sum(1 << node for node, cell in enumerate(state) if cell == DEAD)
        # While sites may crash the controller may act at any time, and nothing is claimed of it.
        nodes = range(self.compact.controller + (not self._may_crash(state)))
        for node in nodes:
            terms = self._single_terms(state[node], dead)
            while terms:
                claim = self.claims.claim(terms[-1])
                if claim.blame is None:
                    return [claim]
                terms.pop()
        starts = [node for node in nodes if self.compact.actions(state[node])]
        groups = [group for node in starts if (group := self._group(state, node, dead)) is not None]
        return min(groups, key=_size, default=None)

    def _group(self, state: MemoState, node: int, dead: int) -> list[Commutation] | None:
        """Claims of nodes all of whose events are chosen; a node to blame for a refuted claim is added to them."""
        members, before = 1 << node, 0
        while members != before:
            before = members
            nodes = [other for other, cell in enumerate(state) if cell != DEAD and members >> other & 1]
            if self.compact.controller in nodes and self._may_crash(state):
                return None
            claims = [self.claims.claim(self._member_terms(state[other], members, dead)) for other in nodes]
            for claim in claims:
                if claim.blame == NO_NODE:
                    return None
                members |= 0 if claim.blame is None else 1 << claim.blame
        return claims

    def _single_terms(self, cell: int, dead: int) -> list[Terms]:
        """Terms with one event of the cell chosen; the caller removes those that are refuted."""
        known = self._singles.get((cell, dead))
        if known is None:
            events = [action.event for action in self.compact.actions(cell)]
            known = self._singles[cell, dead] = [self._terms_of_one(cell, event, dead) for event in events]
        return known

    def _terms_of_one(self, cell: int, event: int, dead: int) -> Terms:
        process, links = self.compact.cells.values[cell]
        node, sender = self.compact.nodes[process], self.compact.sender(event)
        others = [(other, messages) for other, messages in enumerate(links) if other not in (node, sender)]
        return Terms(
            process=process,
            chosen=(event,),
            last=tuple((other, ~messages[0]) for other, messages in others if messages),
            own=None if sender == node else links[node],
            silent=dead & ~sum(1 << other for other, messages in others if messages),
            shut=0,
        )

    def _member_terms(self, cell: int, members: int, dead: int) -> Terms:
        """Terms with all events of the cell chosen, and those of the other members."""
        known = self._members.get((cell, members, dead))
        if known is None:
            process, links = self.compact.cells.values[cell]
            node = self.compact.nodes[process]
            known = self._members[cell, members, dead] = Terms(
                process=process,
                chosen=tuple(sorted(action.event for action in self.compact.actions(cell))),
                last=(),
                own=None if links[node] else (),
                silent=members | dead,
                shut=members & ~dead & ~(1 << node),
            )
        return known

    def _settle(self) -> None:
        """Try the claims; states that rested on a refuted one are expanded again."""
        self.claims.settle()
        for claim in self.claims.refuted:
            self._todo.extend(claim.states)
            claim.states.clear()
        self.claims.refuted.clear()

    def _must_go_on_without_claims(self) -> bool:
        if self._makes_claims and self.claims.history.goes_round():
            self._makes_claims = False
            self._todo.extend(range(len(self.states)))
            self.ends.clear()
        return bool(self._todo)

    # --- the path to a state ---------------------------------------------------------------------------------

    def _path(self, number: int) -> tuple[Choice, ...]:
        """The choices of a world that lead to a state."""
        return tuple(reversed(list(self._way_back(number))))

    def _way_back(self, number: int) -> Iterator[Choice]:
        parents, nodes, events = self._origins
        while parents[number] != START:
            before, after = self.states[parents[number]], self.states[number]
            died = [site for site in self.compact.sites if before[site] != DEAD and after[site] == DEAD]
            if died:
                yield from reversed(self._death(died[0]))
            else:
                yield self.compact.choice(nodes[number], events[number])
            number = parents[number]

    def _death(self, site: int) -> tuple[Choice, Choice]:
        name = self.compact.names[site]
        return ("crash", name, NO_DETAIL), ("notice", name, NO_DETAIL)


class _FoundState(Exception):
    """A violation, and the path to it."""

    def __init__(self, violation: Violated | None, path: tuple[Choice, ...] = ()) -> None:
        super().__init__(str(violation))
        self.violation = violation
        self.path = path


def _size(group: list[Commutation]) -> int:
    return sum(len(claim.terms.chosen) for claim in group)
