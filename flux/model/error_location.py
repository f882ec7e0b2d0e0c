"""The location of an error in a user's code, for messages."""

from __future__ import annotations

import sysconfig
import traceback
from collections.abc import Callable
from pathlib import Path
from types import CodeType
from typing import Any

import pyarrow as pa

from ..types.errors import FluxError

__all__ = ["columns_hint", "end_error", "innermost_frame", "locate", "traceback_of", "user_line"]

_FLUX = str(Path(__file__).parent.parent) + "/"
_LIBRARIES = tuple({sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")})


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


def user_line(error: BaseException) -> str | None:
    """Return file and line of the innermost frame that is neither Flux's nor a library's; of a library's if need be."""
    outside = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith(_FLUX)]
    own = [frame for frame in outside if not frame.filename.startswith(_LIBRARIES)]
    frames = own or outside
    return f"{frames[-1].filename}:{frames[-1].lineno}" if frames else None


def end_error(kind: type[FluxError], name: str, error: BaseException, doing: str, advice: str) -> FluxError:
    """Return what to raise when a source or sink raised: `kind` with its name, the user's line, and what it was doing.

    >>> print(end_error(FluxError, "sink Orders", ValueError("too large"), "took the rows 1 to 9", "Fix it"))
    sink Orders raised ValueError: too large when it took the rows 1 to 9. Fix it
    """
    if isinstance(error, FluxError):
        return error
    line = user_line(error)
    where = "" if line is None else f" ({line})"
    return kind(f"{name}{where} raised {type(error).__name__}: {error} when it {doing}. {advice}")


def traceback_of(error: BaseException) -> str:
    """Return the whole traceback of an error and of what caused it."""
    return "".join(traceback.format_exception(error))
