"""The choices of a world that are enabled: what may happen next, in an order that depends on the past alone."""

from __future__ import annotations

Choice = tuple[str, str, str | int | tuple[int, int]]  # The kind, the node, and a detail.

_AT_RECEIVER = "deliver"


class EnabledChoices:
    """A list of choices and their places in it, so that a random one is drawn, added or removed in one step.

    Choices of *frozen* nodes are withheld: they are enabled again when the nodes thaw.
    """

    def __init__(self) -> None:
        self.choices: list[Choice] = []
        self.frozen: frozenset[str] = frozenset()
        self._places: dict[Choice, int] = {}
        self._withheld: dict[Choice, None] = {}

    def __contains__(self, choice: Choice) -> bool:
        return choice in self._places or choice in self._withheld

    def add(self, choice: Choice) -> None:
        if self.frozen and node_of(choice) in self.frozen:
            self._withheld[choice] = None
            return
        self._places[choice] = len(self.choices)
        self.choices.append(choice)

    def remove(self, choice: Choice) -> None:
        """Remove a choice; the last one takes its place."""
        if choice in self._withheld:
            del self._withheld[choice]
            return
        place = self._places.pop(choice)
        last = self.choices.pop()
        if place < len(self.choices):
            self.choices[place] = last
            self._places[last] = place

    def discard(self, choice: Choice) -> None:
        """Remove a choice if it is there."""
        if choice in self:
            self.remove(choice)

    def clear(self) -> None:
        self.choices.clear()
        self._places.clear()
        self._withheld.clear()

    def freeze(self, nodes: frozenset[str]) -> None:
        """Withhold the choices of these nodes, and of no others, from now on."""
        self.thaw()
        self.frozen = nodes
        for choice in [choice for choice in self.choices if node_of(choice) in nodes]:
            self.remove(choice)
            self._withheld[choice] = None

    def thaw(self) -> None:
        """Enable all that is withheld."""
        self.frozen, withheld, self._withheld = frozenset(), self._withheld, {}
        for choice in withheld:
            self.add(choice)


def node_of(choice: Choice) -> str | int | tuple[int, int]:
    """The node at which a choice happens."""
    return choice[2] if choice[0] == _AT_RECEIVER else choice[1]
