"""Session windows of event time: aggregates of the rows of each key that are close to each other in time.

A session has no fixed length. It continues as long as rows arrive that are less than `gap_ms` of event time apart. It
is over when the watermark says that no such row can follow. `session_panes` finds the sessions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from ..types.array_types import Int64s
from .event_time_state import check_ms
from .event_window import EventWindow, WindowSettings
from .session_panes import SessionPanes

__all__ = ["SessionWindow"]


@dataclass(frozen=True)
class _SessionSettings(WindowSettings):
    gap_ms: int

    @classmethod
    def lengths_of(cls, parameters: Mapping[str, Any]) -> dict[str, Any]:
        return {"gap_ms": check_ms("gap_ms", parameters.get("gap_ms"))}

    def floor_of(self, watermark: Int64s) -> Int64s:
        return watermark - self.gap_ms


class SessionWindow(EventWindow):
    """For each key, aggregates of the rows in each session of event time.

    >>> import flux
    >>> flow = flux.Dataflow("clicks")
    >>> rows = [("ann", 100, 1), ("bob", 200, 5), ("ann", 900, 2), ("ann", 1_900, 4)]
    >>> table = flux.sources.Table([dict(zip(("user", "ts", "price"), row)) for row in rows])
    >>> clicks = flow.source(table, event_time="ts", lateness_ms=100).exchange("user", partitions=4)
    >>> aggregates = {"clicks": "count", "total": ("sum", "price")}
    >>> clicks.apply(SessionWindow, time="ts", gap_ms=1_000, aggregates=aggregates).sink(flux.sinks.Collect())
    >>> flow.run(sites=2).table.sort_by([("user", "ascending"), ("window_start", "ascending")]).to_pylist()[0]
    {'user': 'ann', 'window_start': 100, 'window_end': 1900, 'clicks': 2, 'total': 3}

    Parameters of `apply`: `time`, the column of event time (as `event_time` of the source); `gap_ms`; `aggregates`, see
    `flux.operators.aggregates`. The key is that of the exchange before it; nulls are a key like any other, and all NaN
    are one.

    Two rows of a key are in one session if their event times differ by less than `gap_ms`, or if rows between them
    connect them so. A row exactly `gap_ms` after the last one begins a new session. `window_start` is the time of the
    earliest row. `window_end` is the time of the latest row plus `gap_ms`: the first instant at which a row would not
    belong to the session. An out-of-order row may join two open sessions into one.

    A watermark that has reached the end of a session closes it: the key columns, `window_start`, `window_end` and the
    aggregates are emitted. The end of the stream closes all sessions.

    The sessions that one watermark closes are emitted in the same order in every run, whatever processes fail. Within a
    partition the order is by `window_end` and then by key, ascending, with NaN after all other floats and nulls last.
    Partitions take turns: the first row of each, in the order of their numbers, then the second of each, and so on. So
    another number of partitions gives another order; where that matters, sort the output.

    A row is late if the watermark has reached its time plus `gap_ms`, so that a session of this row alone would have
    been closed. It is dropped and counted (`report.late`), even if it is in the middle of an open session. So is a row
    without event time. An out-of-order row that is not late joins open sessions, never closed ones.

    Sums of floats are added in row order within a pane of `gap_ms`; those of a session are the sums of its panes, from
    the oldest to the newest. So they do not depend on the batches. State is one entry for each open session, and a few
    more for rows that may still be out of order. Quantiles and a user's functions keep the rows of open sessions.
    """

    settings_class = _SessionSettings
    settings: _SessionSettings

    def new_panes(self, rows: pa.Schema) -> SessionPanes:
        return SessionPanes(self.step, self.key, self.settings.aggregates, rows, self.settings.gap_ms)
