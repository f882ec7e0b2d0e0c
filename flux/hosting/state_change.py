"""State change: what a change of code does to the state of a step, and states of keys that are changed one by one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

_AT_ONCE_KEYS = 1_000


@dataclass(frozen=True, slots=True)
class StateChange:
    """How an edition makes its state of that of the edition before it; by default it is the same.

    `migrate` is given what `install_state` would be given, piece by piece. Without it the operator's
    `upgrade_state(piece, from_version)` is called, if its `state_version` is another one than `from_version`. An
    operator that `keeps` its state goes on with it, and nothing is copied: its `on_change(context)` is called if it has
    other parameters. If the edition `drops` the state, partitions begin without one: the step was removed, or is back.
    """

    migrate: Callable[[Any], Any] | None = None
    from_version: int | None = None
    keeps: bool = False
    drops: bool = False

    @property
    def is_none(self) -> bool:
        """Whether the state is the same in both editions."""
        return self.migrate is None and self.from_version is None


class ChangingStates(dict[Any, Any]):
    """The states of a partition by key; those in `before` are of an edition before, and change when they are needed.

    They may be such states themselves, if the code changes again while some are left.
    """

    def __init__(self, before: dict[Any, Any], change: Callable[[Any], Any]) -> None:
        super().__init__()
        self.before = before
        self._change = change

    def get(self, key: Any, default: Any = None) -> Any:
        """Return the state of a key; it is changed first, if it is needed for the first time."""
        found = super().get(key)
        if found is None and key in self.before:
            left = self.before.get(key)
            found = None if left is None else self._change(left)
            self.before.pop(key, None)  # Not earlier: an error must not lose it.
            if found is not None:
                self[key] = found
        return default if found is None else found

    def change_some(self, at_most: int = _AT_ONCE_KEYS) -> None:
        """Change the states of some keys that were not needed yet."""
        for key in [key for key, _ in zip(self.before, range(at_most), strict=False)]:
            self.get(key)

    def change_all(self) -> None:
        """Change all that are left."""
        self.change_some(len(self.before))

    def __contains__(self, key: object) -> bool:
        return super().__contains__(key) or key in self.before

    def __iter__(self) -> Iterator[Any]:
        yield from super().__iter__()
        yield from self.before

    def __len__(self) -> int:
        return super().__len__() + len(self.before)
