"""Processes and FIFO connections as a graph of states: one step of one process at a time.

A state is a tuple of small numbers: one for each process (0 while it does not exist or is dead), then one for the
contents of each FIFO connection; a kind of world may add numbers of its own. A step of a process depends only on its
own state and the message, so each (process, message) is stepped once and remembered.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from .roles import fuse, steps
from .words import Copy, Fail, Message, ProcessModel

GlobalState = tuple[int, ...]
Choice = tuple[str, str]  # The action, and the node that takes it.
GONE = 0
EMPTY = 0
Outcome = tuple[str, int, tuple[tuple[int, int], ...], Copy | None]  # Row, process, posts, the copy now known dead.


class Numbers:
    """Values and the small numbers assigned to them."""

    def __init__(self, first: Any) -> None:
        self.values: list[Any] = [first]
        self._numbers: dict[Any, int] = {first: 0}

    def number(self, key: Any, value: Any) -> int:
        known = self._numbers.get(key)
        if known is None:
            known = self._numbers[key] = len(self.values)
            self.values.append(value)
        return known


class ProcessGraph:
    """All processes and connections that can ever exist in a world; `fused` worlds fire quiet rows at once."""

    def __init__(
        self, names: Sequence[Copy], labels: Sequence[str], links: Sequence[tuple[Copy, Copy]], fused: bool
    ) -> None:
        self.names = tuple(names)
        self.labels = list(labels)
        self.places = {name: i for i, name in enumerate(self.names)}
        self.links = list(links)
        self._fused = fused
        self._first_link = len(self.names)
        self._link_places = {link: self._first_link + i for i, link in enumerate(self.links)}
        self._inbound = [
            [(self.places[a], self._link_places[a, b]) for a, b in self.links if b == n] for n in self.names
        ]
        self._processes = Numbers(None)
        self._messages = Numbers(None)
        self._contents = Numbers(())
        self._alone: dict[int, tuple[Outcome, ...]] = {}
        self._given: dict[tuple[int, int, int], tuple[Outcome, ...]] = {}
        self.fired: Counter[tuple[str, str]] = Counter()

    # --- states -----------------------------------------------------------------------------------------------

    def start(self) -> GlobalState:
        """Return the state in which the world begins."""
        raise NotImplementedError

    def check_at_rest(self, state: GlobalState) -> None:
        """Check a state in which the protocol has no step left."""
        raise NotImplementedError

    def node(self, state: GlobalState, name: Copy) -> Any:
        """Return the process called `name`, or None."""
        return self._processes.values[state[self.places[name]]]

    def live(self, state: GlobalState) -> Iterator[Any]:
        for number in state[: self._first_link]:
            if number:
                yield self._processes.values[number]

    def on_link(self, state: GlobalState, a: Copy, b: Copy) -> tuple[Message, ...]:
        content = self._contents.values[state[self._link_places[a, b]]]
        return tuple(self._messages.values[number] for number in content)

    # --- choices -----------------------------------------------------------------------------------------------

    def steps(self, state: GlobalState) -> Iterator[tuple[Choice, GlobalState]]:
        """Yield every step of the protocol: an action on a message at the head of a connection, or on none."""
        for place, number in enumerate(state[: self._first_link]):
            if not number:
                continue
            for outcome in self._steps_alone(number):
                if self._has_room(state, outcome):
                    yield (outcome[0], self.labels[place]), self._after(state, place, None, outcome)
            for sender, link in self._inbound[place]:
                if state[link]:
                    message = self._contents.values[state[link]][0]
                    for outcome in self._steps_given(number, sender, message):
                        yield (outcome[0], self.labels[place]), self._after(state, place, link, outcome)

    def arrivals(self, state: GlobalState) -> Iterator[tuple[Choice, GlobalState]]:
        """Yield the arrivals of a standby machine."""
        yield from ()

    def crashes(self, state: GlobalState, any_copy: bool = False) -> Iterator[tuple[Choice, GlobalState]]:
        """Yield the crashes that may happen."""
        yield from ()

    # --- one step -----------------------------------------------------------------------------------------------

    def _has_room(self, state: GlobalState, outcome: Outcome) -> bool:
        """Return whether every connection takes what a step without a message would send."""
        return True

    def _steps_alone(self, number: int) -> tuple[Outcome, ...]:
        known = self._alone.get(number)
        if known is None:
            known = self._alone[number] = self._outcomes(self._processes.values[number], None, None)
        return known

    def _steps_given(self, number: int, sender: int, message: int) -> tuple[Outcome, ...]:
        known = self._given.get((number, sender, message))
        if known is None:
            node = self._processes.values[number]
            known = self._outcomes(node, self.names[sender], self._messages.values[message])
            self._given[number, sender, message] = known
        return known

    def _outcomes(self, node: ProcessModel, sender: Copy | None, message: Message | None) -> tuple[Outcome, ...]:
        found = []
        for role, row, after in steps(node, sender, message):
            self.fired[role, row.name] += 1
            self._settle(after)
            posts = self._posts(after)
            gone = message.copy if isinstance(message, Fail) else None
            found.append((row.name, self._number(after), posts, gone))
        return tuple(found)

    def _settle(self, node: ProcessModel) -> None:
        if self._fused:
            for role, row in fuse(node):
                self.fired[role, row.name] += 1

    def _posts(self, node: ProcessModel) -> tuple[tuple[int, int], ...]:
        posts = tuple((self._link_places[node.name, to], self._messages.number(m, m)) for to, m in node.sent)
        node.sent = []
        return posts

    def _number(self, node: ProcessModel) -> int:
        return self._processes.number((node.name, node.key()), node)

    def _after(self, state: GlobalState, place: int, link: int | None, outcome: Outcome) -> GlobalState:
        _, number, posts, gone = outcome
        after = list(state)
        after[place] = number
        if link is not None:
            content = self._contents.values[after[link]][1:]
            after[link] = self._contents.number(content, content)
        if gone is not None and (gone, self.names[place]) in self._link_places:
            after[self._link_places[gone, self.names[place]]] = EMPTY
        self._post(after, posts)
        self._note_step(state, after, place)
        return tuple(after)

    def _note_step(self, before: GlobalState, after: list[int], place: int) -> None:
        """Update the numbers that this kind of world has added to its states."""

    def _post(self, after: list[int], posts: tuple[tuple[int, int], ...]) -> None:
        for link, message in posts:
            if not after[self.places[self.links[link - self._first_link][1]]]:
                continue  # Messages to a dead process are dropped.
            content = (*self._contents.values[after[link]], message)
            after[link] = self._contents.number(content, content)
