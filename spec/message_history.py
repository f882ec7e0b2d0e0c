"""Message history: the messages that may have been sent and taken before a process got into a state.

It is kept for every step that was seen, and propagated from each process to those after it. It follows from
FIFO links and from cause and effect, and shows when a message cannot arrive yet:

- its sender does not send it directly after the last message that was taken from there;
- its sender had taken a message that this process has not sent yet.

Sets of messages are kept as bits. What may have happened only grows, so "not yet" may turn into "yes" later: then
`grown` has the reason that was given.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Any

from .memo import Compact, MemoState, Posts

Reason = tuple[str, int, int]

NOTHING_YET = 1  # The bit for no message at all.


class MessageHistory:
    """Histories of the processes of one world."""

    def __init__(self, compact: Compact) -> None:
        self.grown: list[Reason] = []
        self._compact = compact
        self._steps: defaultdict[int, list[tuple[int, int, Posts]]] = defaultdict(list)
        # By (process, node): the last message taken from the node, the last one sent to it, and all sent to it.
        self._took: defaultdict[tuple[int, int], int] = defaultdict(int)
        self._last: defaultdict[tuple[int, int], int] = defaultdict(int)
        self._sent: defaultdict[tuple[int, int], int] = defaultdict(int)
        # By message: those that may be directly before it on its link, and what its sender may have taken
        # last from the receiver when it was sent.
        self._before: defaultdict[int, int] = defaultdict(int)
        self._knowing: defaultdict[int, int] = defaultdict(int)

    def begin(self, state: MemoState) -> None:
        """Add the first state: no process has taken a message, and the controller has sent those on its links."""
        controller = self._compact.controller
        processes = [self._compact.cells.values[cell].process for cell in state]
        for node, process in enumerate(processes):
            for other in range(len(processes)):
                self._took[process, other] = NOTHING_YET
            for message in self._compact.cells.values[state[node]].links[controller]:
                self._knowing[message] |= NOTHING_YET
                self._last[processes[controller], node] = _bit(message)
                self._sent[processes[controller], node] |= _bit(message)

    def step(self, process: int, event: int, after: int, posts: Posts) -> None:
        """Add a step: what holds before it holds after it, with what it adds."""
        self._steps[process].append((event, after, posts))
        todo = [(process, event, after, posts)]
        while todo:
            process, event, after, posts = todo.pop()
            if self._propagate(process, event, after, posts):
                todo.extend((after, *step) for step in self._steps[after])

    def why_not_yet(self, process: int, before: int | None, event: int) -> tuple[Reason, ...]:
        """The reasons why a message cannot arrive at `process` directly after `before`; none if it can."""
        sender = self._compact.mail.values[event].sender
        if before is not None and not self._before[event] & _bit(before):
            return (("before", event, before),)
        knowing = self._knowing[event]
        if knowing & (self._sent[process, sender] | NOTHING_YET):
            return ()
        return (("knowing", event, 0), ("sent", process, sender))

    def goes_round(self) -> bool:
        """Whether a process may return to a state it has left, or send a message and not change."""
        done: set[int] = set()
        for start in list(self._steps):
            path = {} if start in done else {start: self._successors(start)}
            while path:
                process, successors = path.popitem()
                following = next(successors, None)
                if following is None:
                    done.add(process)
                    continue
                path[process] = successors
                if following in path:
                    return True
                if following not in done:
                    path[following] = self._successors(following)
        return False

    def _successors(self, process: int) -> Iterator[int]:
        return (after for _, after, posts in self._steps[process] if after != process or posts)

    def _propagate(self, process: int, event: int, after: int, posts: Posts) -> bool:
        has_grown = False
        batches = dict(posts)
        sender = self._compact.sender(event)
        for node in range(len(self._compact.names)):
            took = _bit(event) if node == sender else self._took[process, node]
            last, sent = self._last[process, node], self._sent[process, node]
            for message in self._compact.batches.values[batches[node]] if node in batches else ():
                self._grow(self._knowing, message, took, ("knowing", message, 0))
                self._note_before(message, last)
                last = _bit(message)
                sent |= last
            has_grown |= self._grow(self._took, (after, node), took)
            has_grown |= self._grow(self._last, (after, node), last)
            has_grown |= self._grow(self._sent, (after, node), sent, ("sent", after, node))
        return has_grown

    def _note_before(self, message: int, before: int) -> None:
        new = before & ~self._before[message]
        self._before[message] |= new
        while new:
            bit = new & -new
            self.grown.append(("before", message, bit.bit_length() - 2))
            new ^= bit

    def _grow(self, sets: defaultdict[Any, int], key: Any, more: int, reason: Reason | None = None) -> bool:
        has = sets[key]
        if not more & ~has:
            return False
        sets[key] = has | more
        if reason is not None:
            self.grown.append(reason)
        return True


def _bit(message: int) -> int:
    return 1 << message + 1
