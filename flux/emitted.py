"""Emitted rows: a row-wise operator's dicts as they are when it returns them.

Its rows become columns when a batch has ended, and by then it may have changed a dict that it keeps as its state, or a
list in it. So each is copied as it comes; lists, dicts and what else can be changed in it are too, if its columns are
such that it may have any.
"""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pyarrow as pa

__all__ = ["keeping"]


def keeping(schema: Any) -> Callable[[Any], Any]:
    """What makes a copy of a row of a schema, of what is known of one so far (a `Learning`), or of one not known.

    What is no row stays what it is: an error, for whoever looks at it.

    >>> held = {"n": 1, "all": [1]}
    >>> row = keeping(None)(held)
    >>> held["all"].append(2)
    >>> row
    {'n': 1, 'all': [1]}
    """
    types = [pa.null()] if schema is None else getattr(schema, "schema", schema).types
    return _deep if any(map(_can_be_changed, types)) else _flat


@functools.lru_cache(maxsize=1_024)
def _can_be_changed(kind: Any) -> bool:
    """Whether a value of a column may be one that can be changed: bytes may come as a bytearray, None tells nothing."""
    is_bytes = pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind)
    return bool(is_bytes or pa.types.is_nested(kind) or pa.types.is_null(kind))


def _flat(row: Any) -> Any:
    return row.copy() if type(row) is dict else dict(row) if isinstance(row, Mapping) else row


def _deep(row: Any) -> Any:
    return _copied(row) if isinstance(row, Mapping) else row


def _copied(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _copied(inner) for name, inner in value.items()}
    if isinstance(value, tuple):
        return tuple(map(_copied, value))  # A struct may be a tuple, and no list.
    if isinstance(value, list | deque):
        return list(map(_copied, value))
    if isinstance(value, memoryview):
        return bytes(value)
    return value.copy() if isinstance(value, np.ndarray | bytearray | set) else value
