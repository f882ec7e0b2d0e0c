"""Checks of the arguments of a stream's methods: an error says what was expected, what was given, and what to do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from ..model.event_time import EXPECTED, is_event_time
from ..model.operator import KeyedOperator, Operator, PooledOperator
from ..operators.join import TWO_STREAMS, Join
from ..types.arrays import schema_of
from ..types.errors import PlanError
from ..types.normalize import ColumnError

PARTITIONS_MAX = 65_535  # A partition's number is a 16-bit column.


def declared_schema(kind: str, fn: Any, output: Any) -> pa.Schema | None:
    """Return the columns that are declared for a function's output; None if none are."""
    try:
        return schema_of(output)
    except ColumnError as error:
        raise PlanError(f"{kind}({getattr(fn, '__name__', fn)}): {error}") from error


def check_event_time(name: str, column: str | None, output: pa.Schema | None) -> None:
    """Raise if a step's `event_time` is not a column of times in its output; an undeclared output is not checked."""
    if column is None or output is None:
        return
    if column not in output.names:
        raise PlanError(
            f"{name}: event_time names a column of its output, {column!r}; it emits {', '.join(output.names)}"
        )
    if not is_event_time(output.field(column).type):
        raise PlanError(f"{name}: event_time={column!r} is {output.field(column).type}; {EXPECTED}")


def check_partitions(partitions: Any, availability: Any) -> None:
    """Raise if the number of partitions or the availability is invalid."""
    if availability is not None:
        check_choice("availability", availability, ("pairs", "none"))
    if isinstance(partitions, bool) or not isinstance(partitions, int) or not 1 <= partitions <= PARTITIONS_MAX:
        raise PlanError(f"partitions is a number from 1 to {PARTITIONS_MAX:,}, got {partitions!r}")


def check_names(what: str, columns: Sequence[Any]) -> None:
    """Raise if a column is not given by name."""
    wrong = [column for column in columns if not isinstance(column, str)]
    if wrong:
        raise PlanError(
            f"{what} takes the names of columns one by one, such as {what}('src', 'dst'); got {wrong[0]!r:.200}. Of a "
            'function make a column before, as in select("src", new=(function, "int64"))'
        )


def check_factory(operator: Any, name: str) -> None:
    """Raise if `operator` is not a class or function that makes operators."""
    if isinstance(operator, Operator | KeyedOperator | PooledOperator):
        raise PlanError(
            f"apply takes an operator class, got an instance of {name}: write apply({name}, ...), with its "
            "parameters; each site makes its own instance"
        )
    if not callable(operator):
        raise PlanError(
            "apply takes an operator class, such as one of flux.operators, or a function that makes an operator; got "
            f"{operator!r:.200}"
        )
    if operator is Join:
        raise PlanError(TWO_STREAMS)


def check_choice(name: str, value: object, choices: tuple[str, ...]) -> None:
    """Raise if `value` is not one of `choices`."""
    if value not in choices:
        raise PlanError(f"{name} is {' or '.join(map(repr, choices))}, got {value!r}")
