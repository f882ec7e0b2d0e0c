"""Code references: what the user's code of a step, a source or a sink refers to, as far as it can be read.

Methods, closures, and the globals that functions name are followed. What code gets by other ways is not seen.
"""

from __future__ import annotations

import dis
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

from ..model.error_location import is_users_code

_OBJECTS_MAX = 10_000  # Of the user's that are looked at; code that refers to so much is let pass.


def first_with_package(code: Any, packages: frozenset[str]) -> FunctionType | None:
    """Return the first function of the user's that names one of the packages, or something defined in one."""
    return next((each for each in _functions(code) if _refers_to(each, packages)), None)


def first_with_value(code: Any, is_wanted: Callable[[Any], bool]) -> FunctionType | None:
    """Return the first function of the user's that names a value of which `is_wanted` is true."""
    return next((each for each in _functions(code) if any(map(is_wanted, _values(each)))), None)


def _functions(root: Any) -> Iterator[FunctionType]:
    """Yield the user's functions that can be reached from an object: methods, closures, and globals they name."""
    seen: dict[int, Any] = {}
    rest = [root]
    while rest and len(seen) < _OBJECTS_MAX:
        each = rest.pop()
        if id(each) in seen:
            continue
        seen[id(each)] = each  # Kept, so that no other object gets its id.
        if isinstance(each, FunctionType) and is_users_code(each.__code__):
            yield each
        rest += _next(each)


def _next(each: Any) -> list[Any]:
    if isinstance(each, FunctionType):
        # The closures of Flux and of libraries hold functions of the user; what these name themselves is their matter.
        names = _names(each.__code__) if is_users_code(each.__code__) else ()
        return [*_closure(each), *(each.__globals__[name] for name in names if name in each.__globals__)]
    if isinstance(each, MethodType):
        return [each.__func__, each.__self__]
    if isinstance(each, partial):
        return [each.func, *each.args, *each.keywords.values()]
    if isinstance(each, (staticmethod, classmethod)):
        return [each.__func__]
    if isinstance(each, property):
        return [each.fget]
    if isinstance(each, (list, tuple)):
        return list(each[:_OBJECTS_MAX]) if not each or callable(each[0]) else []
    if isinstance(each, dict):
        return list(each.values()) if len(each) < _OBJECTS_MAX else []
    if isinstance(each, ModuleType) or _is_foreign(each if isinstance(each, type) else type(each)):
        return []
    if isinstance(each, type):
        return [*vars(each).values(), *each.__bases__]
    return [type(each), *getattr(each, "__dict__", {}).values()]


def _closure(function: FunctionType) -> list[Any]:
    found = []
    for cell in function.__closure__ or ():
        with suppress(ValueError):  # It has no value yet.
            found.append(cell.cell_contents)
    return found


def _is_foreign(kind: type) -> bool:
    """Return whether a class is built in: nothing of the user's is in it or its objects."""
    return kind.__module__ in ("builtins", "abc", "typing")


def _names(code: CodeType) -> set[str]:
    inner = (each for each in code.co_consts if isinstance(each, CodeType))
    return set(code.co_names).union(*(_names(each) for each in inner))


def _refers_to(function: FunctionType, packages: frozenset[str]) -> bool:
    """Return whether a function names one of the packages, or something that is defined in one."""
    homes = map(_home, _values(function))
    return any(home.partition(".")[0] in packages for home in (*homes, *_names(function.__code__)))


def _values(function: FunctionType) -> list[Any]:
    """Return the values that a function names."""
    names = _globals(function.__code__)
    return [*(function.__globals__[name] for name in names if name in function.__globals__), *_closure(function)]


def _globals(code: CodeType) -> set[str]:
    """Return the names of globals: other names of code are those of attributes."""
    found = {each.argval for each in dis.get_instructions(code) if each.opname in ("LOAD_GLOBAL", "LOAD_NAME")}
    return found.union(*(_globals(each) for each in code.co_consts if isinstance(each, CodeType)))


def _home(value: Any) -> str:
    """Return the module that a value is, or in which it, or its class, is defined."""
    name = value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", None)
    return name if isinstance(name, str) else type(value).__module__
