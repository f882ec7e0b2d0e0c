"""State types: what state may hold beside plain values, arrays and tables, as plain values and back, without pickle.

Some types travel as they are: sets, dates and times, decimals and the like, arrays of Arrow (`standard_types`). Classes
of the user travel if the operator names them (`state_types`): dataclasses, named tuples, enums, and classes whose
instances are their attributes. For everything else an operator may have `encode_state` and `decode_state`. All three
together are its `StateTypes`, and no value of any other type is ever built from the bytes of a peer.

An object in two places of a state becomes two, as in JSON: a change of one no longer changes the other.

An instance is made without its `__init__`, because its state was sent, and not the arguments it began with.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections import defaultdict, deque
from collections.abc import Callable, Mapping
from enum import Enum, Flag
from types import BuiltinFunctionType, MemberDescriptorType
from typing import Any

from ..model.batch import ROW_MODULE, row_type
from ..types.errors import PlanError, StateError
from .frames import BadFrame, format_value
from .standard_types import FACTORIES, UnknownValue, from_standard, is_standard, text, to_standard, whole

_HEAP_TYPE = 1 << 9  # Of a class that was made by a `class` statement.
_NO_INSTANCES = 1 << 7  # Of a class that cannot be called.
_GENERIC = "__orig_class__"  # Where `typing` notes that a `Box` was made as a `Box[int]`; the box does not care.
_ROW = "row"  # What `batch.rows()` yields: a row that an operator keeps stays one.
_DEFAULTS = "defaultdict"

# --- of the user's ----------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class _Class:
    """How instances of one class travel: as their fields, or as a dict of their attributes."""

    kind: type[Any]
    fields: tuple[str, ...] | None
    slots: tuple[str, ...] = ()

    def take(self, value: Any) -> Any:
        if isinstance(value, Flag):
            return value.value
        if isinstance(value, Enum):
            return value.name
        held: dict[str, Any] = getattr(value, "__dict__", {})
        if _GENERIC in held:
            held = {name: each for name, each in held.items() if name != _GENERIC}
        if isinstance(value, tuple):
            if held:
                beside = f"it has the attributes {', '.join(held)} beside its fields, which named tuples have not"
                raise UnknownValue(value, beside)
            return list(value)
        if self.slots:
            held = held | {name: getattr(value, name) for name in self.slots if hasattr(value, name)}
        # An attribute that was never set stays unset; one that the class does not declare travels too.
        if self.fields is None or len(held) != len(self.fields) or not all(map(held.__contains__, self.fields)):
            return dict(held)
        return [held[name] for name in self.fields]

    def make(self, plain: Any) -> Any:
        kind = self.kind
        if issubclass(kind, Flag):
            return kind(whole(plain))
        if issubclass(kind, Enum):
            return kind[text(plain)]
        if issubclass(kind, tuple):
            return tuple.__new__(kind, self._by_name(plain).values())
        made = object.__new__(kind)
        for name, value in self._by_name(plain).items():
            object.__setattr__(made, name, value)
        return made

    def _by_name(self, plain: Any) -> dict[str, Any]:
        if type(plain) is dict and not issubclass(self.kind, tuple):
            return {text(name): value for name, value in plain.items()}
        if type(plain) is not list or self.fields is None or len(plain) != len(self.fields):
            fields = "attributes" if self.fields is None else f"the fields {', '.join(self.fields)}"
            raise BadFrame(f"{self.kind.__qualname__} has {fields}; got {format_value(plain)}")
        return dict(zip(self.fields, plain, strict=True))


def _is_its_attributes(kind: type[Any]) -> bool:
    """Whether instances hold only their attributes: those of a class in C, or derived from one, hold more."""
    return not any(map(_is_in_c, kind.__mro__[:-1]))


def _is_in_c(kind: type[Any]) -> bool:
    """Whether a class is written in C. Some look like those of a `class` statement, but for their `__new__`."""
    is_made = kind.__flags__ & _HEAP_TYPE and not kind.__flags__ & _NO_INSTANCES
    return not is_made or isinstance(vars(kind).get("__new__"), BuiltinFunctionType)


def _class_of(kind: Any, whose: str) -> _Class:
    bases = kind.__mro__[:-1] if isinstance(kind, type) else ()
    if bases and issubclass(kind, tuple) and hasattr(kind, "_fields"):
        return _Class(kind, tuple(kind._fields))
    if bases and issubclass(kind, Enum):
        return _Class(kind, ())
    if bases and _is_its_attributes(kind):
        slots = [name for base in bases for name, of in vars(base).items() if isinstance(of, MemberDescriptorType)]
        fields = dataclasses.fields(kind) if dataclasses.is_dataclass(kind) else None
        return _Class(kind, None if fields is None else tuple(field.name for field in fields), tuple(slots))
    raise PlanError(
        f"{whose}: state_types holds dataclasses, named tuples, enums and classes whose instances are their "
        f"attributes, and not derived from dict, list and the like; {kind!r} is none of them. Leave it out, and define "
        "the static methods encode_state and decode_state"
    )


class StateTypes:
    """What the state of one operator may be made of, beside plain values, arrays and tables."""

    def __init__(
        self,
        types: tuple[Any, ...] = (),
        encode: Callable[[Any], Any] | None = None,
        decode: Callable[[Any], Any] | None = None,
        whose: str = "",
    ) -> None:
        self._classes = {kind: _class_of(kind, whose) for kind in types}
        self._names = {kind.__qualname__: made for kind, made in self._classes.items()}
        self._encode, self._decode, self._whose = encode, decode, whose
        if len(self._names) != len(self._classes):
            raise PlanError(
                f"{whose}: two classes of state_types have one name: {', '.join(k.__qualname__ for k in types)}"
            )

    @classmethod
    def of(cls, operator: type[Any], whose: str) -> StateTypes:
        """Return the types that an operator declares by `state_types`, `encode_state` and `decode_state`."""
        types = tuple(getattr(operator, "state_types", ()))
        hooks = [_hook(operator, name, whose) for name in ("encode_state", "decode_state")]
        if (hooks[0] is None) != (hooks[1] is None):
            raise PlanError(f"{whose}: encode_state and decode_state come together; define both")
        return cls(types, hooks[0], hooks[1], whose) if types or hooks[0] else PLAIN

    def __bool__(self) -> bool:
        return self is not PLAIN

    def to_plain(self, value: Any) -> tuple[str, Any]:
        """Return a value's word and the values it is made of, which may need words themselves."""
        kind = type(value)
        if kind in self._classes:
            return f".{kind.__qualname__}", self._classes[kind].take(value)
        if (standard := to_standard(value)) is not None:
            return standard
        if kind is defaultdict:
            return _DEFAULTS, [self._factory(value), dict(value)]
        if kind.__module__ == ROW_MODULE and isinstance(value, tuple):
            return _ROW, [list(kind._columns), list(value)]
        if self._encode is not None:
            plain = self._encoded(value, self._encode)
            if plain is not NotImplemented:
                return "", plain
        raise UnknownValue(value)

    def _encoded(self, value: Any, encode: Callable[[Any], Any]) -> Any:
        """Return the result of `encode_state` for a value, once `decode_state` has accepted it."""
        assert self._decode is not None, "an operator has both or none"
        try:
            plain = encode(value)
        except Exception as error:
            why = f"encode_state raised {type(error).__name__}: {error}"
            raise UnknownValue(value, why, "Fix encode_state") from error
        if plain is not NotImplemented:
            try:
                self._decode(plain)
            except Exception as error:
                why = f"decode_state, given {plain!r:.100} for it, raised {type(error).__name__}: {error}"
                raise UnknownValue(value, why, "decode_state must take what encode_state returns") from error
        return plain

    def to_value(self, word: Any, plain: Any) -> Any:
        """Return the value for which `to_plain` returned this; `BadFrame` if there is no such word."""
        if is_standard(word):
            return from_standard(word, plain)
        if word == _DEFAULTS:
            factory, entries = plain
            return defaultdict(None if factory is None else self._made_by(factory), entries)
        if word == _ROW:
            names, values = plain
            return row_type(tuple(map(text, names)))._make(values)
        if word == "" and self._decode is not None:
            try:
                return self._decode(plain)
            except Exception as error:
                raise StateError(
                    f"{self._whose}: decode_state, given {plain!r:.100}, raised {type(error).__name__}: {error}. At "
                    "the sender it did not: it must return the same in every process"
                ) from error
        return self._named(word).make(plain)

    def _named(self, word: Any) -> _Class:
        named = self._names.get(word[1:]) if isinstance(word, str) and word.startswith(".") else None
        if named is None:
            raise BadFrame(f"state with a {format_value(word)}, which the operator here does not name in state_types")
        return named

    def _factory(self, value: defaultdict[Any, Any]) -> str | None:
        """Return the word for the default factory of a dict."""
        factory = value.default_factory
        if factory is None:
            return None
        if factory in self._classes:
            return f".{self._classes[factory].kind.__qualname__}"
        name = getattr(factory, "__name__", "")
        if FACTORIES.get(name) is factory:
            return name
        raise UnknownValue(
            value,
            f"the factory of a defaultdict is one of {', '.join(FACTORIES)}, or a class that is named",
            "If it is a class, name that in the operator, `state_types = (...,)`. Else HOOKS",
        )

    def _made_by(self, word: Any) -> Callable[[], Any]:
        return FACTORIES[word] if word in FACTORIES else self._named(word).kind


PLAIN = StateTypes()


@dataclasses.dataclass(frozen=True, slots=True)
class TypedState:
    """State of one step, with the types of its operator."""

    stage: int
    step: int
    state: Any
    words: StateTypes


TypesByStep = Mapping[tuple[int, int], StateTypes]  # By stage and step.


def _hook(operator: type[Any], name: str, whose: str) -> Callable[[Any], Any] | None:
    hook: Callable[[Any], Any] | None = getattr(operator, name, None)
    if hook is not None and inspect.isfunction(inspect.getattr_static(operator, name, None)):
        raise PlanError(f"{whose}: {name} is called where there is no instance yet; write @staticmethod in front of it")
    return hook


# --- the error for a value that cannot be moved -------------------------------------------------------


def cannot_move(unknown: UnknownValue, state: Any, whose: str) -> StateError:
    """Return the error that names the value, its place in the state, and what to do."""
    value, kind = unknown.value, type(unknown.value)
    try:
        text = " ".join(f"{value!r:.200}".split())  # Arrays have lines.
    except Exception:  # It is too deep, or has a repr of its own that raises.
        text = "something that cannot be printed"
    place = _place_of(value, state)
    at = f", at {place}," if place else ""
    why = f" ({unknown.why})" if unknown.why else ""
    hooks = "give the operator static methods encode_state(value), which returns plain state, and decode_state(state), "
    advice = (unknown.advice or _usual_advice(kind)).replace("HOOKS", f"{hooks}which returns it")
    advice = advice.replace("give", "Give", 1) if advice.startswith("give") else advice
    return StateError(f"{whose}: {text} of type {kind.__qualname__}{at} cannot be moved to another site{why}. {advice}")


def _usual_advice(kind: type[Any]) -> str:
    if kind.__module__.startswith("pandas.") and hasattr(kind, "to_numpy"):
        return "Keep an Arrow table of it, pyarrow.Table.from_pandas(...), or HOOKS"
    if not _is_its_attributes(kind) and not issubclass(kind, tuple | Enum):
        return "HOOKS"
    named = f"name its class in the operator: `state_types = ({kind.__name__},)`"
    return f"If it is a dataclass, a named tuple, an enum or an object that is its attributes, {named}. Else HOOKS"


_SEARCH_VALUES_MAX = 1_000_000


def _place_of(wanted: Any, state: Any) -> str:
    """Return the place of the value in `state`, as in source code; empty if it is not found."""
    left: list[tuple[Any, str]] = [(state, "")]
    seen: set[int] = set()
    while left and len(seen) < _SEARCH_VALUES_MAX:
        value, place = left.pop()
        if value is wanted:
            return place
        if id(value) not in seen:
            seen.add(id(value))
            left.extend(reversed(list(_parts(value, place))))
    return ""


def _parts(value: Any, place: str) -> list[tuple[Any, str]]:
    if isinstance(value, TypedState):
        return [(value.state, place)]
    if isinstance(value, dict) and "states" in value and hasattr(value.get("keys"), "to_pylist"):
        # A piece of the state of a `KeyedOperator`: one state for each row of a table of keys.
        keys = [tuple(row.values()) for row in value["keys"].to_pylist()]
        return [(each, f"the state of key {key!r}") for key, each in zip(keys, value["states"], strict=False)]
    if isinstance(value, dict):
        keys = [(key, f"{place}, a key" if place else "a key of it") for key in value]
        return [*keys, *((each, f"{place}[{key!r:.60}]") for key, each in value.items())]
    names = list(getattr(value, "_fields", ()))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = [field.name for field in dataclasses.fields(value)]
    if names:
        return [(getattr(value, name, None), f"{place}.{name}") for name in names]
    if isinstance(value, list | tuple | deque):
        return [(each, f"{place}[{i}]") for i, each in enumerate(value)]
    if isinstance(value, set | frozenset):
        return [(each, f"{place}, an element") for each in value]
    if type(value).__flags__ & _HEAP_TYPE and hasattr(value, "__dict__"):
        return [(each, f"{place}.{name}") for name, each in vars(value).items()]
    return []
