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
    action: Callable[[S, M], Iterable[Any]]  # Of effects; those of a balancer are its own.
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
        twin.__dict__.update(_clone_dict(vars(self)))
        return twin

    def key(self) -> tuple[Any, ...]:
        """The whole state as one hashable value: equal keys, equal futures."""
        return _key_values(vars(self).values())


class _OfType(dict[type[Any], Callable[[Any], Any] | None]):
    """By its type, the function that a value is copied or hashed by; none for an immutable.

    The exploration copies and compares millions of values: a look into a dict costs a quarter of asking for each kind.
    """

    def __init__(self, of_machine: Callable[[Any], Any], of_kind: dict[type[Any], Callable[[Any], Any]]) -> None:
        super().__init__()
        self._of_kind: dict[type[Any], Callable[[Any], Any]] = {Machine: of_machine, **of_kind}

    def __missing__(self, kind: type[Any]) -> Callable[[Any], Any] | None:
        chosen = next((function for base, function in self._of_kind.items() if issubclass(kind, base)), None)
        self[kind] = chosen
        return chosen


def _clone_dict(values: dict[Any, Any]) -> dict[Any, Any]:
    twin = dict(values)
    for name, value in values.items():
        if (clone := _CLONES[type(value)]) is not None:
            twin[name] = clone(value)
    return twin


def _clone_list(values: list[Any]) -> list[Any]:
    return [value if (clone := _CLONES[type(value)]) is None else clone(value) for value in values]


def _key_dict(values: dict[Any, Any]) -> tuple[Any, ...]:
    items = sorted(values.items())
    return tuple([item if (key := _KEYS[type(item[1])]) is None else (item[0], key(item[1])) for item in items])


def _key_values(values: Iterable[Any]) -> tuple[Any, ...]:
    return tuple([value if (key := _KEYS[type(value)]) is None else key(value) for value in values])


_CLONES = _OfType(lambda machine: machine.clone(), {dict: _clone_dict, list: _clone_list, deque: deque})
_KEYS = _OfType(lambda machine: machine.key(), {dict: _key_dict, list: _key_values, deque: _key_values})


def table(machine: type[Machine]) -> Iterator[tuple[str, str, str, str]]:
    """The rows of a machine's table as (message, guard, action, cites), in words."""
    for rule in machine.RULES:
        yield rule.on.__name__, rule.guard.__name__, rule.action.__name__, rule.cites
