"""Emitted rows: a row-wise operator's dicts as they are when it returns them.

Its rows become columns when a batch has ended, and by then it may have changed a dict that it keeps as its state, or a
list in it. So each is copied as it comes; lists and dicts in it are too, if its columns are such that it may have any.
"""

from __future__ import annotations

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
    types = [] if schema is None else getattr(schema, "schema", schema).types
    may_be_nested = schema is None or any(pa.types.is_nested(kind) or pa.types.is_null(kind) for kind in types)
    return _deep if may_be_nested else _flat


def _flat(row: Any) -> Any:
    return row.copy() if type(row) is dict else dict(row) if isinstance(row, Mapping) else row


def _deep(row: Any) -> Any:
    return _copied(row) if isinstance(row, Mapping) else row


def _copied(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _copied(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_copied(inner) for inner in value]
    return value.copy() if isinstance(value, np.ndarray | bytearray | set) else value
