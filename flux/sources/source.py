"""Source: the base class of what `flow.source(...)` takes, and how a restarted ingress resumes it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import InitVar, dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from ..model.event_time import EventTime
from ..model.punctuation import PUNCTUATIONS
from ..types.deprecated import warn_renamed
from ..types.errors import FluxError, SourceError
from ..types.normalize import ColumnError, describe_columns, normalize_batch, normalize_schema
from ..types.validate import check_rows


@dataclass(frozen=True)
class SourceBatch:
    """Rows of a source; `received` is called once every live copy has received them all.

    `offset` is the source's position after these rows, as a small value of msgpack types.

    `punctuations`, as (kind, value), belong in the stream after the rows of the batch, if it has any. The offset is
    that after them: an ingress that dies after the rows emits them when it is restarted. All but the last of them may
    be emitted twice.
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
        if not isinstance(self.rows, pa.RecordBatch):
            raise TypeError(f"the rows of a SourceBatch are a pyarrow.RecordBatch, got {type(self.rows).__name__}")
        object.__setattr__(self, "rows", normalize_batch(self.rows))
        for kind, _ in self.punctuations:
            if kind not in PUNCTUATIONS:
                raise FluxError(f"a punctuation of a source is {' or '.join(map(repr, PUNCTUATIONS))}; got {kind!r}")


@dataclass(frozen=True)
class SourceContext:
    """What a source may use in the ingress process: a directory of its own, kept for the whole run.

    With `on_error="skip"`, `skip(nth, place, content, error)` counts and reports a record that the source cannot read:
    the nth of the run, which is counted once also if a restarted ingress reports it again. `place` is a number above
    0, such as that of a line. Without `on_error="skip"` it is None, and such a record is an error.
    """

    directory: Path
    skip: Callable[[int, int, str, str], None] | None = None


class Source:
    """What `flow.source(...)` takes. Subclasses set `schema` and define `batches`.

    `schema` must be known before the run starts, because the plan is checked against it.

    `replays` says how a restarted ingress resumes. True: every batch has an `offset`, and
    `batches(context, after=offset)` yields the rows after it, the same ones in the same order; batches may be cut
    differently. False: the source is live, and `batches(context)` yields what arrives from then on; Flux itself keeps
    the rows that have sequence numbers. None: unknown, and the run ends with an error when its ingress dies.
    """

    schema: pa.Schema
    replays: bool | None = None
    # Whether its `punctuations` are clocks or watermarks; None if that is unknown.
    emits_time: bool | None = None
    # Whether its stream may never end: the plan then warns of state that is kept until the end.
    is_endless: bool = True
    # The column of event times; `flow.source(..., event_time=...)` sets it.
    event_time: EventTime | None = None
    # After so long without rows it holds back the watermark no longer; `flow.source(..., idle_after_s=...)` sets it.
    idle_after_s: float | None = None
    # So often the ingress emits a clock while it runs; `flow.source(..., clock_ms=...)` sets it.
    clock_ms: int | None = None

    def __init_subclass__(cls) -> None:
        if "tells_time" in cls.__dict__:
            warn_renamed(f"{cls.__name__}.tells_time", "emits_time")
            cls.emits_time = cls.__dict__["tells_time"]

    def sample(self, rows: int) -> pa.RecordBatch | pa.Table | None:
        """Return at most `rows` rows, from all over the data, if that needs no reading of the source; else None.

        Every process that builds the same flow must get the same rows: a plan may depend on them.
        """
        return None

    def expect(self, flow: str, stateful_steps: Sequence[str]) -> None:
        """Refuse, in the user's program, a flow that this source cannot feed; called before anything is started.

        `flow` is its name, `stateful_steps` names its steps that may hold state.
        """

    def bind(self, directory: Path) -> None:
        """Prepare, in the user's program, before any process is forked; sockets opened here are shared."""

    def release(self) -> None:
        """Release what `bind` opened, in a forked process that is not the ingress.

        A socket stays open until every process that has it closes it.
        """

    def start(self) -> None:
        """Start, in the user's program, when all processes are up."""

    def stop(self) -> None:
        """Stop, in the user's program, when the run is over; also after a failed start."""

    def batches(self, context: SourceContext, after: Any = None) -> AsyncIterator[SourceBatch]:
        """Yield the batches after the offset `after` in order, in the ingress process; usually an async generator.

        `after` is not passed at the start of the stream, so a source that does not replay need not take it.
        """
        raise NotImplementedError(
            f"{type(self).__name__} must define `async def batches(self, context, after=None)` that yields SourceBatch"
        )


def check_batch(batch: Any) -> SourceBatch:
    """Return what a source yielded; raise if it is not a batch: None, for one, is not the end of the stream."""
    if not isinstance(batch, SourceBatch):
        raise TypeError(f"`batches` yielded {batch!r:.80}; expected a SourceBatch, such as SourceBatch(rows, offset=n)")
    return batch


def check_given(source: Source, rows: pa.RecordBatch) -> None:
    """Raise if the rows of a source do not have the columns of its schema, or have a value that cannot be sent."""
    if not rows.schema.equals(source.schema):
        _check_columns(source, rows.schema)
    try:
        check_rows(rows)
    except ColumnError as error:
        raise FluxError(f"source {type(source).__name__} gave a row that cannot be sent: {error}") from error


def _check_columns(source: Source, given: pa.Schema) -> None:
    """Raise if columns differ from those of the source's schema: the plan was checked against these."""
    schema = normalize_schema(source.schema)
    if (given.names, given.types) != (schema.names, schema.types):
        raise SourceError(
            f"source {type(source).__name__} gave rows with the columns {describe_columns(given)}, and its schema has "
            f"{describe_columns(schema)}. Give all columns in this order, cast to these types, or correct the schema"
        )
