"""Plain calls: refuses user code that Flux would call and nothing would run, because it is ``async`` or a generator.

Such a method returns at once, without an error: a sink would take rows that it never writes.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from ..types.errors import PlanError
from .error_location import locate

__all__ = ["check_result", "check_sync_methods"]


def check_sync_methods(what: str, kind: type[Any], base: type[Any]) -> None:
    """Raise `PlanError` if a class defines methods of `base` as ``async def`` where `base` does not."""
    for name, method in inspect.getmembers(base, inspect.isfunction):
        defined = getattr(kind, name, method)
        if name != "batches" and _is_async(defined):
            raise PlanError(
                f"{what}: {locate(defined)} is `async def`, and Flux calls it without `await`, so nothing in it would "
                "run. Write it as a plain function; one that needs a loop can use trio.run or asyncio.run"
            )


def check_result(made: Any) -> None:
    """Raise if a function that was called for its effect returned a coroutine or a generator: it has done nothing."""
    if inspect.isawaitable(made) or inspect.isgenerator(made) or inspect.isasyncgen(made):
        raise TypeError(
            f"it returned {made!r:.80}, which nothing runs, so it has done nothing. It must be a plain function that "
            "has done its work when it returns"
        )


def _is_async(method: Callable[..., Any]) -> bool:
    return inspect.iscoroutinefunction(method) or inspect.isasyncgenfunction(method)
