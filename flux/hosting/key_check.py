"""Whether rows that a step has made of others are still where their key belongs.

What `map`, `flat_map` or an operator makes of a key is known to its function alone. If it makes another one, rows that
are equal in it are in different partitions, and whoever keeps state by key would tell each key once for each of them.
So where the plan cannot follow the key from the exchange to such an operator, the rows are asked for their partition
once more. Of numbers that costs a few nanoseconds for each, and all are asked. Of text it costs as much as the operator
does: there all of the first rows of the stream are asked, and then one in many. Which ones depends on nothing but their
sequence numbers, so that every copy asks the same.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from ..model.batch import Batch
from ..model.operator import OperatorStep
from ..types.errors import OperatorError, PlanError
from ..types.hashing import mix

_FIRST = 4_096  # Up to this sequence number all rows are asked.
_SHIFT = np.uint64(64 - 6)  # And then one in 64.


def check_key_kept(step: OperatorStep, batch: Batch) -> None:
    """Raise if the key of a row belongs to another partition than the row is in."""
    columns = step.route.columns
    if not set(columns) <= set(batch.arrow.schema.names):
        return  # What is missing the operator says itself.
    keys, where = batch.arrow.select(columns), batch.partition
    asked = None if all(map(_is_cheap, keys.schema.types)) else _sample(batch.sn)
    if asked is not None:
        keys, where = keys.take(pa.array(asked)), where.take(asked)
    astray = np.flatnonzero(_partitions(step.route, keys) != where)
    if len(astray):
        at = int(astray[0])
        row = at if asked is None else int(asked[at])
        raise OperatorError(
            f"a step between the exchange by {', '.join(map(repr, columns))} and this one has changed the key, to "
            f"{keys.slice(at, 1).to_pylist()[0]!r:.200} in this row: rows that are equal in it are in different "
            "partitions. Put the step before the exchange, or behind this one, or give the new column another name",
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
        return np.full(keys.num_rows, -1)  # Its type has changed, to one that has no place among these.
