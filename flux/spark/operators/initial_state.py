"""Initial state: rows that a processor gets before its first micro-batch; each partition gets those of its keys."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from ...types.errors import FluxError, PlanError
from ...types.hashing import partition_of
from ...types.normalize import normalize_schema
from .grouping_keys import KeyColumns, KeyGroups, group_rows
from .spark_columns import AsSpark

__all__ = ["InitialState"]


class InitialState:
    """The rows of all partitions, held by every site, because a partition may move to any of them."""

    def __init__(self, rows: Any) -> None:
        self._rows = rows
        self._partition: Any = None

    @classmethod
    def of(cls, given: Any, owner: str) -> InitialState | None:
        """Read the rows of a Spark DataFrame, grouped or not, a pandas one, or what `flux.sources.Table` takes."""
        if given is None:
            return None
        df = getattr(given, "_df", given)  # `df.groupBy(...)` is what Spark takes.
        try:
            if hasattr(df, "isStreaming"):
                if df.isStreaming:
                    raise PlanError("a DataFrame that is not streaming was expected")
                df = df.toArrow()
            elif hasattr(df, "iloc"):
                df = pa.Table.from_pandas(df, preserve_index=False)
            elif isinstance(df, list):
                df = pa.Table.from_pylist(df)
            table = df if isinstance(df, pa.Table) else pa.Table.from_batches([df])
            table = table.cast(normalize_schema(table.schema))
        except (pa.ArrowException, FluxError, TypeError, ValueError, AttributeError) as error:
            raise PlanError(
                f"{owner}: initialState must be a DataFrame, grouped or not, a pyarrow.Table or a list of dicts; "
                f"this {type(given).__name__} cannot be read: {error}"
            ) from error
        return cls(table.combine_chunks())

    def check(self, key_columns: tuple[str, ...], as_spark: AsSpark, owner: str) -> None:
        """Raise `PlanError` if the rows lack the key, or Spark has no type for a column."""
        missing = [name for name in key_columns if name not in self._rows.schema.names]
        if missing:
            raise PlanError(
                f"{owner}: initialState has the columns {', '.join(self._rows.schema.names)}; the key "
                f"({', '.join(key_columns)}) must be among them"
            )
        as_spark.check(self._rows.schema, f"{owner}: initialState")

    def of_partition(self, pid: int, partitions: int, keys: KeyColumns, as_spark: AsSpark) -> KeyGroups | None:
        """Return the rows of one partition, by key."""
        if not self._rows.num_rows:
            return None
        if self._partition is None:
            columns = [self._rows.column(name).combine_chunks() for name in keys.names]
            self._partition = partition_of(columns, partitions)
        rows = as_spark(self._rows.filter(pa.array(self._partition == pid)))
        keys.learn(rows.schema)
        if not rows.num_rows:
            return None
        [batch] = rows.combine_chunks().to_batches()
        return group_rows(batch, np.full(batch.num_rows, pid, np.uint16), keys)
