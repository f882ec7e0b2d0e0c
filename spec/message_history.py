"""What may have been said and heard on the way to a state of a process.

Kept for every step that was seen, and handed on from each process to those behind it. All of it is a matter of
FIFO links and of cause and effect, and it tells when a message cannot come yet:

- its sender does not send it directly behind the last message that came from there;
- it was sent by somebody who had taken a message that this process has not said yet.

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
    """What was seen of the processes of one world."""

    def __init__(self, compact: Compact) -> None:
        self.grown: list[Reason] = []
        self._compact = compact
        self._steps: defaultdict[int, list[tuple[int, int, Posts]]] = defaultdict(list)
        # By (process, node): the last message taken from the node, the last one said to it, and all said to it.
        self._took: defaultdict[tuple[int, int], int] = defaultdict(int)
        self._last: defaultdict[tuple[int, int], int] = defaultdict(int)
        self._said: defaultdict[tuple[int, int], int] = defaultdict(int)
        # By message: those that may be directly before it on its link, and what its sender may have taken
        # last from the receiver when it was sent.
        self._before: defaultdict[int, int] = defaultdict(int)
        self._knowing: defaultdict[int, int] = defaultdict(int)

    def begin(self, state: MemoState) -> None:
        """In the first state nobody has taken anything, and the controller has said what is on its links."""
        controller = self._compact.controller
        processes = [self._compact.cells.values[cell].process for cell in state]
        for node, process in enumerate(processes):
            for other in range(len(processes)):
                self._took[process, other] = NOTHING_YET
            for message in self._compact.cells.values[state[node]].links[controller]:
                self._knowing[message] |= NOTHING_YET
                self._last[processes[controller], node] = _bit(message)
                self._said[processes[controller], node] |= _bit(message)

    def step(self, process: int, event: int, after: int, posts: Posts) -> None:
        """A step was seen: what holds before it holds behind it, with what it adds."""
        self._steps[process].append((event, after, posts))
        todo = [(process, event, after, posts)]
        while todo:
            process, event, after, posts = todo.pop()
            if self._hand_on(process, event, after, posts):
                todo.extend((after, *step) for step in self._steps[after])

    def why_not_yet(self, process: int, before: int | None, event: int) -> tuple[Reason, ...]:
        """Why a message cannot come to `process` directly behind `before`; nothing if it can."""
        sender = self._compact.mail.values[event].sender
        if before is not None and not self._before[event] & _bit(before):
            return (("before", event, before),)
        knowing = self._knowing[event]
        if knowing & (self._said[process, sender] | NOTHING_YET):
            return ()
        return (("knowing", event, 0), ("said", process, sender))

    def goes_round(self) -> bool:
        """Whether a process may come back to a state it has left, or say something and stay as it is."""
        done: set[int] = set()
        for start in list(self._steps):
            path = {} if start in done else {start: self._behind(start)}
            while path:
                process, behind = path.popitem()
                following = next(behind, None)
                if following is None:
                    done.add(process)
                    continue
                path[process] = behind
                if following in path:
                    return True
                if following not in done:
                    path[following] = self._behind(following)
        return False

    def _behind(self, process: int) -> Iterator[int]:
        return (after for _, after, posts in self._steps[process] if after != process or posts)

    def _hand_on(self, process: int, event: int, after: int, posts: Posts) -> bool:
        has_grown = False
        batches = dict(posts)
        sender = self._compact.sender(event)
        for node in range(len(self._compact.names)):
            took = _bit(event) if node == sender else self._took[process, node]
            last, said = self._last[process, node], self._said[process, node]
            for message in self._compact.batches.values[batches[node]] if node in batches else ():
                self._grow(self._knowing, message, took, ("knowing", message, 0))
                self._note_before(message, last)
                last = _bit(message)
                said |= last
            has_grown |= self._grow(self._took, (after, node), took)
            has_grown |= self._grow(self._last, (after, node), last)
            has_grown |= self._grow(self._said, (after, node), said, ("said", after, node))
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
