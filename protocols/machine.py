"""Machines: state variables, and a table of rules that is data.

A rule says on which message, under which guard, which action fires, and which figure or section of
the thesis it comes from. A step takes one message and returns effects in the order in which they
must be carried out. A message that no rule accepts is refused with an error that changes nothing.

Every field of a machine is immutable, or a dict, list or deque of immutables, or another machine:
so a machine can be copied and compared cheaply, which the exploration in spec/ needs.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, Self, TypeVar

from .messages import Effect, View

S = TypeVar("S", bound="Machine")
M = TypeVar("M")

RuleRows = tuple[tuple[Callable[[Any, Any], bool], Callable[[Any, Any], Iterable[Effect]]], ...]  # Guards and actions.


class Refused(Exception):
    """A message that no rule of a machine accepts: the peer or the shell broke the protocol."""


class Fenced(Refused):
    """A message from a node that is dead in the view: it does no harm, and the node should be informed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule(Generic[S, M]):
    """One row of a machine's table: on a message, if the guard holds, do the action."""

    on: type[M]
    guard: Callable[[S, M], bool]
    action: Callable[[S, M], Iterable[Effect]]
    cites: str


def always(machine: Any, message: Any) -> bool:
    """The empty guard."""
    return True


def ignore(machine: Any, message: Any) -> Iterable[Effect]:
    """The empty action; the rule's `cites` gives the reason."""
    return ()


def fence(machine: Any, message: Any) -> Iterable[Effect]:
    """Refuse a message of a node that was declared dead; the shell informs that node."""
    raise Fenced(
        f"{machine.title} refuses {message!r}: its sender is dead in view {machine.number}. "
        "If that process still runs, it was cut off or stopped for too long, and must end."
    )


class Machine:
    """A state machine driven by the rules of its class."""

    RULES: ClassVar[tuple[Rule[Any, Any], ...]] = ()
    _rows: ClassVar[tuple[Any, dict[type[Any], RuleRows]]] = ((), {})  # Of which rules; these, by message.

    @property
    def title(self) -> str:
        """The name of this machine in errors and traces."""
        return type(self).__name__

    def step(self, message: Any) -> list[Effect]:
        """Fire the first rule for `message` whose guard holds; return its effects."""
        of, rows = self._rows
        if of is not self.RULES:
            rows = self._index()
        for guard, action in rows.get(type(message), ()):
            if guard(self, message):
                effects = action(self, message)
                return effects if type(effects) is list else list(effects)
        raise Refused(
            f"{self.title} refuses {message!r}: no rule accepts it in state {self.describe()}. "
            "Sender and receiver disagree about the protocol; this is a bug or a foreign process."
        )

    @classmethod
    def _index(cls) -> dict[type[Any], RuleRows]:
        rows: dict[type[Any], RuleRows] = {}
        for rule in cls.RULES:
            rows[rule.on] = (*rows.get(rule.on, ()), (rule.guard, rule.action))
        cls._rows = (cls.RULES, rows)
        return rows

    def describe(self) -> str:
        """The scalar state variables, for errors."""
        state = {k: v.number if isinstance(v, View) else v for k, v in vars(self).items()}
        return ", ".join(f"{k}={v!r}" for k, v in state.items() if isinstance(v, int | str | bool))

    def clone(self) -> Self:
        """An independent copy; immutable values are shared."""
        twin = object.__new__(type(self))
        for name, value in vars(self).items():
            twin.__dict__[name] = _clone(value)
        return twin

    def key(self) -> tuple[Any, ...]:
        """The whole state as one hashable value: equal keys, equal futures."""
        return tuple(_key(value) for value in vars(self).values())


def _clone(value: Any) -> Any:
    if isinstance(value, Machine):
        return value.clone()
    if isinstance(value, dict):
        return {k: _clone(v) for k, v in value.items()}
    if isinstance(value, list):
        return [_clone(v) for v in value]
    if isinstance(value, deque):
        return deque(value)
    return value


def _key(value: Any) -> Any:
    if isinstance(value, Machine):
        return value.key()
    if isinstance(value, dict):
        return tuple((k, _key(v)) for k, v in sorted(value.items()))
    if isinstance(value, list | deque):
        return tuple(_key(v) for v in value)
    return value


def table(machine: type[Machine]) -> Iterator[tuple[str, str, str, str]]:
    """The rows of a machine's table as (message, guard, action, cites), in words."""
    for rule in machine.RULES:
        yield rule.on.__name__, rule.guard.__name__, rule.action.__name__, rule.cites
