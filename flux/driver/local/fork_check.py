"""Fork check: refuses a run whose processes would wait for threads that only the program has.

The processes are forks of the program (`spawner`). If the program has used a library whose threads are lost in a fork,
the first parallel call of it in an operator would never return. Code of a step, a source or a sink that refers to the
library is refused; else it is a warning, because the program alone may have used it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

from ...model.error_location import is_users_code, locate
from ...plan import Plan
from ...site.lost_threads import LostThreads, lost_threads
from ...types.errors import PlanError

log = logging.getLogger("flux")

_OBJECTS_MAX = 10_000  # Of the user's that are looked at; code that refers to so much is let pass, with the warning.


def check_fork(plan: Plan, ends: Sequence[Any]) -> None:
    """Raise `PlanError` if code of the flow would wait for threads that are lost in a fork; warn if it might.

    `ends` are the sources and sinks.
    """
    for lost in lost_threads():
        for segment in (plan.first, *plan.segments):
            for step in segment.steps:
                _refuse(lost, f"step {step.name}", (step.factory, step.parameters))
        for end in ends:
            _refuse(lost, type(end).__qualname__, end)
        log.warning(
            "%s. Nothing in this flow was seen to use it; what does would wait for ever. %s",
            _facts(lost),
            _advice(lost),
        )


def _refuse(lost: LostThreads, what: str, code: Any) -> None:
    user = next((each for each in _functions(code) if _refers_to(each, lost.library.packages)), None)
    if user is not None:
        raise PlanError(
            f"{what} uses {lost.library.name} in {locate(user)}, and would wait for ever: {_facts(lost)}. "
            f"{_advice(lost)}"
        )


def _facts(lost: LostThreads) -> str:
    return f"the program has {lost}, and the processes of a run are forks of the program, which lack them"


def _advice(lost: LostThreads) -> str:
    name = lost.library.name
    return (
        f"Let nothing use {name} before the flow starts: do it in another process, or put the flow into a module that "
        f"does not, and start it with `flux run MODULE:FLOW`{lost.library.remedy}"
    )


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
    names = _names(function.__code__)
    values = (*(function.__globals__[name] for name in names if name in function.__globals__), *_closure(function))
    homes = map(_home, values)
    return any(home.partition(".")[0] in packages for home in (*homes, *names))


def _home(value: Any) -> str:
    """Return the module that a value is, or in which it, or its class, is defined."""
    name = value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", None)
    return name if isinstance(name, str) else type(value).__module__
