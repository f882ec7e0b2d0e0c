"""Keys with zoned timestamps.

In Python two such times are equal if their local clocks show the same. So are two instants in the hour that is repeated
when summer time ends. For the partition hash, and here, they are two keys.

The operators of the library do not need this: a `KeyTable` keeps keys as columns, where times are instants already. It
cannot serve row-wise operators. They get keys as Python values, may drop a key and get it again within one batch, and
their keys stay in order of arrival. So their state is a dict, and all it needs is another equality.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable
from typing import Any

import pyarrow as pa

__all__ = ["ZonedKey", "instant", "rewrap_zoned", "wrap_zoned"]

_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)


def instant(value: Any) -> Any:
    """Return a zoned time as the duration since 1970, and any other value unchanged."""
    return value - _EPOCH if isinstance(value, datetime.datetime) and value.tzinfo is not None else value


class ZonedKey(tuple[Any, ...]):
    """A key that differs from keys of other instants; otherwise it is the plain tuple of the same values.

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
    """Return the keys, wrapped if a column holds zoned timestamps."""
    is_zoned = any(pa.types.is_timestamp(column.type) and column.type.tz is not None for column in columns)
    return list(map(ZonedKey, keys)) if is_zoned else keys


def rewrap_zoned(key: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return a key, wrapped if it holds a zoned timestamp, without knowledge of its columns."""
    return ZonedKey(key) if any(instant(cell) is not cell for cell in key) else key
