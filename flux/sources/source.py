"""Source: what `flow.source(...)` takes, and how an ingress that is started again goes on with it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import InitVar, dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from ..model.event_time import EventTime
from ..types.deprecated import warn_renamed
from ..types.errors import FluxError
from ..types.normalize import ColumnError, normalize_batch
from ..types.validate import check_rows


@dataclass(frozen=True)
class SourceBatch:
    """Rows as they come from a source; `received` is called once every live copy has received them all.

    `offset` says where the source stands behind them, as a small value of msgpack types.

    A batch without rows may have `punctuations`: punctuations, as (kind, value), that stand in the stream where it
    comes. It has an offset of its own, so that an ingress which dies behind the rows before it gives them once it is
    back. It may give all but the last of them twice.
    """

    rows: pa.RecordBatch
    received: Callable[[], None] | None = None
    offset: Any = None
    punctuations: tuple[tuple[str, int | None], ...] = ()
    marks: InitVar[tuple[tuple[str, int | None], ...] | None] = None

    def __post_init__(self, marks: tuple[tuple[str, int | None], ...] | None) -> None:
        if marks is not None:
            warn_renamed("SourceBatch(marks=...)", "SourceBatch(punctuations=...)")
            object.__setattr__(self, "punctuations", marks)
        object.__setattr__(self, "rows", normalize_batch(self.rows))
        assert not (self.punctuations and self.rows.num_rows), (
            "punctuations come in a batch of their own, after the rows"
        )


@dataclass(frozen=True)
class SourceContext:
    """What a source may use in the ingress process: a directory of its own, kept for the whole run."""

    directory: Path


class Source:
    """What `flow.source(...)` takes. Subclasses set `schema` and write `batches`.

    `schema` must be known before the run starts, because the plan is checked against it.

    `replays` says how an ingress that was killed and started again goes on. True: every batch has an `offset`, and
    `batches(context, after=offset)` gives the rows behind it, the same ones in the same order; batches may be cut
    otherwise. False: the source is live, and `batches(context)` gives what comes from then on; Flux keeps the rows
    it has numbered itself. None: the source does not say, and the run ends with an error when its ingress dies.
    """

    schema: pa.Schema
    replays: bool | None = None
    # Whether its `punctuations` tell the time, by clocks or watermarks; None if it does not say.
    emits_time: bool | None = None
    # Whether its stream may go on without end: then it is warned of what would be kept until the end.
    is_endless: bool = True
    # Which column tells event time; `flow.source(..., event_time=...)` sets it.
    event_time: EventTime | None = None

    def __init_subclass__(cls) -> None:
        if "tells_time" in cls.__dict__:
            warn_renamed(f"{cls.__name__}.tells_time", "emits_time")
            cls.emits_time = cls.__dict__["tells_time"]

    def sample(self, rows: int) -> pa.RecordBatch | pa.Table | None:
        """At most so many rows, from all over the data, if they can be had without reading the source; else None.

        Every process that makes the same flow must get the same ones: a plan may depend on them.
        """
        return None

    def bind(self, directory: Path) -> None:
        """Prepare, in the user's program, before any process is forked; sockets made here are shared."""

    def release(self) -> None:
        """Let go of what `bind` made, in a forked process that is not the ingress.

        A socket stays open until its last holder closes it, so each of them must.
        """

    def start(self) -> None:
        """Begin, in the user's program, when all processes are up."""

    def stop(self) -> None:
        """End, in the user's program, when the run is over; also after a failed start."""

    def batches(self, context: SourceContext, after: Any = None) -> AsyncIterator[SourceBatch]:
        """Yield the batches behind the offset `after` in order, in the ingress process; usually an async generator.

        `after` is left out for the beginning, so a source that does not replay need not take it.
        """
        raise NotImplementedError(
            f"{type(self).__name__} must define `async def batches(self, context, after=None)` that yields SourceBatch"
        )


def check_given(source: Source, rows: pa.RecordBatch) -> None:
    """Raise if there is a value among the rows of a source that nobody can be sent."""
    try:
        check_rows(rows)
    except ColumnError as error:
        raise FluxError(f"source {type(source).__name__} gave a row that nobody can be sent: {error}") from error
