"""The check that rows are still in the partition of their key, after steps that may change it.

Only the function of `map`, `flat_map` or an operator knows what it does with a key. If it changes the key, rows with
equal keys are in different partitions. A keyed operator would then emit each key once for each partition. So where the
plan cannot follow the key from the exchange to such an operator, the partition is computed again. For numbers that
costs a few nanoseconds a row, and all rows are checked. For text it costs as much as the operator: there the first rows
of the stream are checked, and then a sample. The sample depends only on sequence numbers, so that every copy checks the
same rows.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from ..model.batch import Batch
from ..model.operator import OperatorStep
from ..types.errors import OperatorError, PlanError
from ..types.hashing import mix

_FIRST = 4_096  # Up to this sequence number all rows are checked.
_SHIFT = np.uint64(64 - 6)  # And then one in 64.


def check_key_kept(step: OperatorStep, batch: Batch) -> None:
    """Raise if the key of a row belongs to another partition than the row."""
    columns = step.route.columns
    if not set(columns) <= set(batch.arrow.schema.names):
        return  # The operator itself reports a missing column.
    keys, where = batch.arrow.select(columns), batch.partition
    sample = None if all(map(_is_cheap, keys.schema.types)) else _sample(batch.sn)
    if sample is not None:
        keys, where = keys.take(pa.array(sample)), where.take(sample)
    misplaced = np.flatnonzero(_partitions(step.route, keys) != where)
    if len(misplaced):
        at = int(misplaced[0])
        row = at if sample is None else int(sample[at])
        raise OperatorError(
            f"a step between the exchange by {', '.join(map(repr, columns))} and this one has changed the key, to "
            f"{keys.slice(at, 1).to_pylist()[0]!r:.200} in this row: rows that are equal in it are in different "
            "partitions. Put the step before the exchange, or after this one, or give the new column another name",
            step.name,
            int(batch.partition[row]),
            int(batch.sn[row]),
        )


def _is_cheap(kind: Any) -> bool:
    is_number = pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)
    return bool(is_number or pa.types.is_temporal(kind))


def _sample(sn: Any) -> Any:
    return np.flatnonzero((mix(sn.astype(np.uint64)) >> _SHIFT == 0) | (sn <= _FIRST))


def _partitions(route: Any, keys: pa.RecordBatch) -> Any:
    try:
        return route.partition(keys, None, None)  # By hash or by range: their positions do not matter.
    except (PlanError, pa.ArrowException, TypeError, ValueError, OverflowError):
        return np.full(keys.num_rows, -1)  # The key's type has changed, to one that the route cannot place.
