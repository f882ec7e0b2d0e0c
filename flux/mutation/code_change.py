"""Code changes: the functions that a mutant alters, and their new code, for a process that has imported Flux already.

To import Flux and its tests anew takes seconds for each mutant; to give a function other code takes none. What ran when
the module was imported has run with the code as it was: a mutant that matters only there is not noticed.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

from ..spec.mutants import Mutant

__all__ = ["CodeChange", "code_changes"]


class CodeChange:
    """A function and the code that it is to have; the module or class `holder` has the function."""

    def __init__(self, function: FunctionType, code: CodeType, holder: Any) -> None:
        self.function = function
        self._code = code
        self._holder = holder

    def make(self) -> None:
        """Change this process."""
        old, new = self.function, self._code
        if old.__code__.co_freevars == new.co_freevars:
            old.__code__ = new
            return
        # What was left out had `super()`, so that the function does not need its class any more.
        cells = dict(zip(old.__code__.co_freevars, old.__closure__ or (), strict=True))
        closure = tuple(cells[name] for name in new.co_freevars)
        made = FunctionType(new, old.__globals__, old.__name__, old.__defaults__, closure)
        made.__kwdefaults__ = old.__kwdefaults__
        assert vars(self._holder)[old.__name__] is old, f"{old.__qualname__} is decorated, and is to have other cells"
        setattr(self._holder, old.__name__, made)


def code_changes(mutant: Mutant) -> list[CodeChange]:
    """Return what makes this process run a mutant of a module. Nothing, if no function that is there is altered."""
    module = importlib.import_module(f"flux.{mutant.module}")
    assert module.__file__ is not None
    live = {_place(function.__code__): (function, holder) for holder, function in _functions(module)}
    before = list(_codes(compile(Path(module.__file__).read_text(), module.__file__, "exec")))
    after = list(_codes(compile(mutant.source, f"<{mutant.name}>", "exec")))
    changed = [
        (live[_place(old)], new)
        for old, new in zip(before, after, strict=True)
        if _differ(old, new) and _place(old) in live
    ]
    return [CodeChange(function, new, holder) for (function, holder), new in changed]


def _place(code: CodeType) -> tuple[str, int]:
    return code.co_qualname, code.co_firstlineno


def _functions(holder: Any) -> Iterator[tuple[Any, FunctionType]]:
    """Yield the functions of a module, or of a class, and of the classes in it; also those that are wrapped."""
    module = getattr(holder, "__module__", holder.__name__)
    for value in list(vars(holder).values()):
        if isinstance(value, type) and value.__module__ == module:
            yield from _functions(value)
        for found in _unwrapped(value):
            if found.__module__ == module:
                yield holder, found


def _unwrapped(value: Any) -> Iterator[FunctionType]:
    if isinstance(value, FunctionType):
        yield value
    inner: tuple[Any, ...] = (getattr(value, "__wrapped__", None),) if callable(value) else ()
    if isinstance(value, staticmethod | classmethod):
        inner = (value.__func__,)
    elif isinstance(value, property):
        inner = (value.fget, value.fset, value.fdel)
    elif isinstance(value, cached_property):
        inner = (value.func,)
    for each in inner:
        if each is not None:
            yield from _unwrapped(each)


def _codes(code: CodeType) -> Iterator[CodeType]:
    """Yield the code of the functions of a module and of its classes, in their order; not of functions in functions."""
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            is_class = not inner.co_flags & inspect.CO_OPTIMIZED
            yield from _codes(inner) if is_class else (inner,)


def _differ(old: CodeType, new: CodeType) -> bool:
    """Whether two codes do not do the same; where they stand in their files does not count."""
    if (old.co_code, old.co_names, old.co_freevars) != (new.co_code, new.co_names, new.co_freevars):
        return True
    pairs = list(zip(old.co_consts, new.co_consts, strict=False))
    if len(old.co_consts) != len(new.co_consts):
        return True
    return any(_differ(a, b) if isinstance(a, CodeType) and isinstance(b, CodeType) else a != b for a, b in pairs)
