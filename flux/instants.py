"""Keys with times of a time zone. To Python two such times are equal if clocks there show the same: so are two
instants in the hour that comes twice when summer time ends. To the partition hash, and here, they are two keys.
"""

from __future__ import annotations

import datetime
from typing import Any

__all__ = ["ZonedKey", "instant"]

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
