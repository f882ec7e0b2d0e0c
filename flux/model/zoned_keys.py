"""Keys with times of a time zone. To Python two such times are equal if clocks there show the same: so are two
instants in the hour that comes twice when summer time ends. To the partition hash, and here, they are two keys.

The operators of the library have no need of this: a `KeyTable` keeps keys as columns, in which times are instants
already. It cannot serve here. Who is called row by row is given its key as Python has it, may forget a key and have it
again within one batch, and is asked by the order in which keys came; so its state is in a dict, and all that is wanted
is an equality for that.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable
from typing import Any

import pyarrow as pa

__all__ = ["ZonedKey", "instant", "rewrap_zoned", "wrap_zoned"]

_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)


def instant(value: Any) -> Any:
    """Return a time of a zone as the span since 1970, and any other value as it is."""
    return value - _EPOCH if isinstance(value, datetime.datetime) and value.tzinfo is not None else value


class ZonedKey(tuple[Any, ...]):
    """A key that differs from those of other instants. It stands for the plain tuple of the same values.

    >>> from zoneinfo import ZoneInfo
    >>> summer = datetime.datetime(2021, 10, 31, 2, 30, tzinfo=ZoneInfo("Europe/Berlin"))
    >>> winter = summer.replace(fold=1)
    >>> (summer,) == (winter,), ZonedKey((summer,)) == ZonedKey((winter,))
    (True, False)
    """

    def __init__(self, values: Any) -> None:
        self._instants = tuple(map(instant, self))

    def __eq__(self, other: object) -> bool:
        return self._instants == (other._instants if isinstance(other, ZonedKey) else other)

    def __hash__(self) -> int:
        return hash(self._instants)


def wrap_zoned(keys: list[tuple[Any, ...]], columns: Iterable[Any]) -> list[tuple[Any, ...]]:
    """Return what tells these keys apart: they themselves, unless there are times of a zone among their columns."""
    is_zoned = any(pa.types.is_timestamp(column.type) and column.type.tz is not None for column in columns)
    return list(map(ZonedKey, keys)) if is_zoned else keys


def rewrap_zoned(key: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return what tells a key apart of which the columns are not at hand."""
    return ZonedKey(key) if any(instant(cell) is not cell for cell in key) else key
