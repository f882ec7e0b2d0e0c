"""Type inference for undeclared output columns.

The first value of a column defines its type, and all later values must have it: 2.0 after 1 is refused, as True is. The
reason is that each site infers types separately, from the rows it gets. If values were converted to the type inferred
first, copies of a partition would differ by their site and by the time of their arrival.

None has no type, and an empty list has no element type. Such a type is *open*; Arrow's null type stands for it. Rows
with open types are sent unchanged, and a merge with other rows fills the types in. So None stays None wherever batches
are cut, on whichever site, and whenever a partition moves. If two sites infer different types, the merge of their rows
reports it.
"""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from .cast import cast_values
from .normalize import is_list, of_inner

__all__ = ["PartialSchema", "concat", "extend_schema", "infer_type", "unify"]


@dataclass(frozen=True)
class PartialSchema:
    """The schema of an undeclared output as far as it is known; some of its types may be open."""

    schema: Any

    @property
    def names(self) -> list[str]:
        return list(self.schema.names)


def extend_schema(known: PartialSchema | None, schema: Any) -> PartialSchema:
    """Return the schema that is known of an output after rows of `schema`."""
    if known is not None and known.schema == schema:
        return known
    whole = schema if known is None else unify(known.schema, schema)
    assert whole is not None, "emitted rows fit the known schema"
    return PartialSchema(whole)


def infer_type(values: Any, known: Any = None) -> Any:
    """Return the type of the first values, starting from `known`.

    >>> infer_type([None, 1, "a"]), infer_type([None]), infer_type([[], [1]]), infer_type([1.5], known=pa.int8())
    (DataType(int64), DataType(null), ListType(list<item: int64>), DataType(int8))
    """
    if known is not None and not _is_open(known):
        return known
    kind = pa.null() if known is None else known
    if isinstance(values, np.ndarray) and values.dtype == object and values.ndim == 1:
        values = values.tolist()
    if not isinstance(values, list):
        return _extend_type(kind, cast_values(values).type)
    for value in values:
        if value is not None:
            kind = _extend_type(kind, _type_of(value))
            if not _is_open(kind):
                break
    return kind


def _type_of(value: Any) -> Any:
    """Return the type of one value. Nested values are inferred part by part: Arrow would mix their types."""
    if isinstance(value, Mapping):
        if not all(isinstance(name, str) for name in value):
            raise TypeError(f"{value!r:.100} has keys that are not text, and fields have names")
        return pa.struct({name: infer_type([inner]) for name, inner in value.items()})
    if isinstance(value, np.ndarray) and value.ndim == 1 and value.dtype != object:
        return pa.list_(cast_values(value).type)
    if isinstance(value, Sequence | np.ndarray | deque) and not isinstance(value, str | bytes | bytearray | memoryview):
        return pa.list_(infer_type(list(value)))
    if isinstance(value, Set):
        raise TypeError("a set has no order. Emit a list: sorted(...)")
    return cast_values([value], exact=True).type


def _extend_type(kind: Any, other: Any) -> Any:
    """Return the known type after a value of type `other`; the cast refuses a value that does not fit."""
    whole = unify_types(kind, other)
    if whole is None:
        return kind
    if _has_empty_struct(whole):
        raise TypeError("an empty dict does not show which fields there are. Declare `output` with the operator")
    return whole


def _has_empty_struct(kind: Any) -> bool:
    return bool((pa.types.is_struct(kind) and not kind.num_fields) or any(map(_has_empty_struct, _inner(kind))))


def unify_types(kind: Any, other: Any) -> Any:
    """Return the common type of both, where an open part of one is filled from the other; None if they differ.

    >>> unify_types(pa.list_(pa.null()), pa.list_(pa.int8())), unify_types(pa.int8(), pa.int16())
    (ListType(list<item: int8>), None)
    """
    if pa.types.is_null(other) or kind == other:
        return kind
    if pa.types.is_null(kind):
        return other
    inner = _inner(kind)
    if not inner or type(kind) is not type(other) or len(inner) != len(_inner(other)):
        return None
    made = [unify_types(ours, theirs) for ours, theirs in zip(inner, _inner(other), strict=True)]
    if any(each is None for each in made):
        return None
    whole = _with_inner(kind, made)
    return whole if whole == _with_inner(other, made) else None  # Names or sizes may differ.


def unify(schema: Any, other: Any) -> Any:
    """Return the common schema of both, where an open type of one is filled from the other; None if they differ."""
    if schema == other:
        return schema
    if schema.names != other.names:
        return None
    fields = []
    for ours, theirs in zip(schema, other, strict=True):
        kind = unify_types(ours.type, theirs.type)
        if kind is None or ours.nullable != theirs.nullable:
            return None
        fields.append(ours.with_type(kind))
    return pa.schema(fields, schema.metadata)


def concat(batches: Sequence[Any]) -> Any:
    """Return the rows of record batches, one after the other, under one schema."""
    if len(batches) == 1:
        return batches[0]
    whole = batches[0].schema
    for batch in batches:
        whole = unify(whole, batch.schema)
        assert whole is not None, "batches of one step fit its known schema"
    return pa.concat_batches([batch if batch.schema == whole else batch.cast(whole) for batch in batches])


@functools.lru_cache(maxsize=1_024)
def _is_open(kind: Any) -> bool:
    return bool(pa.types.is_null(kind) or any(map(_is_open, _inner(kind))))


def _with_inner(kind: Any, inner: list[Any]) -> Any:
    left = iter(inner)
    return of_inner(kind, lambda _: next(left))


def _inner(kind: Any) -> list[Any]:
    """Return the inner types of a nested type; nothing for others."""
    if pa.types.is_struct(kind):
        return [field.type for field in kind]
    if pa.types.is_map(kind):
        return [kind.key_type, kind.item_type]
    return [kind.value_type] if is_list(kind) or pa.types.is_fixed_size_list(kind) else []
