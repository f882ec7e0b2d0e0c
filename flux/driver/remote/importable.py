"""Importable: checks that every process of a remote run can import a flow's operators, functions, sources and sinks.

Of a flow only its name is sent to them: each process imports MODULE and finds FLOW there. So the kind of a callable
does not matter: lambdas, functions and classes inside functions, partials and bound methods are made again by the
import. What matters is where its code is. Code of the program that was started, of a notebook, or of a module made at
run time is in this process only.

A callable may refer to others, which have to be importable too: what a partial holds, the object of a bound method,
what a closure refers to, what a decorator wraps, what an operator is given as a parameter.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import partial
from types import FunctionType, MethodType
from typing import Any

from ...types.errors import PlanError

__all__ = ["check_importable", "check_module"]

_GIVEN = "The processes of a remote run are given MODULE:FLOW and nothing else, and import it"


def check_module(flow: str) -> None:
    """Raise `PlanError` if another process cannot import the module of `flow`, a MODULE:FLOW."""
    module, _, _ = flow.partition(":")
    why = _why_not(module)
    if why is not None:
        raise PlanError(
            f"{flow} is defined in {why}. {_GIVEN}: put it into a module that is installed wherever the run has "
            "processes"
        )


def check_importable(owner: str, made: Any) -> None:
    """Raise `PlanError` if another process cannot import what `made`, a callable or a collection, refers to."""
    waiting: list[tuple[str, Any]] = [("", made)]
    seen: set[int] = set()
    while waiting:
        way, part = waiting.pop()
        if id(part) in seen:
            continue
        seen.add(id(part))
        why = None if isinstance(part, _COLLECTIONS) else _why_not(_module_of(part))
        if why is not None:
            name = _name_of(part)
            raise PlanError(
                f"{owner}: {name}{way} is defined in {why}. {_GIVEN}: put {name} into the module of MODULE:FLOW, or "
                "into one that is installed wherever the run has processes"
            )
        waiting += [(f", {how}," if how else way, inner) for how, inner in _parts(part)]


# --- what a callable is made of --------------------------------------------------------------------------------

_COLLECTIONS = (dict, list, tuple, set, frozenset)


def _parts(made: Any) -> Iterator[tuple[str, Any]]:
    """Return the callables that one refers to, and how."""
    name = _name_of(made)
    if isinstance(made, _COLLECTIONS):
        found = [("", each) for each in (made.values() if isinstance(made, dict) else made)]
    elif isinstance(made, partial):
        found = [(f"in a functools.partial of {_name_of(made.func)}", each) for each in _held(made)]
    elif isinstance(made, MethodType):
        owner = made.__self__ if isinstance(made.__self__, type) else type(made.__self__)
        found = [(f"whose method {made.__name__} is", owner), ("", made.__func__)]
    elif isinstance(made, FunctionType):
        inside = [cell.cell_contents for cell in made.__closure__ or () if _is_filled(cell)]
        found = [(f"to which {name} refers", each) for each in inside]
        found += [(f"which {name} wraps", each) for each in (getattr(made, "__wrapped__", None),)]
    elif isinstance(made, type) and _is_made_by_flux(made):
        found = [(f"of which {name} is made", _plain(each)) for each in vars(made).values()]
    else:
        found = []
    return ((how, each) for how, each in found if callable(each) or isinstance(each, _COLLECTIONS))


def _held(made: partial[Any]) -> tuple[Any, ...]:
    return (made.func, *made.args, *made.keywords.values())


def _is_filled(cell: Any) -> bool:
    try:
        cell.cell_contents  # noqa: B018 - reading it is the question.
    except ValueError:
        return False
    return True


def _is_made_by_flux(kind: type[Any]) -> bool:
    """Return whether `flux.wrap` or its like made a class of the user's code: others have no private bases."""
    return any(base.__module__.startswith("flux.") and base.__name__.startswith("_") for base in kind.__bases__)


def _plain(member: Any) -> Any:
    return member.__func__ if isinstance(member, staticmethod | classmethod) else member


def _name_of(made: Any) -> str:
    return str(getattr(made, "__qualname__", None) or type(made).__qualname__)


# --- where it is ---------------------------------------------------------------------------------------------------


def _module_of(made: Any) -> str | None:
    own = made if isinstance(made, type | FunctionType | MethodType) else type(made)
    module = getattr(own, "__module__", None)
    return module if isinstance(module, str) else None


def _why_not(module: str | None) -> str | None:
    """Return where a callable of this module is defined if no other process can import it; else None."""
    if module is None:
        return None
    if module == "__main__":
        return "the program that was started"
    # A submodule may be made when its package is imported, as `six.moves` is: then every process makes it.
    top = module.partition(".")[0]
    if _is_found(top):
        return None
    file = getattr(sys.modules.get(top), "__file__", None)
    if file is None:
        return f"module {module!r}, which was made while the program ran"
    return f"module {module!r} ({file}), which is not on the Python path"


def _is_found(module: str) -> bool:
    """Return whether an interpreter that has not imported a module yet finds it."""
    finders = (getattr(finder, "find_spec", None) for finder in sys.meta_path)
    return any(find is not None and find(module, None) is not None for find in finders)
