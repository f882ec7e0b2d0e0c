"""Controller: owns the view, announces failures, and has lost copies rebuilt (thesis 3.2.3.1, 3.4.3.3).

It waits until every node of the plan is there, publishes the first view, and from then on a view for
each change: a node died, a copy is being built, a copy is live. Copies are rebuilt from source to
destination, a few per stage at a time, on nodes that hold nothing yet, else where the fewest copies are,
and never where the partition has a copy already. When a partition has no copy left it says so, and the
dataflow stops.

The thesis's messages are entries of views here: cu-ready is not needed, because attaches carry exact
positions; cu-start is a standby in the view; cu-done and fi-done are `Done`. The order from source to
destination is policy, not safety.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

from .machine import Machine, Rule, always, ignore
from .messages import Closed, Done, Effect, Failed, Hello, Lost, Move, Publish, Standby, View


class Controller(Machine):
    """Keeper of the view that starts as `plan` (a view with number 0)."""

    def __init__(self, plan: View, at_once: int = 1) -> None:
        self.view = plan
        self.at_once = at_once  # Copies of one stage that are built at the same time.
        self.present: tuple[str, ...] = ()
        self.versions = 0

    # Guards.

    def completes_the_plan(self, message: Hello) -> bool:
        return self.is_awaited(message) and len(self.present) + 1 == len(self.view.nodes)

    def is_awaited(self, message: Hello) -> bool:
        return message.node in self.view.nodes and message.node not in self.present and self.view.number == 0

    def is_new(self, message: Hello) -> bool:
        return self.view.number > 0 and message.node not in self.view.nodes

    def is_setting_up(self, message: Closed) -> bool:
        return self.view.number == 0

    def was_alive(self, message: Closed) -> bool:
        return self.view.alive(message.node)

    def is_known_dead(self, message: Closed) -> bool:
        return message.node in self.view.dead

    def is_being_built(self, message: Done | Failed) -> bool:
        return any((s.version, s.node) == (message.version, message.node) for s in self.view.standby)

    def is_possible(self, message: Move) -> bool:
        stages = self.view.copies
        if self.view.number == 0 or not 0 < message.stage < len(stages) - 1:
            return False  # There is no dataflow yet, or it is an end of it, which does not move.
        if not 0 <= message.partition < len(stages[message.stage]):
            return False
        copies = stages[message.stage][message.partition]
        building = any((s.stage, s.partition) == (message.stage, message.partition) for s in self.view.standby)
        live = self.view.live_copies(message.stage, message.partition)
        is_copy = 0 <= message.slot < len(copies) and bool(live) and not building
        return is_copy and message.to in _sites(self.view) and message.to not in copies

    # Actions.

    def admit(self, message: Hello) -> Iterator[Effect]:
        self.present = (*self.present, message.node)
        yield from ()

    def publish_the_first_view(self, message: Hello) -> Iterator[Effect]:
        self.present = (*self.present, message.node)
        yield from self._publish(self.view)

    def take_in(self, message: Hello) -> Iterator[Effect]:
        self.present = (*self.present, message.node)
        yield from self._publish(replace(self.view, nodes=(*self.view.nodes, message.node)))

    def announce(self, message: Closed) -> Iterator[Effect]:
        dead = self.view.dead | {message.node}
        view = replace(self.view, dead=dead)
        kept = tuple(s for s in view.standby if s.node not in dead and not self._can_start_again(view, s))
        yield from self._publish(replace(view, standby=kept))

    def make_live(self, message: Done) -> Iterator[Effect]:
        [done] = [s for s in self.view.standby if s.version == message.version]
        rest = tuple(s for s in self.view.standby if s.version != message.version)
        yield from self._publish(replace(self.view, standby=rest, copies=_placed(self.view, done)))

    def give_up(self, message: Failed) -> Iterator[Effect]:
        rest = tuple(s for s in self.view.standby if s.version != message.version)
        yield from self._publish(replace(self.view, standby=rest))

    def start_move(self, message: Move) -> Iterator[Effect]:
        view = self._with_standby(self.view, message.stage, message.partition, message.slot, message.to)
        yield from self._publish(view)

    # How it is done.

    def _can_start_again(self, view: View, standby: Standby) -> bool:
        """Whether the donor is dead and another copy can take its place (rule 17)."""
        return standby.donor in view.dead and bool(view.live_copies(standby.stage, standby.partition))

    def _publish(self, view: View) -> Iterator[Effect]:
        """Publish `view` as the next one, with whatever may be built from now on."""
        view = replace(view, number=view.number + 1)
        lost = view.lost()
        if lost:
            self.view = view
            yield Lost(partitions=lost)
            return
        self.view = self._with_recovery(view)
        yield Publish(view=self.view)

    def _with_recovery(self, view: View) -> View:
        """Begin to rebuild what is lost in the stage nearest to the source, as many copies as may be at once."""
        for stage, partitions in enumerate(view.copies[1:-1], start=1):
            building = {s.partition for s in view.standby if s.stage == stage}
            vacant = [
                (partition, slot)
                for partition, copies in enumerate(partitions)
                for slot, node in enumerate(copies)
                if node in view.dead and partition not in building
            ]
            for partition, slot in vacant[: max(0, self.at_once - len(building))]:
                node = _best_place(view, stage, partition)
                if node is not None:
                    view = self._with_standby(view, stage, partition, slot, node)
            if vacant or building:
                return view
        return view

    def _with_standby(self, view: View, stage: int, partition: int, slot: int, node: str) -> View:
        self.versions += 1
        standby = Standby(
            version=self.versions,
            stage=stage,
            partition=partition,
            slot=slot,
            node=node,
            donor=view.live_copies(stage, partition)[0],
        )
        return replace(view, standby=(*view.standby, standby))


def _placed(view: View, done: Standby) -> tuple[tuple[tuple[str, ...], ...], ...]:
    """The copies with `done` in its slot."""
    stage = list(view.copies[done.stage])
    copies = list(stage[done.partition])
    copies[done.slot] = done.node
    stage[done.partition] = tuple(copies)
    return (*view.copies[: done.stage], tuple(stage), *view.copies[done.stage + 1 :])


def _sites(view: View) -> list[str]:
    """The live nodes that may hold copies: all but the ingress and the egress."""
    ends = {node for copies in (*view.copies[0], *view.copies[-1]) for node in copies}
    return [node for node in view.nodes if view.alive(node) and node not in ends]


def _best_place(view: View, stage: int, partition: int) -> str | None:
    """The live site with the fewest copies that has none of this partition; None if there is no such site."""
    taken = view.live_copies(stage, partition)
    free = [node for node in _sites(view) if node not in taken]
    load = Counter(node for partitions in view.copies for copies in partitions for node in copies)
    load.update(standby.node for standby in view.standby)
    return min(free, key=lambda node: (load[node], view.nodes.index(node)), default=None)


_ROWS = (
    Rule(
        on=Hello,
        guard=Controller.completes_the_plan,
        action=Controller.publish_the_first_view,
        cites="3.2.3.1: set up the dataflow",
    ),
    Rule(on=Hello, guard=Controller.is_awaited, action=Controller.admit, cites="3.2.3.1: set up the dataflow"),
    Rule(on=Hello, guard=Controller.is_new, action=Controller.take_in, cites="3.2.4: avail"),
    Rule(on=Closed, guard=Controller.is_setting_up, action=ignore, cites="whoever started it sees it fail"),
    Rule(on=Closed, guard=Controller.was_alive, action=Controller.announce, cites="3.2.3.1: fail; rule 17"),
    Rule(on=Closed, guard=Controller.is_known_dead, action=ignore, cites="a node dies once"),
    Rule(on=Done, guard=Controller.is_being_built, action=Controller.make_live, cites="3.4.3.3: cu-done; rule 5"),
    Rule(on=Failed, guard=Controller.is_being_built, action=Controller.give_up, cites="rule 17"),
    Rule(on=Move, guard=Controller.is_possible, action=Controller.start_move, cites="5.1: moves by a third copy"),
)
_IGNORED = tuple(
    Rule(on=kind, guard=always, action=ignore, cites="rule 12: it is not wanted any more")
    for kind in (Done, Failed, Move)
)
Controller.RULES = (*_ROWS, *_IGNORED)
