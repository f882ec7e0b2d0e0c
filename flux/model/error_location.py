"""The location of an error in a user's code, for messages."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from types import CodeType
from typing import Any

import pyarrow as pa

__all__ = ["columns_hint", "innermost_frame", "locate"]


def columns_hint(error: BaseException) -> str:
    """Return how to access a column, for errors of rows (named tuples) and batches that do not help; else nothing."""
    if isinstance(error, TypeError) and str(error) == "tuple indices must be integers or slices, not str":
        return '; a row is a named tuple: write row.column, or getattr(row, "column")'
    if not isinstance(error, AttributeError):
        return ""
    fields = getattr(error.obj, "_fields", None)
    if fields is None and isinstance(getattr(error.obj, "arrow", None), pa.RecordBatch):
        return f"; a column of a batch is batch[{error.name!r}]"
    return "" if fields is None else f"; its columns are {', '.join(fields)}"


def innermost_frame(error: BaseException) -> CodeType | None:
    """Return the code object in which an error was raised."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    return frames[-1].f_code if frames else None


def locate(function: Callable[..., Any], error: BaseException | None = None) -> str:
    """Return the name of a callable with its file and line: of its definition, or where in it the error was raised."""
    # A step of a stream is part of Flux; the function that it calls is the user's.
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
