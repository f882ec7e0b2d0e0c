"""Commutation: claims that, in a state of one process, certain events commute with all that may happen first.

`explore` follows only some of the events of a world, on the claim that the others may as well happen later. This
module finds out whether such a claim is true. It looks at one process at a time and assumes nothing of machines.

A `Commutation` is about a process and some of its events, the *chosen* ones. While none of them happens, others may:
messages arrive and are taken, work is finished. The claim is that each of these commutes with each chosen event: both
orders give the same process and send the same messages, in the same order to each node. A message that is sent earlier
does no harm: it waits on its link.

How the others are found: all that may happen to a process before a chosen event may happen after it too, as long as
it commutes. So whatever is *seen* after a chosen event is tried before it, by stepping the machines. If it
commutes it counts as seen there as well, and the same claim is made about the process it leads to. If not, the claim
is refuted. A claim that is not refuted when the exploration has ended is true, because by
then all that may happen after a chosen event has been seen.

What need not be tried:
- what waits after a chosen event on the same link, and work that only a chosen event gives;
- a message that its sender cannot have sent next: links are FIFO, and what a process may send after a message is
  known from all its steps that were seen;
- messages of a `silent` node: one that is dead, or whose events are chosen too. For the latter the claim must also
  hold that it sends nothing to the others of its kind, the nodes in `shut`, before a chosen event happens.

A refuted claim names a node to blame: if that node had been silent, the claim would not have failed here.
"""

from __future__ import annotations

from collections import defaultdict
from typing import NamedTuple

from ..protocols.messages import Closed
from .memo import Compact, Posts
from .message_history import MessageHistory, Reason

NO_NODE = -1  # To blame: the claim fails whichever nodes are silent.


class Terms(NamedTuple):
    """The content of a claim. Bits stand for nodes."""

    process: int
    chosen: tuple[int, ...]
    last: tuple[tuple[int, int], ...]  # By sender: the last message taken; ~message if that one is next.
    own: tuple[int, ...] | None  # What waits on the link to itself; None if its head is chosen.
    silent: int
    shut: int


class Commutation:
    """Some terms, and whether they have been refuted."""

    __slots__ = ("blame", "parents", "states", "terms")

    def __init__(self, terms: Terms) -> None:
        self.terms = terms
        self.blame: int | None = None  # Set when it is refuted.
        self.parents: dict[Commutation, None] = {}  # Claims that rest on this one.
        self.states: list[int] = []  # Where the exploration rests on it.


# A claim, a chosen event (None: there is none), and an event seen after it that is to be tried.
CommutationTask = tuple[Commutation, int | None, int]


class Commutations:
    """All claims about the processes of one world, and what was seen of these processes."""

    def __init__(self, compact: Compact) -> None:
        self.compact = compact
        self.history = MessageHistory(compact)
        self.seen: defaultdict[int, set[int]] = defaultdict(set)  # By process: events that may happen there.
        self.refuted: list[Commutation] = []  # Since the explorer last looked.
        self._claims: dict[Terms, Commutation] = {}
        self._listeners: defaultdict[int, list[tuple[Commutation, int | None]]] = defaultdict(list)
        self._waiting: defaultdict[Reason, list[CommutationTask]] = defaultdict(list)
        self._commute: dict[tuple[int, int, int], bool] = {}
        self._todo: list[CommutationTask] = []

    def claim(self, terms: Terms) -> Commutation:
        """Return the claim with these terms, tried against all that was seen up to now."""
        claim = self._claim(terms)
        self.settle()
        return claim

    def see(self, process: int, event: int) -> None:
        """Record that `event` may happen to `process`."""
        if event in self.seen[process]:
            return
        self.seen[process].add(event)
        self._todo.extend((claim, chosen, event) for claim, chosen in self._listeners[process])
        after, posts = self.compact.step(process, event)
        self.history.step(process, event, after, posts)
        for reason in self.history.grown:
            self._todo.extend(self._waiting.pop(reason, ()))
        self.history.grown.clear()

    def settle(self) -> None:
        """Try all claims against all that was seen."""
        while self._todo:
            claim, chosen, event = self._todo.pop()
            if claim.blame is None:
                self._try(claim, chosen, event)

    # --- trying -----------------------------------------------------------------------------------------

    def _try(self, claim: Commutation, chosen: int | None, event: int) -> None:
        """Try `event`, which was seen after `chosen`, before it."""
        terms = claim.terms
        if not self._may_happen(claim, chosen, event):
            return
        if chosen is not None and not self._commutes(terms.process, chosen, event):
            self._refute(claim, self._to_blame(terms, event))
            return
        after, posts = self.compact.step(terms.process, event)
        if any(terms.shut >> to & 1 for to, _ in posts):
            self._refute(claim, self._to_blame(terms, event))
            return
        if chosen is not None:
            self.see(terms.process, event)
            self.see(after, chosen)
        following = self._claim(self._following(terms, event, after, posts))
        if following.blame is not None:
            self._refute(claim, following.blame)
        elif following is not claim:
            following.parents[claim] = None

    def _claim(self, terms: Terms) -> Commutation:
        known = self._claims.get(terms)
        if known is not None:
            return known
        claim = self._claims[terms] = Commutation(terms)
        for chosen in terms.chosen or (None,):
            after = self._process_after(terms.process, chosen)
            if after is None:
                self._refute(claim, NO_NODE)
                break
            self._listeners[after].append((claim, chosen))
            self._todo.extend((claim, chosen, event) for event in self.seen[after])
        return claim

    def _process_after(self, process: int, chosen: int | None) -> int | None:
        """The process after a chosen event; None if that raises an error or ends the world."""
        try:
            after = process if chosen is None else self.compact.step(process, chosen)[0]
        except Exception:
            return None
        return None if self.compact.has_given_up(after) else after

    def _may_happen(self, claim: Commutation, chosen: int | None, event: int) -> bool:
        """Whether `event` may happen before any chosen event."""
        process, all_chosen, last, own, silent, _ = claim.terms
        if event < 0:
            return event not in all_chosen and event in self.compact.work[process]
        sender, to, message = self.compact.mail.values[event]
        if any(sender == self.compact.sender(other) for other in all_chosen) or type(message) is Closed:
            return False  # No claims are made about the controller while sites may crash.
        if sender == to:
            return own is not None and own[:1] == (event,)
        if silent >> sender & 1:
            return False
        before = dict(last).get(sender)
        if before is not None and before < 0:
            return event == ~before
        reasons = self.history.why_not_yet(process, before, event)
        for reason in reasons:
            self._waiting[reason].append((claim, chosen, event))
        return not reasons

    def _following(self, terms: Terms, event: int, after: int, posts: Posts) -> Terms:
        """The terms when `event` has happened."""
        last, own, node = terms.last, terms.own, self.compact.nodes[terms.process]
        sender = self.compact.sender(event)
        if event >= 0 and sender == node:
            assert own is not None
            own = own[1:]
        elif event >= 0:
            last = tuple(sorted({**dict(last), sender: event}.items()))
        if own is not None:
            own += tuple(message for to, batch in posts if to == node for message in self.compact.batches.values[batch])
        return terms._replace(process=after, last=last, own=own)

    def _commutes(self, process: int, one: int, other: int) -> bool:
        known = self._commute.get((process, one, other))
        if known is None:
            try:
                known = self._both(process, one, other) == self._both(process, other, one)
            except Exception:
                known = False  # If this can really happen, the exploration will see it happen.
            self._commute[process, one, other] = known
        return known

    def _both(self, process: int, one: int, other: int) -> tuple[int, dict[int, tuple[int, ...]]]:
        """The process after two events, and all messages it sends."""
        between, first = self.compact.step(process, one)
        after, second = self.compact.step(between, other)
        sent: dict[int, tuple[int, ...]] = {}
        for to, batch in (*first, *second):
            sent[to] = sent.get(to, ()) + self.compact.batches.values[batch]
        return after, sent

    def _to_blame(self, terms: Terms, event: int) -> int:
        sender = self.compact.sender(event)
        if sender not in (NO_NODE, self.compact.nodes[terms.process]):
            return sender
        return next((sender for sender, before in terms.last if before >= 0), NO_NODE)

    def _refute(self, claim: Commutation, blame: int) -> None:
        todo = [claim]
        while todo:
            claim = todo.pop()
            if claim.blame is None:
                claim.blame = blame
                self.refuted.append(claim)
                todo.extend(claim.parents)
