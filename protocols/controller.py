"""Controller: owns the view, announces failures, and has lost copies rebuilt (thesis 3.2.3.1, 3.4.3.3).

It waits until every node of the plan is connected or dead and publishes the first view. From then on it publishes a
view for each change: a node died, a copy is being built, a copy is live. Copies are rebuilt from source to
destination, a few per stage at a time, on nodes that hold nothing yet, else where the fewest copies are,
and never where the partition has a copy already. If it was sent what copies cost each site, they are rebuilt where
they cost least (rule 38). When a partition has no copy left it emits `Lost`, and the
dataflow stops. An ingress or egress that died is replaced by the next process that connects to serve its stage.

Every death is listed in a view. The next view leaves the dead out, except those whose slots have not been filled
yet. So views do not grow with the sites that are replaced. A node that was left out and still runs is recognised by
its number, or because it has seen a view, and is refused like all the dead (rule 32).

Every view is in a journal before it is sent to any node. A controller that is started again begins with the last
one. Each node reports which views it has seen, is sent the rest, and repeats its earlier reports. So a recovery or a
move resumes from the last view after a restart in any phase, and the rest is reported again.

The thesis's messages are entries of views here: cu-ready is not needed, because attaches carry exact
positions; cu-start is a standby in the view; cu-done and fi-done are `CopyReady`. The order from source to
destination is policy, not safety.

Departure: an overloaded site is not made to fail (thesis 5.1.3.2). It is marked as slow: no node that has another
choice waits for it, and its copies are moved off, built from the others (rules 34, 35). So each has its partner.
If the user prefers it, a slow site for which no more rows can be kept loses its copies: see `Retire` (rule 42).

It also has the code of stages changed while the dataflow runs: `changes` has the requests and the attempts, and a
change that is agreed on is in the next view. While an attempt is open, what else would make a view waits for its end.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from . import placement
from .change_messages import (
    CLOSED,
    COMMITTED,
    SUPERSEDED,
    AbortChange,
    Ask,
    AttemptOverdue,
    Bound,
    Cannot,
    ChangeReport,
    CheckpointRetained,
    Passed,
    Past,
    Prepared,
    Reconfigure,
    ReportChange,
    Unbind,
)
from .changes import Changes, closed
from .machine import Machine, Rule, always, fence, ignore
from .messages import (
    VERSION,
    Closed,
    CopyCosts,
    CopyFailed,
    CopyReady,
    Effect,
    Hello,
    LinkDown,
    Lost,
    Move,
    Publish,
    Resend,
    Retire,
    Slow,
    Suspected,
    View,
    ViewsLost,
)
from .view import RETIRED, number_of


class Controller(Machine):
    """Owner of the view: at first the plan (a view with number 0), after a restart the last one in the journal.

    After a restart, new views are numbered from `number_from`: above every number that was given before, also to views
    that the journal has lost, so that no number stands for two views (rule 40).
    """

    def __init__(self, view: View, at_once: int = 1, number_from: int = 1, lead: int = 2) -> None:
        self.view = view
        self.number_from = number_from
        self.at_once = at_once  # Copies of one stage that are built at the same time.
        self.present: frozenset[str] = frozenset()  # The nodes that are connected.
        self.copy_costs: tuple[tuple[str, float], ...] = ()  # Of an average copy on each site, if they are known.
        self.changes = Changes(lead)
        self.waiting: tuple[CopyReady | Move | Slow | Retire, ...] = ()  # For the end of an attempt at a change.

    @property
    def title(self) -> str:
        return "Controller"

    @property
    def number(self) -> int:
        return self.view.number

    # Guards.

    def is_from_the_dead(self, message: Hello | CopyReady | CopyFailed | ChangeReport) -> bool:
        if isinstance(message, Prepared | Cannot):
            seen = 1  # A node is asked after its first view.
        else:  # Copies are of sites only, which are recognised by their numbers.
            seen = 0 if isinstance(message, CopyReady | CopyFailed) else message.view
        return message.node in self.view.dead or self.view.has_forgotten(message.node, seen)

    def is_expected(self, message: Hello) -> bool:
        has_seen = 0 <= message.view <= self.number
        serves = tuple(stage for stage in self._ends() if message.node in self.view.copies[stage][0])
        is_known = message.node in self.view.nodes and message.ends == serves
        is_the_one = all(message.incarnation == self._incarnation(stage) for stage in serves)
        return is_known and is_the_one and has_seen and self._may_join(message)

    def has_seen_a_lost_view(self, message: Hello) -> bool:
        """It has seen a later view than the last one, or one that listed it, and no view in the journal does."""
        if self.number_from == 1 or message.version != VERSION or message.view <= 0:
            return False  # A controller that was not started again has lost no view.
        is_later = any(
            message.incarnation > self._incarnation(stage) for stage in message.ends if stage in self._ends()
        )
        is_known = message.node in self.view.nodes or self.view.has_forgotten(message.node)
        is_unlisted = number_of(message.node) > 0 and not is_known
        return message.view > self.number or (is_later if message.ends else is_unlisted)

    def is_a_new_site(self, message: Hello) -> bool:
        # A site without a number, once dead and left out of the view, could not be distinguished from a new one.
        return not message.ends and number_of(message.node) > 0 and self._is_new(message)

    def is_a_new_end(self, message: Hello) -> bool:
        return self._serves_an_end(message) and not self._is_late(message)

    def is_late(self, message: Hello) -> bool:
        return self._serves_an_end(message)  # The row of `is_a_new_end` has not matched.

    def is_alive(self, message: Closed) -> bool:
        return self.view.alive(message.node)

    def can_be_spared(self, message: Suspected) -> bool:
        return message.node in self._can_be_spared()

    def is_known(self, message: Suspected) -> bool:
        return message.node in self.view.nodes

    def can_do_without_one(self, message: LinkDown) -> bool:
        return bool(self._ends_to_spare(message))

    def are_both_known(self, message: LinkDown) -> bool:
        return {message.a, message.b} <= set(self.view.nodes)

    def is_being_built(self, message: CopyReady | CopyFailed) -> bool:
        return any((s.version, s.node) == (message.version, message.node) for s in self.view.standby)

    def is_over(self, message: CopyReady | CopyFailed) -> bool:
        was_begun = 0 < message.version <= self.view.versions
        is_in_transfer = any(s.version == message.version for s in self.view.standby)
        return was_begun and not is_in_transfer and message.node in self.view.nodes

    def is_possible(self, message: Move) -> bool:
        stages = self.view.copies
        if self.number == 0 or not 0 <= message.stage < len(stages) or self.view.is_end(message.stage):
            return False  # There is no dataflow yet, or the stage is an end, which does not move.
        if not 0 <= message.partition < len(stages[message.stage]):
            return False
        copies = stages[message.stage][message.partition]
        building = any((s.stage, s.partition) == (message.stage, message.partition) for s in self.view.standby)
        is_copy = 0 <= message.slot < len(copies) and self.view.alive(copies[message.slot]) and not building
        return is_copy and message.to in placement.sites(self.view) and message.to not in copies

    def changes_what_is_slow(self, message: Slow) -> bool:
        return self.number > 0 and self._slow(message) != self.view.slow

    def can_do_without_its_copies(self, message: Retire) -> bool:
        return self.number > 0 and self.view.can_retire(message.node)

    def is_of_an_open_attempt(self, message: CopyReady | Move | Slow | Retire) -> bool:
        is_expected = not isinstance(message, CopyReady) or self.is_being_built(message)
        return self.changes.attempt is not None and is_expected

    def is_committed(self, message: Reconfigure) -> bool:
        return any(edition.number == message.number for edition in self.view.editions)

    def is_pending(self, message: Reconfigure | AbortChange) -> bool:
        return self.changes.is_pending(message.number)

    def is_over_or_late(self, message: Reconfigure) -> bool:
        return 0 < message.number <= self.changes.last_number(self.view)

    def is_sound(self, message: Reconfigure) -> bool:
        return self.changes.is_sound(self.view, message)

    def is_about_the_first_change(self, message: Prepared | Cannot) -> bool:
        return message.node in self.view.nodes and self.changes.is_first(message.number)

    def is_not_connected(self, message: Bound) -> bool:
        return message.node in self.view.nodes and message.node not in self.present

    def is_from_a_node(self, message: ChangeReport) -> bool:
        return message.node in self.view.nodes

    def is_bound_to_what_is_proposed(self, message: Bound) -> bool:
        return self.changes.is_answered_by(self.view, message)

    def refuses_what_is_proposed(self, message: Past) -> bool:
        return self.changes.is_refused_by(message)

    def is_of_a_member_now(self, message: Passed) -> bool:
        return self.changes.is_open(self.view, message)

    def keeps_others_waiting(self, message: AttemptOverdue) -> bool:
        return bool(self.waiting) and self.changes.is_first(message.number)

    # Actions.

    def welcome(self, message: Hello) -> Iterator[Effect]:
        self.present |= {message.node}
        if self.number == 0:
            yield from self._change(self.view)
        elif message.view < self.number:
            yield Resend(to=message.node, after=message.view)
        yield from self._go_on()

    def end_the_run(self, message: Hello) -> Iterator[Effect]:
        yield ViewsLost(node=message.node, seen=message.view, last=self.number)

    def take_in(self, message: Hello) -> Iterator[Effect]:
        self.present |= {message.node}
        yield from self._change(replace(self.view, nodes=(*self.view.nodes, message.node)))

    def replace_the_end(self, message: Hello) -> Iterator[Effect]:
        # An end is started again only after the last one has died, also if its connection has not closed yet.
        dead = {node for stage in message.ends for node in self.view.copies[stage][0]}
        copies = tuple(
            ((message.node,),) if stage in message.ends else partitions
            for stage, partitions in enumerate(self.view.copies)
        )
        self.present -= dead
        self.present |= {message.node}
        incarnations = dict(self.view.incarnations) | dict.fromkeys(message.ends, message.incarnation)
        view = replace(
            self.view,
            nodes=(*self.view.nodes, message.node),
            dead=self.view.dead | dead,
            copies=copies,
            incarnations=tuple(sorted(incarnations.items())),
        )
        yield from self._change(view)

    def declare_dead(self, message: Closed | Suspected) -> Iterator[Effect]:
        yield from self._without(message.node)

    def remove_one(self, message: LinkDown) -> Iterator[Effect]:
        load = placement.load(self.view)
        candidates = self._ends_to_spare(message)
        yield from self._without(min(candidates, key=lambda node: (load[node], -self.view.nodes.index(node))))

    def make_live(self, message: CopyReady) -> Iterator[Effect]:
        [done] = [s for s in self.view.standby if s.version == message.version]
        rest = tuple(s for s in self.view.standby if s.version != message.version)
        yield from self._change(replace(self.view, standby=rest, copies=placement.placed(self.view, done)))

    def give_up(self, message: CopyFailed) -> Iterator[Effect]:
        rest = tuple(s for s in self.view.standby if s.version != message.version)
        yield from self._change(replace(self.view, standby=rest))

    def start_move(self, message: Move) -> Iterator[Effect]:
        place = (message.stage, message.partition, message.slot)
        yield from self._change(placement.with_standby(self.view, *place, message.to))

    def mark_slow(self, message: Slow) -> Iterator[Effect]:
        yield from self._change(replace(self.view, slow=self._slow(message)))

    def retire_copies(self, message: Retire) -> Iterator[Effect]:
        copies = tuple(
            tuple(tuple(RETIRED if node == message.node else node for node in slots) for slots in partitions)
            for partitions in self.view.copies
        )
        yield from self._change(replace(self.view, copies=copies, dead=self.view.dead | {RETIRED}))

    def wait_for_the_attempt(self, message: CopyReady | Move | Slow | Retire) -> Iterator[Effect]:
        if message not in self.waiting:
            self.waiting = (*self.waiting, message)
        yield from ()

    def request_change(self, message: Reconfigure) -> Iterator[Effect]:
        self.changes.requests = (*self.changes.requests, message)
        yield from self._go_on()

    def repeat_outcome(self, message: Reconfigure) -> Iterator[Effect]:
        [edition] = [edition for edition in self.view.editions if edition.number == message.number]
        outcome = CLOSED if edition.closed else COMMITTED
        yield ReportChange(number=message.number, outcome=outcome, position=edition.position)

    def report_superseded(self, message: Reconfigure) -> Iterator[Effect]:
        reason = f"changes up to number {self.changes.last_number(self.view)} were requested before"
        yield ReportChange(number=message.number, outcome=SUPERSEDED, reason=reason)

    def abort_change(self, message: AbortChange) -> Iterator[Effect]:
        yield from self.changes.drop(message.number, "it was aborted")
        yield from self._go_on()

    def note_prepared(self, message: Prepared) -> Iterator[Effect]:
        self.changes.prepared |= {message.node}
        yield from self._go_on()

    def refuse_change(self, message: Cannot) -> Iterator[Effect]:
        yield from self.changes.drop(message.number, f"{message.node}: {message.reason}")
        yield from self._go_on()

    def note_bound(self, message: Bound) -> Iterator[Effect]:
        yield from self.changes.note_bound(self.view, message)
        edition = self.changes.commit()
        if edition is None:
            yield from self._go_on()
            return
        yield from self._change(replace(self.view, editions=(*self.view.editions, edition)))
        yield ReportChange(number=edition.number, outcome=COMMITTED, position=edition.position)

    def free(self, message: Bound) -> Iterator[Effect]:
        unbind = Unbind(view=message.view, number=message.number, position=message.position)
        yield Ask(to=(message.node,), message=unbind)

    def note_past(self, message: Past) -> Iterator[Effect]:
        yield from self.changes.note_past(message)
        yield from self._go_on()

    def give_up_the_attempt(self, message: AttemptOverdue) -> Iterator[Effect]:
        yield from self.changes.end_attempt(self.changes.proposed_to)
        yield from self._go_on()

    def note_passed(self, message: Passed) -> Iterator[Effect]:
        self.changes.passed |= {(message.number, message.node)}
        yield from self._go_on()

    def note_checkpoint(self, message: CheckpointRetained) -> Iterator[Effect]:
        self.changes.retained = message.position
        yield from self._go_on()

    def note_costs(self, message: CopyCosts) -> Iterator[Effect]:
        self.copy_costs = message.costs
        yield from ()

    # How it is done.

    def _slow(self, message: Slow) -> frozenset[str]:
        """The live sites among those that are slow."""
        return frozenset(placement.sites(self.view)) & frozenset(message.nodes)

    def _may_join(self, message: Hello) -> bool:
        """Whether the node speaks this protocol and is not connected already."""
        return message.version == VERSION and message.node not in self.present

    def _is_new(self, message: Hello) -> bool:
        is_unknown = message.node not in self.view.nodes and bool(message.node)
        return is_unknown and message.view == 0 and self._may_join(message)

    def _serves_an_end(self, message: Hello) -> bool:
        return self._is_new(message) and bool(message.ends) and set(message.ends) <= set(self._ends())

    def _is_late(self, message: Hello) -> bool:
        """Whether a later process serves its end, or the first one may still connect."""
        return any(message.incarnation <= self._incarnation(stage) for stage in message.ends)

    def _incarnation(self, stage: int) -> int:
        """The incarnation of the process that serves an end."""
        return dict(self.view.incarnations).get(stage, 1)

    def _ends(self) -> list[int]:
        return [stage for stage in range(len(self.view.copies)) if self.view.is_end(stage)]

    def _can_be_spared(self) -> list[str]:
        """The sites that may be declared dead while they may be alive: never the holder of a last copy (rule 19)."""
        return [node for node in placement.sites(self.view) if not self.view.needs(node)]

    def _ends_to_spare(self, message: LinkDown) -> list[str]:
        """Those of two nodes that cannot reach each other that may be removed."""
        if message.a == message.b or not (self.view.alive(message.a) and self.view.alive(message.b)):
            return []
        return [node for node in self._can_be_spared() if node in (message.a, message.b)]

    def _without(self, node: str) -> Iterator[Effect]:
        self.present -= {node}
        yield from self._change(placement.without(self.view, node))

    def _change(self, view: View) -> Iterator[Effect]:
        """Publish `view` as the next one, with the copies to build; the first one only when all nodes are connected."""
        lost = view.lost()
        if self.number == 0 and any(view.alive(node) and node not in self.present for node in view.nodes):
            self.view = view
        elif lost:
            self.view = view  # It is not published: the dataflow stops.
            yield Lost(partitions=lost)
        else:
            number = max(view.number + 1, self.number_from)
            self.view = self._with_recovery(replace(self._forgetting(view), number=number, follows=view.number))
            yield Publish(view=self.view, to=tuple(sorted(self.present)))
            self.changes.adopt(self.view)
            yield from self._go_on()

    def _go_on(self) -> Iterator[Effect]:
        """Do what an attempt at a change has kept waiting, if none is open; then close a change, or attempt one."""
        while self.waiting and self.changes.attempt is None:
            first, self.waiting = self.waiting[0], self.waiting[1:]
            if not (isinstance(first, CopyReady) and self.is_from_the_dead(first)):
                yield from self.step(first)
        edition = self.changes.to_close(self.view)
        if edition is not None:
            yield from self._change(replace(self.view, editions=closed(self.view.editions, edition.number)))
            yield ReportChange(number=edition.number, outcome=CLOSED, position=edition.position)
        yield from self.changes.propose(self.view, self.present)

    def _forgetting(self, view: View) -> View:
        """Return `view` without the nodes that were dead in the last one and have no slot any more (rule 32)."""
        if self.number == 0:
            return view  # No view has been published.
        placed = {node for partitions in view.copies for copies in partitions for node in copies}
        gone = self.view.dead - placed
        return replace(
            view,
            nodes=tuple(node for node in view.nodes if node not in gone),
            dead=view.dead - gone,
            forgotten=max([view.forgotten, *map(number_of, gone)]),
        )

    def _with_recovery(self, view: View) -> View:
        """Begin to rebuild the lost copies of the stage nearest to the source, at most `at_once` at a time."""
        for stage, partitions in enumerate(view.copies):
            if view.is_end(stage):
                continue
            vacant = [
                (partition, slot)
                for partition, copies in enumerate(partitions)
                for slot, node in enumerate(copies)
                if node in view.dead
            ]
            for partition, slot in vacant:
                building = {s.partition for s in view.standby if s.stage == stage}
                node = placement.best_place(view, stage, partition, dict(self.copy_costs))
                if node is None or (partitions[partition][slot] == RETIRED and node in view.slow):
                    continue  # There is no place, or only one at which the copy would be retired again (rule 42).
                if partition not in building and len(building) < self.at_once:
                    view = placement.with_standby(view, stage, partition, slot, node)
            if any(s.stage == stage for s in view.standby):
                return view
        return view


_IN_AN_ATTEMPT = "rule 48: only deaths and arrivals make views"
_MUTE = "rules 12, 32: dead nodes are mute, listed or not"
_NO_MORE = "rule 12: it is not wanted any more"
_RETIRED = "5.1.3.2: an induced failure; rule 42"
Controller.RULES = (
    Rule(on=Hello, guard=Controller.has_seen_a_lost_view, action=Controller.end_the_run, cites="rule 40"),
    Rule(on=Hello, guard=Controller.is_from_the_dead, action=fence, cites=_MUTE),
    Rule(on=Hello, guard=Controller.is_expected, action=Controller.welcome, cites="3.2.3.1: set up; a restart"),
    Rule(on=Hello, guard=Controller.is_a_new_site, action=Controller.take_in, cites="3.2.4: avail"),
    Rule(on=Hello, guard=Controller.is_a_new_end, action=Controller.replace_the_end, cites="an end was started again"),
    Rule(on=Hello, guard=Controller.is_late, action=ignore, cites="a later process serves that end"),
    Rule(on=Closed, guard=Controller.is_alive, action=Controller.declare_dead, cites="3.2.3.1: fail; rule 17"),
    Rule(on=Closed, guard=always, action=ignore, cites="it is known dead, or never joined"),
    Rule(on=Suspected, guard=Controller.can_be_spared, action=Controller.declare_dead, cites="3.2.3.1: fail; rule 19"),
    Rule(on=Suspected, guard=Controller.is_known, action=ignore, cites="rule 19: it is dead, or may not go"),
    Rule(on=LinkDown, guard=Controller.can_do_without_one, action=Controller.remove_one, cites="rule 19"),
    Rule(on=LinkDown, guard=Controller.are_both_known, action=ignore, cites="rule 19: one is dead, or neither may go"),
    Rule(on=CopyReady, guard=Controller.is_from_the_dead, action=fence, cites=_MUTE),
    Rule(on=CopyFailed, guard=Controller.is_from_the_dead, action=fence, cites=_MUTE),
    Rule(
        on=CopyReady,
        guard=Controller.is_of_an_open_attempt,
        action=Controller.wait_for_the_attempt,
        cites=_IN_AN_ATTEMPT,
    ),
    Rule(on=CopyReady, guard=Controller.is_being_built, action=Controller.make_live, cites="3.4.3.3: cu-done; rule 5"),
    Rule(on=CopyFailed, guard=Controller.is_being_built, action=Controller.give_up, cites="rule 17"),
    Rule(on=Move, guard=Controller.is_of_an_open_attempt, action=Controller.wait_for_the_attempt, cites=_IN_AN_ATTEMPT),
    Rule(on=Move, guard=Controller.is_possible, action=Controller.start_move, cites="5.1: moves by a third copy"),
    Rule(on=CopyReady, guard=Controller.is_over, action=ignore, cites=_NO_MORE),
    Rule(on=CopyFailed, guard=Controller.is_over, action=ignore, cites=_NO_MORE),
    Rule(on=Move, guard=always, action=ignore, cites=_NO_MORE),
    Rule(on=Slow, guard=Controller.is_of_an_open_attempt, action=Controller.wait_for_the_attempt, cites=_IN_AN_ATTEMPT),
    Rule(on=Slow, guard=Controller.changes_what_is_slow, action=Controller.mark_slow, cites="5.1.3.2; rule 35"),
    Rule(on=Slow, guard=always, action=ignore, cites="rule 35: they are marked already, or nothing runs yet"),
    Rule(
        on=Retire, guard=Controller.is_of_an_open_attempt, action=Controller.wait_for_the_attempt, cites=_IN_AN_ATTEMPT
    ),
    Rule(on=Retire, guard=Controller.can_do_without_its_copies, action=Controller.retire_copies, cites=_RETIRED),
    Rule(on=Retire, guard=always, action=ignore, cites="rule 42: it is needed, not slow any more, or holds nothing"),
    Rule(on=CopyCosts, guard=always, action=Controller.note_costs, cites="5.1.3.3: by load; rule 38"),
    Rule(on=Prepared, guard=Controller.is_from_the_dead, action=fence, cites=_MUTE),
    Rule(on=Cannot, guard=Controller.is_from_the_dead, action=fence, cites=_MUTE),
    Rule(on=Bound, guard=Controller.is_from_the_dead, action=fence, cites=_MUTE),
    Rule(on=Past, guard=Controller.is_from_the_dead, action=fence, cites=_MUTE),
    Rule(on=Passed, guard=Controller.is_from_the_dead, action=fence, cites=_MUTE),
    Rule(on=Reconfigure, guard=Controller.is_committed, action=Controller.repeat_outcome, cites="rule 49: asked again"),
    Rule(on=Reconfigure, guard=Controller.is_pending, action=ignore, cites="it is known"),
    Rule(
        on=Reconfigure,
        guard=Controller.is_over_or_late,
        action=Controller.report_superseded,
        cites="rule 49: numbers rise",
    ),
    Rule(on=Reconfigure, guard=Controller.is_sound, action=Controller.request_change, cites="Fries 2.2"),
    Rule(on=AbortChange, guard=Controller.is_pending, action=Controller.abort_change, cites="rule 51"),
    Rule(on=AbortChange, guard=always, action=ignore, cites="it is committed, or over"),
    Rule(on=Prepared, guard=Controller.is_about_the_first_change, action=Controller.note_prepared, cites="rule 51"),
    Rule(on=Prepared, guard=Controller.is_from_a_node, action=ignore, cites="that change is over"),
    Rule(on=Cannot, guard=Controller.is_about_the_first_change, action=Controller.refuse_change, cites="rule 51"),
    Rule(on=Cannot, guard=Controller.is_from_a_node, action=ignore, cites="that change is over"),
    Rule(on=Bound, guard=Controller.is_not_connected, action=ignore, cites="rule 26: it is repeated after the hello"),
    Rule(on=Bound, guard=Controller.is_bound_to_what_is_proposed, action=Controller.note_bound, cites="rules 44, 48"),
    Rule(on=Bound, guard=Controller.is_from_a_node, action=Controller.free, cites="rule 50: of no open attempt"),
    Rule(on=Past, guard=Controller.refuses_what_is_proposed, action=Controller.note_past, cites="rule 45"),
    Rule(on=Past, guard=Controller.is_from_a_node, action=ignore, cites="rule 48: that attempt is over"),
    Rule(on=Passed, guard=Controller.is_of_a_member_now, action=Controller.note_passed, cites="rule 52"),
    Rule(on=Passed, guard=Controller.is_from_a_node, action=ignore, cites="rule 52: it is stated anew in each view"),
    Rule(
        on=AttemptOverdue, guard=Controller.keeps_others_waiting, action=Controller.give_up_the_attempt, cites="rule 48"
    ),
    Rule(on=AttemptOverdue, guard=always, action=ignore, cites="rule 48: it is over, or nothing waits"),
    Rule(on=CheckpointRetained, guard=always, action=Controller.note_checkpoint, cites="rule 52"),
)
