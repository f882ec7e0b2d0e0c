"""The hidden state of an operator, outside of its instances.

That is in class attributes, default arguments, closures, globals, and attributes of functions and objects in these.

It is searched for two things. A clock may have been bound there, where replacing it by its name has no effect. And
values kept there are state that `get_state` does not return: all copies in one process share it, and those in another
have none of it.

Only what the operator's own code reaches is searched: of a module, the names that are used.
"""

from __future__ import annotations

import copy
import sys
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache, partial
from types import CellType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np

__all__ = ["HeldValue", "HiddenState", "held_by", "is_program_module"]

_OURS = ("flux", "hypothesis", "_hypothesis_", "pytest", "_pytest", "numpy", "pyarrow", "msgpack", "trio", "pluggy")
_ITEMS_MAX = 1_000  # Of a container that is searched.
_OBJECTS_MAX = 20_000  # That are searched: an operator may hold many, and the search takes time.
_CONTAINERS = (dict, list, set, tuple, deque, bytearray, Counter, defaultdict, OrderedDict, np.ndarray)
_Cached = type(lru_cache(len))
_WRITTEN_TO = frozenset({*_CONTAINERS, bool, int, float, str, type(None), _Cached})


@dataclass(frozen=True)
class HeldValue:
    """A value, the place where it is held, as text, and a function that puts another one there."""

    where: str
    value: Any
    put: Callable[[Any], None]


def is_program_module(module: str) -> bool:
    """Return whether a module is the user's or a library's, and neither Python's nor one that runs the check."""
    top = module.partition(".")[0]
    return top not in sys.stdlib_module_names and not top.startswith(_OURS)


def held_by(roots: Iterable[Any], named: str = "") -> Iterator[HeldValue]:
    """Yield the values held by classes, functions, containers and modules, recursively; containers are `named`."""
    waiting = [(root, named) for root in roots]
    seen: dict[int, Any] = {}  # With the objects, so that no id is used again for another one.
    while waiting and len(seen) < _OBJECTS_MAX:
        thing, name = waiting.pop()
        if id(thing) in seen:
            continue
        seen[id(thing)] = thing
        for held in _parts(thing, name):
            yield held
            if _is_searched(held.value):
                waiting.append((held.value, held.where))
        waiting += [(other, name) for other in _referents(thing) if _is_searched(other)]


class HiddenState:
    """The values outside of its instances that an operator may write to."""

    def __init__(self, factory: Any, parameters: dict[str, Any]) -> None:
        self._factory, self._parameters = factory, parameters

    def _held(self) -> list[HeldValue]:
        every = (*held_by([self._factory]), *held_by([self._parameters], "parameters"))
        return [held for held in every if type(held.value) in _WRITTEN_TO]

    def changed_by(self, run: Callable[[], Any]) -> list[str]:
        """Run a function; return the places whose values it has changed."""
        before = {held.where: _content(held.value) for held in self._held()}
        run()
        after = {held.where: _content(held.value) for held in self._held()}
        changed = [where for where, text in after.items() if before.get(where) != text]
        # A place inside of another changed place is not listed again.
        return sorted(where for where in changed if not any(where.startswith(f"{other}[") for other in changed))

    @contextmanager
    def replaced_by_copies(self) -> Iterator[None]:
        """Put copies in these places until the block ends, so that its changes are undone."""
        places = self._held()
        try:
            for held in places:
                with suppress(Exception):  # A value that cannot be copied, or not be replaced, stays.
                    held.put(copy.deepcopy(held.value))
            yield
        finally:
            for held in places:
                with suppress(Exception):
                    held.put(held.value)


def _content(value: Any) -> str:
    """Return the contents as text, to be compared; for a cached function, the statistics of its cache."""
    return str(value.cache_info()) if isinstance(value, _Cached) else repr(value)


def _is_searched(value: Any) -> bool:
    if isinstance(value, type | FunctionType | _Cached):
        return is_program_module(value.__module__ or "")
    if isinstance(value, dict | list | MethodType | partial | property | classmethod | staticmethod):
        return True
    return _is_an_object(value)


def _is_an_object(value: Any) -> bool:
    """Return whether it is an instance of a class of the program, with attributes."""
    return is_program_module(type(value).__module__) and isinstance(getattr(value, "__dict__", None), dict)


def _referents(thing: Any) -> Iterable[Any]:
    """Return what an object refers to in places that cannot be written."""
    if isinstance(thing, type):
        return thing.__bases__
    if isinstance(thing, MethodType):
        return (thing.__func__, type(thing.__self__))
    if isinstance(thing, partial):
        return (thing.func, *thing.args, thing.keywords)
    if isinstance(thing, property):
        return (thing.fget,)
    wrapped = getattr(thing, "__wrapped__", None)
    return () if wrapped is None else (wrapped,)


def _parts(thing: Any, name: str) -> Iterator[HeldValue]:
    if isinstance(thing, type):
        yield from _of_class(thing)
    elif isinstance(thing, FunctionType):
        yield from _of_function(thing)
    elif isinstance(thing, ModuleType):
        yield from (_at_name(thing, each) for each in list(vars(thing)) if _is_defined_in(thing, each))
    elif isinstance(thing, dict | list) and len(thing) <= _ITEMS_MAX:
        for key, value in list(thing.items() if isinstance(thing, dict) else enumerate(thing)):
            yield HeldValue(f"{name}[{key!r:.40}]", value, partial(thing.__setitem__, key))
    elif _is_an_object(thing):
        yield from _attributes(thing, name)


def _attributes(thing: Any, name: str) -> Iterator[HeldValue]:
    # Set in `vars`, and not by setattr, which a class may refuse or override.
    for attribute, value in list(vars(thing).items()):
        yield HeldValue(f"{name}.{attribute}", value, partial(vars(thing).__setitem__, attribute))


def _of_class(cls: type[Any]) -> Iterator[HeldValue]:
    for name, value in list(vars(cls).items()):
        if name.startswith("__") and name.endswith("__") and not isinstance(value, FunctionType):
            continue
        where = f"{cls.__qualname__}.{name}"
        if isinstance(value, staticmethod | classmethod):
            yield HeldValue(where, value.__func__, partial(_put_bound, cls, name, type(value)))
        else:
            yield HeldValue(where, value, partial(setattr, cls, name))


def _put_bound(cls: type[Any], name: str, kind: Callable[[Any], Any], value: Any) -> None:
    setattr(cls, name, kind(value))


def _of_function(function: Any) -> Iterator[HeldValue]:
    code: CodeType = function.__code__
    defaults = function.__defaults__ or ()
    arguments = code.co_varnames[: code.co_argcount][-len(defaults) :] if defaults else ()
    of = f"of {function.__qualname__}"
    for place, (name, value) in enumerate(zip(arguments, defaults, strict=True)):
        yield HeldValue(f"default argument {name} {of}", value, partial(_put_default, function, place))
    for name, value in (function.__kwdefaults__ or {}).items():
        yield HeldValue(f"default argument {name} {of}", value, partial(function.__kwdefaults__.__setitem__, name))
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
        if cell != CellType():  # An empty cell has no contents.
            yield HeldValue(f"variable {name} {of}", cell.cell_contents, partial(setattr, cell, "cell_contents"))
    yield from (held for held in _attributes(function, function.__qualname__) if not held.where.endswith("__"))
    names = set(_names(code))
    module = sys.modules.get(function.__module__)
    for name in sorted(names & function.__globals__.keys()):
        value = function.__globals__[name]
        if isinstance(value, ModuleType):
            if is_program_module(value.__name__):
                yield from (_at_name(value, each) for each in sorted(names & vars(value).keys()))
        elif module is not None and function.__globals__ is vars(module):
            yield _at_name(module, name)


def _put_default(function: Any, place: int, value: Any) -> None:
    defaults = function.__defaults__
    function.__defaults__ = (*defaults[:place], value, *defaults[place + 1 :])


def _names(code: CodeType) -> Iterator[str]:
    """Yield the names that a function and its inner functions use."""
    yield from code.co_names
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from _names(inner)


def _at_name(module: ModuleType, name: str) -> HeldValue:
    return HeldValue(f"{module.__name__}.{name}", vars(module)[name], partial(setattr, module, name))


def _is_defined_in(module: ModuleType, name: str) -> bool:
    """Return whether a module defines a name itself: imported values are searched where they are defined."""
    value = vars(module)[name]
    if isinstance(value, type | FunctionType):
        return value.__module__ == module.__name__
    return not name.startswith("__") and not isinstance(value, ModuleType)
