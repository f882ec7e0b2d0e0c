"""Windows of event time: aggregates of the rows of each key within a stretch of time; `time_panes` finds them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa

from ..types.array_types import Int64s
from ..types.arrays import ColumnError
from .event_time_state import check_ms
from .event_window import EventWindow, WindowSettings
from .time_panes import TimePanes
from .window_grids import DayGrid, FixedGrid, WindowGrid

__all__ = ["TimeWindow"]

_DAY_MS = 86_400_000
_MOST_DAYS = 36_525  # A hundred years.


@dataclass(frozen=True)
class _TimeSettings(WindowSettings):
    size_ms: int | None
    slide_ms: int | None
    offset_ms: int
    days: int | None
    zone: str | None

    @classmethod
    def lengths_of(cls, parameters: Mapping[str, Any]) -> dict[str, Any]:
        given = {name: parameters.get(name) for name in ("size_ms", "slide_ms", "days", "zone")}
        offset = parameters.get("offset_ms", 0)
        if not isinstance(offset, int) or isinstance(offset, bool):
            raise ColumnError(f"offset_ms is a whole number of milliseconds; got {offset!r}")
        if given["days"] is None and given["zone"] is None:
            size, slide = check_ms("size_ms", given["size_ms"]), given["slide_ms"]
            slide = size if slide is None else check_ms("slide_ms", slide)
            if slide > size:
                raise ColumnError(
                    f"slide_ms={slide} is longer than size_ms={size}: rows in between would be in no window"
                )
            return given | {"size_ms": size, "slide_ms": slide, "offset_ms": offset % slide}
        _check_days(given, offset)
        return given | {"offset_ms": offset}

    def floor_of(self, watermark: Int64s) -> Int64s:
        return self.grid.floor_of(watermark)

    @cached_property
    def grid(self) -> WindowGrid:
        if self.days is not None and self.zone is not None:
            return DayGrid(self.days, self.zone, self.offset_ms)
        assert self.size_ms is not None and self.slide_ms is not None
        return FixedGrid(self.size_ms, self.slide_ms, self.offset_ms)


def _check_days(given: Mapping[str, Any], offset: int) -> None:
    """Raise unless the parameters are valid for windows of days."""
    days, zone = given["days"], given["zone"]
    is_count = isinstance(days, int) and not isinstance(days, bool) and 1 <= days <= _MOST_DAYS
    if not is_count or not isinstance(zone, str) or given["size_ms"] is not None or given["slide_ms"] is not None:
        raise ColumnError(
            f"days, from 1 to {_MOST_DAYS:,}, and zone, such as 'Europe/Oslo', are given both and without size_ms and "
            f"slide_ms; got {', '.join(f'{name}={value!r}' for name, value in given.items() if value is not None)}"
        )
    if not 0 <= offset < _DAY_MS:
        raise ColumnError(f"offset_ms of windows of days is from 0 to {_DAY_MS - 1:,}; got {offset!r}")
    try:
        DayGrid(days, zone).bounds_of(np.zeros(1, np.int64))
    except pa.ArrowInvalid as error:
        raise ColumnError(f"zone={zone!r}: {error}. Expected a name such as 'Europe/Oslo' or 'UTC'") from error


class TimeWindow(EventWindow):
    """For each key, aggregates of the rows in each window of event time.

    >>> import flux
    >>> flow = flux.Dataflow("orders")
    >>> rows = [("a", 100, 5.0), ("a", 900, 2.5), ("b", 950, 1.0), ("a", 1_200, 4.0)]
    >>> table = flux.sources.Table([dict(zip(("shop", "ts", "amount"), row)) for row in rows])
    >>> orders = flow.source(table, event_time="ts", lateness_ms=100).exchange("shop", partitions=4)
    >>> aggregates = {"orders": "count", "total": ("sum", "amount")}
    >>> orders.apply(TimeWindow, time="ts", size_ms=1_000, aggregates=aggregates).sink(flux.sinks.Collect())
    >>> flow.run(sites=2).table.sort_by("shop").to_pylist()[0]
    {'shop': 'a', 'window_start': 0, 'window_end': 1000, 'orders': 2, 'total': 7.5}

    Parameters of `apply`: `time`, the column of event time (as `event_time` of the source); `size_ms`, and `slide_ms`
    if windows overlap; `aggregates`, see `flux.operators.aggregates`. The key is that of the exchange before it; nulls
    are a key like any other, and all NaN are one.

    Windows begin at multiples of `slide_ms`, plus `offset_ms`, and last `size_ms`, without their end. With `days=1` and
    `zone="Europe/Oslo"` instead of lengths, a window is a day by the clocks of that time zone, of 23 or 25 hours where
    these are changed; it begins `offset_ms` after midnight. Windows of several days are counted from 1970-01-01.

    For windows over all rows put `exchange(partitions=1)` before it. A window is emitted when a watermark
    has reached its end: for each key with a row in it, the key columns, `window_start`, `window_end` and the
    aggregates. The end of the stream emits all windows. A window without rows is not emitted.

    The windows that one watermark closes are emitted in the same order in every run, whatever processes fail. Within a
    partition the order is by window and then by key, ascending, with NaN after all other floats and nulls last.
    Partitions take turns: the first row of each, in the order of their numbers, then the second of each, and so on. So
    another number of partitions gives another order; where that matters, sort the output by ``window_start`` and key.

    A row that arrives after its last window was emitted is late: it is dropped and counted (`report.late`), and so is a
    row without event time. A row that is late for some of its windows counts in the others.

    Sums of floats are added in row order within a pane; those of a sliding window are the sums of its panes, from the
    oldest to the newest. So they do not depend on the batches.
    """

    settings_class = _TimeSettings
    settings: _TimeSettings

    def new_panes(self, rows: pa.Schema) -> TimePanes:
        return TimePanes(self.step, self.key, self.settings.aggregates, rows, self.settings.grid)
