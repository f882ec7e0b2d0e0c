"""The two row formats of a `StatefulProcessor`: `pyspark.sql.Row`s, and pandas DataFrames.

A format passes a partition's groups to the processor and collects what it yields. The output of all partitions is
converted to columns once, at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa
from pyspark.sql import types
from pyspark.sql.pandas.types import to_arrow_schema

from ...types.array_types import Key
from ...types.errors import RAISED, FluxError, OperatorError, PlanError
from ...types.normalize import ColumnError, normalize_schema
from ...types.to_python import to_python
from .grouping_keys import KeyGroups
from .micro_batch_operator import Partition, wrap_error
from .pandas_frames import as_from_rows, check_pandas, frames_of, from_frame, pandas_key, to_frame
from .session_settings import PandasSettings
from .spark_columns import AsSpark
from .spark_values import row_type

__all__ = ["FORMS", "ProcessorCall", "RowFormat", "arrow_output", "columns_of_batches"]


@dataclass(slots=True)
class ProcessorCall:
    """A processor that runs on a micro-batch of a partition."""

    processor: Any
    handle: Any
    times: Any
    pid: int
    partition: Partition

    def call(self, function: Callable[..., Any], key: Any, *args: Any) -> Any:
        """Call user code; add the place and the key to what it raises."""
        try:
            return function(*args)
        except RAISED as error:
            raise self.error(error, function, key) from error

    def collect(self, function: Callable[..., Any], key: Any, produced: Iterable[Any], emitted: list[Any]) -> None:
        """Collect what `function`, which may be a generator, produces."""
        try:
            emitted.extend(produced)
        except RAISED as error:
            raise self.error(error, function, key) from error

    def error(self, error: BaseException, function: Callable[..., Any], key: Any) -> FluxError:
        batch = self.partition.batches
        return error if isinstance(error, FluxError) else wrap_error(error, function, self.pid, key, batch)


class RowFormat(Protocol):
    """How rows are passed to a processor, and its output is collected."""

    arrow: pa.Schema
    as_spark: AsSpark

    def each_group(self, task: ProcessorCall, groups: KeyGroups, indices: range, emitted: list[Any]) -> None:
        """Pass these groups, of one partition, to `handleInputRows`, in order."""

    def initial(self, task: ProcessorCall, key: Key, rows: Any) -> None:
        """Pass the initial rows of a key to `handleInitialState`."""

    def converted(self, produced: Iterable[Any]) -> Iterable[Any]:
        """Return what user code produces in the form that `columns` takes."""
        raise NotImplementedError

    def columns(self, emitted: list[list[Any]]) -> tuple[dict[str, Any], list[int]]:
        """Return the output of partitions as columns, and the row count of each."""


def arrow_output(output: Any, owner: str) -> pa.Schema:
    """Return the Arrow schema of the output."""
    try:
        return normalize_schema(to_arrow_schema(output, timezone="UTC"))
    except (ColumnError, TypeError, ValueError) as error:
        raise PlanError(f"{owner}: outputStructType: {error}") from error


class _Rows:
    """`transformWithState`: rows are `Row`s."""

    def __init__(self, output: Any, settings: PandasSettings, owner: str) -> None:
        self.arrow = arrow_output(output, owner)
        self.as_spark = AsSpark(settings.zone, widens=False)
        self._spark_arrow = to_arrow_schema(output, timezone="UTC")
        self._names = list(output.names)
        self._is_nested = any(
            isinstance(f.dataType, types.ArrayType | types.MapType | types.StructType) for f in output
        )

    def each_group(self, task: ProcessorCall, groups: KeyGroups, indices: range, emitted: list[Any]) -> None:
        if not indices:
            return
        base = groups.starts[indices[0]]
        rows = _python_rows(groups.rows.slice(base, groups.stops[indices[-1]] - base))
        starts, stops, keys = groups.starts, groups.stops, groups.keys
        handle, times, handle_rows, extend = task.handle, task.times, task.processor.handleInputRows, emitted.extend
        key: Any = None
        try:
            for i in indices:
                key = handle.key = keys[i]
                extend(handle_rows(tuple(key), iter(rows[starts[i] - base : stops[i] - base]), times))
        except RAISED as error:
            raise task.error(error, handle_rows, key) from error

    def initial(self, task: ProcessorCall, key: Key, rows: Any) -> None:
        for row in _python_rows(rows):
            task.call(task.processor.handleInitialState, key, tuple(key), row, task.times)

    def converted(self, produced: Iterable[Any]) -> Iterable[Any]:
        return produced

    def columns(self, emitted: list[list[Any]]) -> tuple[dict[str, Any], list[int]]:
        rows = [self._tuple(row) for output in emitted for row in output]
        columns = list(zip(*rows, strict=True)) or [()] * len(self._names)
        arrays = map(_spark_column, columns, self._spark_arrow, self.arrow)
        return dict(zip(self._names, arrays, strict=True)), [len(output) for output in emitted]

    def _tuple(self, row: Any) -> Any:
        try:
            if row.__fields__ == self._names and not self._is_nested:
                return row
            found = row.asDict(True)
        except (AttributeError, TypeError) as error:
            raise OperatorError(
                f"a pyspark.sql.Row with the names {', '.join(self._names)} was expected as output, got {row!r:.200}. "
                'Yield Row(name=value, ...); for DataFrames set rows="pandas"'
            ) from error
        # By name, as in Spark: a missing field is null, a field that is not in the schema is dropped.
        return [found.get(name) for name in self._names]


def _spark_column(values: Sequence[Any], given: pa.Field, wanted: pa.Field) -> Any:
    """Return values of user code as a column, by Arrow's rules, as Spark does: a bool is not a whole number."""
    try:
        return pa.array(values, given.type).cast(wanted.type)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        value = next((each for each in values if not _fits(each, given.type)), None)
        raise OperatorError(
            f"column {given.name!r} of the output is {given.type}, and {value!r:.100} does not fit: {error}. Emit a "
            "value of that type, or declare another in outputStructType"
        ) from error


def _fits(value: Any, kind: pa.DataType) -> bool:
    try:
        pa.array([value], kind)
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        return False
    return True


def _python_rows(rows: Any) -> list[Any]:
    make = row_type(tuple(rows.schema.names))
    return list(map(make, zip(*(to_python(column) for column in rows.columns), strict=True)))


class _Pandas:
    """`transformWithStateInPandas`: rows are DataFrames, one for each key."""

    def __init__(self, output: Any, settings: PandasSettings, owner: str) -> None:
        check_pandas(owner)
        self.arrow = arrow_output(output, owner)
        self.as_spark = AsSpark(settings.zone, widens=True)
        self._output = output
        self._settings = settings

    def each_group(self, task: ProcessorCall, groups: KeyGroups, indices: range, emitted: list[Any]) -> None:
        frames = frames_of(groups, indices, self._settings, from_rows=True)
        for i, chunks in zip(indices, frames, strict=True):
            key = task.handle.key = groups.keys[i]
            handle_rows = task.processor.handleInputRows
            produced = task.call(handle_rows, key, pandas_key(key), iter(chunks), task.times)
            task.collect(handle_rows, key, self.converted(produced), emitted)

    def initial(self, task: ProcessorCall, key: Key, rows: Any) -> None:
        frame = as_from_rows(to_frame(rows, self._settings))
        task.call(task.processor.handleInitialState, key, pandas_key(key), frame, task.times)

    def converted(self, produced: Iterable[Any]) -> Iterable[Any]:
        for frame in produced:
            yield from_frame(frame, self._output, self.arrow, self._settings)

    def columns(self, emitted: list[list[Any]]) -> tuple[dict[str, Any], list[int]]:
        return columns_of_batches(emitted, self.arrow)


FORMS: dict[str, Callable[[Any, PandasSettings, str], Any]] = {"rows": _Rows, "pandas": _Pandas}


def columns_of_batches(emitted: list[list[Any]], schema: pa.Schema) -> tuple[dict[str, Any], list[int]]:
    """Return record batches of partitions as columns, and the row count of each partition."""
    whole = pa.Table.from_batches([batch for output in emitted for batch in output], schema)
    columns = {name: whole.column(name).combine_chunks() for name in schema.names}
    return columns, [sum(batch.num_rows for batch in output) for output in emitted]
