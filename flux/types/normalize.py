"""The types with which rows are sent, and the names that columns may have.

Rows are sent with *plain* types. A dictionary belongs to a stream and not to a batch that is cut, merged and forwarded
separately. Arrow cannot select rows from views and run-length encodings. Such columns are decoded where rows enter,
from a source or an operator. Equal values stay equal; only their storage changes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

__all__ = [
    "HIDDEN",
    "ColumnError",
    "check_names",
    "describe_columns",
    "inner_arrays",
    "is_list",
    "normalize_array",
    "normalize_batch",
    "normalize_schema",
    "normalize_type",
    "of_inner",
]

# The columns that Flux adds to the user's on the wire: position, order among descendants, producing partition,
# consuming partition.
HIDDEN = ("__sn", "__sub", "__producer", "__partition")


class ColumnError(ValueError):
    """Values do not fit the column; the text says what was expected and what it got, `place` is the first such row."""

    def __init__(self, message: str, place: int | None = None) -> None:
        super().__init__(message)
        self.place = place


def describe_columns(schema: Any) -> str:
    """Return the columns of a schema as one line."""
    return ", ".join(f"{field.name} {field.type}" for field in schema)


def repeated(names: Sequence[str]) -> list[str]:
    """Return the names that occur more than once, in order.

    >>> repeated(["b", "a", "b"])
    ['b']
    """
    return sorted({name for name in names if names.count(name) > 1})


def check_names(names: list[str]) -> None:
    """Raise if columns with these names cannot be in one batch beside those of Flux."""
    ours = [name for name in names if name in HIDDEN]
    if ours:
        raise ColumnError(
            f"a column cannot be called {', '.join(map(repr, ours))}: Flux keeps the order of rows in columns called "
            f"{', '.join(HIDDEN)}. Rename it"
        )
    twice = repeated(names)
    if twice:
        raise ColumnError(f"column names must differ; {', '.join(map(repr, twice))} occurs more than once")


def normalize_schema(schema: Any) -> Any:
    """Return the schema with which rows of `schema` are sent; raise if they cannot be.

    >>> normalize_schema(pa.schema({"app": pa.dictionary(pa.int8(), pa.string())}))
    app: string
    """
    check_names(schema.names)
    fields = []
    for field in schema:
        try:
            fields.append(field.with_type(normalize_type(field.type)))
        except ColumnError as error:
            raise ColumnError(f"column {field.name!r}: {error}") from error
    return pa.schema(fields, schema.metadata)


def normalize_batch(rows: Any) -> Any:
    """Return a record batch with its columns decoded; the same object if they are plain."""
    if all(_is_plain(field.type) for field in rows.schema):
        return rows
    arrays = [normalize_array(column) for column in rows.columns]
    return pa.RecordBatch.from_arrays(arrays, schema=normalize_schema(rows.schema))


def normalize_array(array: Any) -> Any:
    """Return an array with its values decoded; the same object if its type is plain."""
    kind = array.type
    if _is_plain(kind):
        return array
    if pa.types.is_dictionary(kind):
        return normalize_array(array.dictionary_decode())
    if pa.types.is_run_end_encoded(kind):
        return normalize_array(pc.run_end_decode(array))
    if pa.types.is_struct(kind):
        children = [normalize_array(child) for child in array.flatten()]
        return pa.StructArray.from_arrays(children, fields=list(normalize_type(kind)), mask=array.is_null())
    if is_list(kind):
        return _plain_list(array)
    return array.cast(normalize_type(kind))


def _plain_list(array: Any) -> Any:
    """Return lists laid out contiguously: Arrow's own casts of views ignore offsets."""
    kind = normalize_type(array.type)
    lengths = pc.fill_null(pc.list_value_length(array), 0).to_numpy(zero_copy_only=False)
    offsets = np.zeros(len(array) + 1, np.int64 if pa.types.is_large_list(kind) else np.int32)
    np.cumsum(lengths, out=offsets[1:])
    whole = pa.LargeListArray if pa.types.is_large_list(kind) else pa.ListArray
    return whole.from_arrays(pa.array(offsets), normalize_array(array.flatten()), type=kind, mask=array.is_null())


def _is_plain(kind: Any) -> bool:
    # Most columns have types without inner types: this shortcut makes the check cheap.
    return bool(pa.types.is_primitive(kind) or normalize_type(kind) == kind)


def normalize_type(kind: Any) -> Any:
    """Return the plain type of the decoded values of `kind`; raise if there is none."""
    if pa.types.is_dictionary(kind) or pa.types.is_run_end_encoded(kind):
        return normalize_type(kind.value_type)
    if pa.types.is_string_view(kind):
        return pa.string()
    if pa.types.is_binary_view(kind):
        return pa.binary()
    if pa.types.is_struct(kind) or is_list(kind) or pa.types.is_map(kind):
        return of_inner(kind, normalize_type)
    if not all(_is_plain(inner) for inner in _inside(kind)):
        raise ColumnError(f"rows with values of type {kind} cannot be sent one by one. Convert the column")
    return kind


def of_inner(kind: Any, change: Callable[[Any], Any]) -> Any:
    """Return the nested type `kind` with `change` applied to its inner types; views become plain.

    >>> of_inner(pa.list_(pa.int8()), lambda inner: pa.int64())
    ListType(list<item: int64>)
    """
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(change(field.type)) for field in kind])
    if pa.types.is_map(kind):
        return pa.map_(change(kind.key_type), change(kind.item_type))
    inner = kind.value_field.with_type(change(kind.value_type))
    if pa.types.is_fixed_size_list(kind):
        return pa.list_(inner, kind.list_size)
    large = pa.types.is_large_list(kind) or pa.types.is_large_list_view(kind)
    return (pa.large_list if large else pa.list_)(inner)


def inner_arrays(array: Any) -> list[Any]:
    """Return the inner values of a nested array, without other content of its buffers.

    >>> [inner.to_pylist() for inner in inner_arrays(pa.array([[1], [2, 3], None]).slice(1))]
    [[2, 3]]
    """
    if pa.types.is_struct(array.type):
        return list(array.flatten())
    if pa.types.is_map(array.type):
        begin, end = array.offsets[0].as_py(), array.offsets[-1].as_py()
        return [part.slice(begin, end - begin) for part in (array.keys, array.items)]
    return [array.flatten()]


def _inside(kind: Any) -> list[Any]:
    """Return the types inside a type that `normalize_type` cannot change."""
    if isinstance(kind, pa.BaseExtensionType):
        return [kind.storage_type]
    if pa.types.is_fixed_size_list(kind):
        return [kind.value_type]
    return [kind.field(i).type for i in range(kind.num_fields)] if pa.types.is_union(kind) else []


def is_list(kind: Any) -> bool:
    """Return whether values are lists of any length, in any storage."""
    lists = pa.types.is_list(kind) or pa.types.is_large_list(kind)
    return bool(lists or pa.types.is_list_view(kind) or pa.types.is_large_list_view(kind))
