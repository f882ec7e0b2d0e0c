"""The location of an error in a user's code, for messages."""

from __future__ import annotations

import sysconfig
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import CodeType
from typing import Any

import pyarrow as pa

from ..types.errors import FluxError

__all__ = ["columns_hint", "end_error", "innermost_frame", "is_users_code", "locate", "traceback_of", "user_line"]

_FLUX = str(Path(__file__).parent.parent) + "/"
_LIBRARIES = tuple({sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")})


def columns_hint(error: BaseException) -> str:
    """Return how to access a column, for errors of rows (named tuples) and batches that do not help; else nothing."""
    if not isinstance(error, AttributeError):
        return ""
    fields = getattr(error.obj, "_fields", None)
    if fields is not None:
        fields = getattr(error.obj, "_columns", fields)  # Of a row: not all names are those of attributes.
    if fields is None and isinstance(getattr(error.obj, "arrow", None), pa.RecordBatch):
        return f"; a column of a batch is batch[{error.name!r}]"
    return "" if fields is None else f"; its columns are {', '.join(fields)}"


def innermost_frame(error: BaseException) -> CodeType | None:
    """Return the code object in which an error was raised."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    return frames[-1].f_code if frames else None


def locate(function: Callable[..., Any], error: BaseException | None = None) -> str:
    """Return the name of a user's callable with its file and line: of its definition, or where in it the error arose.

    An error in code of the user that a callable of Flux or of a library has called names that code.
    """
    # An operator of Flux that calls a user's function has it as `user_code`.
    function = getattr(getattr(function, "__self__", None), "user_code", None) or function
    while (inner := getattr(function, "func" if isinstance(function, partial) else "__wrapped__", None)) is not None:
        function = inner
    name = getattr(function, "__qualname__", None) or type(function).__qualname__
    # A bound method has its code in the function it binds; an object that can be called, in its class.
    codes = (
        getattr(each, "__code__", None) for each in (getattr(function, "__func__", function), type(function).__call__)
    )
    code: CodeType | None = next(filter(None, codes), None)
    line = None if code is None else code.co_firstlineno
    raised = [] if error is None else [(at.f_code, line) for at, line in traceback.walk_tb(error.__traceback__)]
    users = [at for at in raised if is_users_code(at[0])]
    if users and (code is None or not is_users_code(code)):
        name = name if code is None else users[-1][0].co_qualname
        code, line = users[-1]
    elif code is not None:
        line = next((at for within, at in reversed(raised) if within.co_filename == code.co_filename), line)
    return name if code is None else f"{name} ({code.co_filename}:{line})"


def is_users_code(code: CodeType) -> bool:
    """Return whether code is neither of Flux nor of a library."""
    return not code.co_filename.startswith((_FLUX, *_LIBRARIES))


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
