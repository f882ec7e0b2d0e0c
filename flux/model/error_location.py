"""Blame: where in a user's code something went wrong, for messages."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from types import CodeType
from typing import Any

import pyarrow as pa

__all__ = ["columns_hint", "innermost_frame", "locate"]


def columns_hint(error: BaseException) -> str:
    """A row is a named tuple, a batch is columns; what they say of a column that is asked for otherwise is no help."""
    if isinstance(error, TypeError) and str(error) == "tuple indices must be integers or slices, not str":
        return '; a row is a named tuple: write row.column, or getattr(row, "column")'
    if not isinstance(error, AttributeError):
        return ""
    fields = getattr(error.obj, "_fields", None)
    if fields is None and isinstance(getattr(error.obj, "arrow", None), pa.RecordBatch):
        return f"; a column of a batch is batch[{error.name!r}]"
    return "" if fields is None else f"; its columns are {', '.join(fields)}"


def innermost_frame(error: BaseException) -> CodeType | None:
    """The code in which an error arose."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    return frames[-1].f_code if frames else None


def locate(function: Callable[..., Any], error: BaseException | None = None) -> str:
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
