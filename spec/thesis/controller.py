"""The controller: the view of all copies, failure and availability messages, and the order of catch-ups.

Thesis 3.2.3.1 and 3.4.3.3. Failures are detected at once (3.1.1). Messages to one operator arrive in the order they
were sent, with no order relative to the dataflow's. In a dataflow pair the controller only reports deaths and
standbys. For partition pairs it starts one catch-up at a time, from source to destination, when the sequence number of
the pair's last cu-ready is that of the last failure message sent to it.

Departure: both copies of a recovered pair send cu-done and the first one counts, because the active may die, when
fold-in is complete, with its cu-done in flight (variant "cu_done_of_active").
"""

from __future__ import annotations

from typing import Any

from .node import Node, Segment
from .scenario import Scenario
from .words import ACTIVE, CONTROLLER, DEAD, STDBY, At, Avail, Copy, CuDone, CuReady, CuStart, Fail, Message, Part, Row

Pair = tuple[int, int]


class Place(Part):
    """One slot of a pair: the copy in it, its mode, and the event that put it there."""

    def __init__(self, copy: Copy) -> None:
        self.copy = copy
        self.mode = ACTIVE
        self.event = 0


class Controller(Node):
    """The status of each partition, and at most one catch-up in progress."""

    ROLE = "controller"

    def __init__(self, scenario: Scenario) -> None:
        super().__init__(scenario, CONTROLLER, 0)
        self.slots: dict[Pair, list[Place]] = {
            pair: [Place(Copy(*pair, 0)), Place(Copy(*pair, 1))] for pair in scenario.pairs
        }
        self.events = dict.fromkeys(scenario.pairs, 0)
        self.failures = 0
        self.last_fail = dict.fromkeys(scenario.pairs, 0)
        self.last_ready = dict.fromkeys(scenario.pairs, 0)
        self.current: Copy | None = None  # The standby of the catch-up in progress.
        self.standbys = 0

    def action_of(self, sender: Copy, message: Message) -> tuple[str, At] | None:
        return message.kind, (sender.stage, str(sender.partition))

    # --- events of the environment -------------------------------------------------------------------------

    def fail(self, copy: Copy) -> None:
        """Report the death of a copy to every node with a connection to it."""
        place = next(place for place in self.slots[copy.pair] if place.copy == copy)
        place.mode = DEAD
        self.failures += 1
        self.events[copy.pair] += 1
        for to in self.neighbours(copy.pair):
            if to.pair in self.last_fail:
                self.last_fail[to.pair] = self.failures
            self.send(to, Fail(copy, self.failures, self.events[copy.pair]))

    def wants_standby(self) -> list[Pair]:
        """Return the pairs for which a new machine can be used."""
        if self.standbys >= self.scenario.standbys:
            return []
        return [pair for pair, places in self.slots.items() if any(place.mode == DEAD for place in places)]

    def bring_standby(self, pair: Pair) -> Segment:
        """Return a new copy in its initial state; report it to every node that must connect to it, and to itself."""
        slot = next(slot for slot, place in enumerate(self.slots[pair]) if place.mode == DEAD)
        number = 2 + self.standbys
        self.standbys += 1
        copy = Copy(*pair, number)
        place = self.slots[pair][slot]
        self.events[pair] += 1
        place.copy, place.mode, place.event = copy, STDBY, self.events[pair]
        standby = self.new_segment(copy, slot)
        for to in (*self.neighbours(pair), copy):
            donor = self.slots[pair][1 - slot].copy
            self.send(to, Avail(copy, slot, donor, self.events[pair]))
        return standby

    def new_segment(self, copy: Copy, slot: int) -> Segment:
        segment = Segment(self.scenario, copy, slot, STDBY)
        stage = copy.stage
        for channels, other in ((segment.ins, stage - 1), (segment.outs, stage + 1)):
            for i, channel in enumerate(channels):
                if (other, i) not in self.slots:
                    continue
                channel.seen = self.events[other, i]
                for s, place in enumerate(self.slots[other, i]):
                    dest = segment.dest(s)
                    channel.peer[dest], channel.status[dest] = place.copy, place.mode
                    channel.born[dest] = place.event
        return segment

    def neighbours(self, pair: Pair) -> list[Copy]:
        """Return the live copies of the pair and of the stages before and after it."""
        stage = pair[0]
        found = []
        for other in (stage - 1, stage, stage + 1):
            if other in (0, self.scenario.stages + 1):
                found.append(Copy(other, 0, 0))
            for (s, i), places in self.slots.items():
                if s == other and (s != stage or i == pair[1]):
                    found += [place.copy for place in places if place.mode != DEAD and not self.is_newest(place, pair)]
        return found

    def is_newest(self, place: Place, pair: Pair) -> bool:
        """Return whether this is the standby that is being announced: it gets the message last, separately."""
        return place.copy.pair == pair and place.mode == STDBY and place.event == self.events[pair]


def note_ready(n: Controller, at: At, m: CuReady) -> None:
    n.last_ready[at[0], int(at[1])] = m.seq


def needs_catch_up(n: Controller, pair: Pair) -> bool:
    return any(place.mode != ACTIVE for place in n.slots[pair])


def can_start(n: Controller, at: At, m: None) -> bool:
    """The pair closest to the source that needs catch-up has a standby, and has answered all failure messages."""
    pair = next((pair for pair in n.slots if needs_catch_up(n, pair)), None)
    if pair is None or n.current is not None or not n.scenario.is_coordinated:
        return False
    has_standby = any(place.mode == STDBY for place in n.slots[pair])
    return has_standby and n.last_ready[pair] == n.last_fail[pair]


def start(n: Controller, at: At, m: None) -> None:
    """{send(the remaining consumer, cu-start)}"""
    pair = next(pair for pair in n.slots if needs_catch_up(n, pair))
    survivor = next(place.copy for place in n.slots[pair] if place.mode == ACTIVE)
    n.current = next(place.copy for place in n.slots[pair] if place.mode == STDBY)
    n.send(survivor, CuStart(n.current))


def finish(n: Controller, at: At, m: CuDone) -> None:
    """Count the standby as alive, unless it has died since and another is in its place."""
    for place in n.slots[m.copy.pair]:
        if place.copy == m.copy and place.mode == STDBY:
            place.mode = ACTIVE
    if n.current == m.copy:
        n.current = None


def always(n: Controller, at: At, m: Any) -> bool:
    return True


ROWS = (
    Row("cu_ready", "cu-ready", always, note_ready, "3.4.3.3, cu-ready"),
    Row("cu_start", "", can_start, start, "3.4.3.3, cu-start"),
    Row("cu_done", "cu-done", always, finish, "3.4.3.3, cu-done"),
)
