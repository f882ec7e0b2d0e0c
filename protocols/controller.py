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
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace

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
    Standby,
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

    def __init__(self, view: View, at_once: int = 1, number_from: int = 1) -> None:
        self.view = view
        self.number_from = number_from
        self.at_once = at_once  # Copies of one stage that are built at the same time.
        self.present: frozenset[str] = frozenset()  # The nodes that are connected.
        self.copy_costs: tuple[tuple[str, float], ...] = ()  # Of an average copy on each site, if they are known.

    @property
    def title(self) -> str:
        return "Controller"

    @property
    def number(self) -> int:
        return self.view.number

    # Guards.

    def is_from_the_dead(self, message: Hello | CopyReady | CopyFailed) -> bool:
        seen = message.view if isinstance(message, Hello) else 0  # The other messages come from sites only.
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
        return is_copy and message.to in _sites(self.view) and message.to not in copies

    def changes_what_is_slow(self, message: Slow) -> bool:
        return self.number > 0 and self._slow(message) != self.view.slow

    def can_do_without_its_copies(self, message: Retire) -> bool:
        return self.number > 0 and self.view.can_retire(message.node)

    # Actions.

    def welcome(self, message: Hello) -> Iterator[Effect]:
        self.present |= {message.node}
        if self.number == 0:
            yield from self._change(self.view)
        elif message.view < self.number:
            yield Resend(to=message.node, after=message.view)

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
        load = _load(self.view)
        candidates = self._ends_to_spare(message)
        yield from self._without(min(candidates, key=lambda node: (load[node], -self.view.nodes.index(node))))

    def make_live(self, message: CopyReady) -> Iterator[Effect]:
        [done] = [s for s in self.view.standby if s.version == message.version]
        rest = tuple(s for s in self.view.standby if s.version != message.version)
        yield from self._change(replace(self.view, standby=rest, copies=_placed(self.view, done)))

    def give_up(self, message: CopyFailed) -> Iterator[Effect]:
        rest = tuple(s for s in self.view.standby if s.version != message.version)
        yield from self._change(replace(self.view, standby=rest))

    def start_move(self, message: Move) -> Iterator[Effect]:
        yield from self._change(_with_standby(self.view, message.stage, message.partition, message.slot, message.to))

    def mark_slow(self, message: Slow) -> Iterator[Effect]:
        yield from self._change(replace(self.view, slow=self._slow(message)))

    def retire_copies(self, message: Retire) -> Iterator[Effect]:
        copies = tuple(
            tuple(tuple(RETIRED if node == message.node else node for node in slots) for slots in partitions)
            for partitions in self.view.copies
        )
        yield from self._change(replace(self.view, copies=copies, dead=self.view.dead | {RETIRED}))

    def note_costs(self, message: CopyCosts) -> Iterator[Effect]:
        self.copy_costs = message.costs
        yield from ()

    # How it is done.

    def _slow(self, message: Slow) -> frozenset[str]:
        """The live sites among those that are slow."""
        return frozenset(_sites(self.view)) & frozenset(message.nodes)

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
        return [node for node in _sites(self.view) if not self.view.needs(node)]

    def _ends_to_spare(self, message: LinkDown) -> list[str]:
        """Those of two nodes that cannot reach each other that may be removed."""
        if message.a == message.b or not (self.view.alive(message.a) and self.view.alive(message.b)):
            return []
        return [node for node in self._can_be_spared() if node in (message.a, message.b)]

    def _without(self, node: str) -> Iterator[Effect]:
        self.present -= {node}
        yield from self._change(_without(self.view, node))

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
                node = _best_place(view, stage, partition, dict(self.copy_costs))
                if node is None or (partitions[partition][slot] == RETIRED and node in view.slow):
                    continue  # There is no place, or only one at which the copy would be retired again (rule 42).
                if partition not in building and len(building) < self.at_once:
                    view = _with_standby(view, stage, partition, slot, node)
            if any(s.stage == stage for s in view.standby):
                return view
        return view


def _without(view: View, node: str) -> View:
    """The view when `node` is dead. A standby that lost its donor stays: only its site knows if it has the state."""
    kept = tuple(s for s in view.standby if s.node != node)
    return replace(view, dead=view.dead | {node}, standby=kept, slow=view.slow - {node})


def _with_standby(view: View, stage: int, partition: int, slot: int, node: str) -> View:
    """The view with one more copy to be built."""
    standby = Standby(
        version=view.versions + 1,
        stage=stage,
        partition=partition,
        slot=slot,
        node=node,
        donor=_donor(view, stage, partition, slot),
    )
    return replace(view, standby=(*view.standby, standby), versions=standby.version)


def _donor(view: View, stage: int, partition: int, slot: int) -> str:
    """A live copy other than the one in `slot`, which leaves its site, and one that is not slow if possible (rule 34).

    The site that a copy leaves is often overloaded: the new copy would begin as far back as that one lags.
    """
    leaving = view.copies[stage][partition][slot]
    return min(view.live_copies(stage, partition), key=lambda node: (node == leaving, node in view.slow))


def _placed(view: View, done: Standby) -> tuple[tuple[tuple[str, ...], ...], ...]:
    """The copies with `done` in its slot, or in that of a copy that died since, so that no live copy is replaced."""
    stage = list(view.copies[done.stage])
    copies = list(stage[done.partition])
    copies[next((slot for slot, node in enumerate(copies) if node in view.dead), done.slot)] = done.node
    stage[done.partition] = tuple(copies)
    return (*view.copies[: done.stage], tuple(stage), *view.copies[done.stage + 1 :])


def _sites(view: View) -> list[str]:
    """The live nodes that may hold copies: all but the ingress and the egresses."""
    ends = {node for stage, copies in enumerate(view.copies) if view.is_end(stage) for node in copies[0]}
    return [node for node in view.nodes if view.alive(node) and node not in ends]


def _load(view: View) -> Counter[str]:
    """The number of copies that each node has, or is to have."""
    load = Counter(node for partitions in view.copies for copies in partitions for node in copies)
    load.update(standby.node for standby in view.standby)
    return load


def _best_place(view: View, stage: int, partition: int, costs: Mapping[str, float]) -> str | None:
    """The live site with the least load that has no copy of this partition; None if there is no such site.

    The load is the number of copies with the new one, times what a copy costs that site. A slow site comes last.
    """
    taken = view.live_copies(stage, partition)
    free = [node for node in _sites(view) if node not in taken]
    load = _load(view)
    usual = sum(costs.values()) / len(costs) if costs else 1.0

    def weight(node: str) -> tuple[bool, float, int]:
        return node in view.slow, (load[node] + 1) * costs.get(node, usual), view.nodes.index(node)

    return min(free, key=weight, default=None)


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
    Rule(on=CopyReady, guard=Controller.is_being_built, action=Controller.make_live, cites="3.4.3.3: cu-done; rule 5"),
    Rule(on=CopyFailed, guard=Controller.is_being_built, action=Controller.give_up, cites="rule 17"),
    Rule(on=Move, guard=Controller.is_possible, action=Controller.start_move, cites="5.1: moves by a third copy"),
    Rule(on=CopyReady, guard=Controller.is_over, action=ignore, cites=_NO_MORE),
    Rule(on=CopyFailed, guard=Controller.is_over, action=ignore, cites=_NO_MORE),
    Rule(on=Move, guard=always, action=ignore, cites=_NO_MORE),
    Rule(on=Slow, guard=Controller.changes_what_is_slow, action=Controller.mark_slow, cites="5.1.3.2; rule 35"),
    Rule(on=Slow, guard=always, action=ignore, cites="rule 35: they are marked already, or nothing runs yet"),
    Rule(on=Retire, guard=Controller.can_do_without_its_copies, action=Controller.retire_copies, cites=_RETIRED),
    Rule(on=Retire, guard=always, action=ignore, cites="rule 42: it is needed, not slow any more, or holds nothing"),
    Rule(on=CopyCosts, guard=always, action=Controller.note_costs, cites="5.1.3.3: by load; rule 38"),
)
