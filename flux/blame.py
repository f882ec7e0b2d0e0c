"""Blame: where in a user's code something went wrong, for messages."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from types import CodeType
from typing import Any

__all__ = ["columns_hint", "innermost", "place_of"]


def columns_hint(error: BaseException) -> str:
    """A row is a named tuple; what it says of a column that it has not is no help."""
    fields = getattr(error.obj, "_fields", None) if isinstance(error, AttributeError) else None
    return "" if fields is None else f"; its columns are {', '.join(fields)}"


def innermost(error: BaseException) -> CodeType | None:
    """The code in which an error arose."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    return frames[-1].f_code if frames else None


def place_of(function: Callable[..., Any], error: BaseException | None = None) -> str:
    """Name a callable with its file and line: where it is defined, or where in it the error arose."""
    # A step of a stream is ours; the function that it calls is the user's.
    function = getattr(getattr(function, "__self__", None), "blamed", None) or function
    name = getattr(function, "__qualname__", repr(function))
    # A bound method keeps its code in the function it binds.
    code = getattr(getattr(function, "__func__", function), "__code__", None)
    if code is None:
        return name
    line = code.co_firstlineno
    if error is not None:
        for frame in traceback.extract_tb(error.__traceback__):
            if frame.filename == code.co_filename and frame.lineno is not None:
                line = frame.lineno
    return f"{name} ({code.co_filename}:{line})"
