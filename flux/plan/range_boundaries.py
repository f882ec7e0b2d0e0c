"""The boundaries of an exchange by range, as the user gave them or as a sample of values says."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa

from ..exchange.routes import boundaries_of, check_in_order, checked_boundaries
from ..types.cast import cast_values
from ..types.errors import PlanError

__all__ = ["range_boundaries"]


def range_boundaries(
    columns: tuple[str, ...],
    schema: pa.Schema,
    partitions: int,
    given: Any,
    sample: Any,
    sample_column: Callable[[str], Any],
) -> tuple[Any, ...]:
    """Return the boundaries between partitions; `sample_column` returns values of a column if none were given."""
    if len(columns) != 1:
        raise PlanError(f'by="range" takes one column, got {", ".join(map(repr, columns))}: exchange by one of them')
    if given is not None and sample is not None:
        raise PlanError('by="range" takes boundaries=[...] or sample=values, not both')
    kind = schema.field(columns[0]).type
    check_in_order(kind, columns[0])
    if given is not None:
        return checked_boundaries(given, kind, columns[0], partitions)
    if sample is None:
        sample = sample_column(columns[0])
    try:
        values = sample if isinstance(sample, pa.Array | pa.ChunkedArray) else list(sample)
        return boundaries_of(cast_values(values, kind), partitions)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise PlanError(f'by="range": the sample must be values of {kind}: {error}') from error
