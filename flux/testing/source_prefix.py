"""The first rows of each source of a flow, and how a simulated ingress numbers them.

A real ingress numbers the rows of several sources as they arrive. Here a seed decides how they are cut into pieces, and
which source is next. Watermarks are where the ingress of a run would set them: the same code emits them.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import AsyncGenerator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import trio

from ..model.batch import Batch
from ..model.punctuation import Punctuation
from ..plan import Plan
from ..plan.plan import INPUT
from ..site.ingress.watermarks import Watermarks, find_time_places, number_watermarks
from ..site.steps import StepOutputs, Steps
from ..sources.source import Source, SourceContext, check_given
from ..types.errors import PlanError
from ..types.normalize import normalize_schema

__all__ = ["PrefixPull", "SourcePrefix", "pulls", "source_prefixes"]

SOURCE_TIMEOUT_S = 20.0  # For the next rows of a source.
_CUTS_MAX = 8


@dataclass(frozen=True)
class SourcePrefix:
    """The first rows of a source, and its punctuations among them: (number of rows before, kind, value)."""

    source: Source
    rows: pa.RecordBatch
    punctuations: tuple[tuple[int, str, int | None], ...] = ()


@dataclass(frozen=True)
class PrefixPull:
    """The input that the ingress numbers at once: rows of one source, and the punctuations among or after them."""

    source: int
    rows: pa.RecordBatch
    sn: npt.NDArray[Any]
    punctuations: tuple[Punctuation, ...]
    upto: int


# --- reading -------------------------------------------------------------------------------------------------


def source_prefixes(sources: Sequence[Source], count: int, flow: str) -> list[SourcePrefix]:
    """Read the first `count` rows of each source; raise `PlanError` if that is not possible."""
    if count < 1:
        raise PlanError(f"simulate: rows counts rows of each source and is at least 1, got {count!r}")
    for source in sources:
        if type(source).start is not Source.start:
            raise PlanError(
                f"simulate: source {type(source).__name__} of {flow!r} starts with a run, and a simulation has none. "
                "Test the flow with some of its rows, as flux.sources.Table(rows)"
            )
    prefixes = [_prefix(source, count) for source in sources]
    if not any(len(prefix.rows) for prefix in prefixes):
        fault = "the source gave no rows" if len(prefixes) == 1 else f"none of the sources of {flow!r} gave rows"
        raise PlanError(f"simulate: {fault}; expected some, as from flux.sources.Table([{{...}}, ...])")
    return prefixes


def _prefix(source: Source, count: int) -> SourcePrefix:
    with TemporaryDirectory() as folder:
        directory = Path(folder)
        source.bind(directory)
        try:
            return trio.run(_read, source, count, directory)
        finally:
            source.stop()


async def _read(source: Source, count: int, directory: Path) -> SourcePrefix:
    found: list[pa.RecordBatch] = []
    punctuations: list[tuple[int, str, int | None]] = []
    row_count = 0
    batches = source.batches(SourceContext(directory))
    try:
        while row_count < count:
            with trio.move_on_after(SOURCE_TIMEOUT_S) as waiting:
                batch = await anext(batches, None)
            if waiting.cancelled_caught:
                raise _timeout_error(source, row_count, count)
            if batch is None:
                break
            found.append(batch.rows.slice(0, count - row_count))
            check_given(source, found[-1])
            row_count += len(found[-1])
            punctuations += [(row_count, kind, value) for kind, value in batch.punctuations]
    finally:
        if isinstance(batches, AsyncGenerator):
            await batches.aclose()
    rows = [batch for batch in found if len(batch)]
    nothing = pa.RecordBatch.from_pylist([], normalize_schema(source.schema))
    return SourcePrefix(source, pa.concat_batches(rows) if rows else nothing, tuple(punctuations))


def _timeout_error(source: Source, row_count: int, count: int) -> PlanError:
    return PlanError(
        f"simulate: source {type(source).__name__} gave {row_count} of the {count} requested rows, nothing more for "
        f"{SOURCE_TIMEOUT_S:g} s, and did not end. Request fewer (rows=...), or use a source that ends, such as "
        "flux.sources.Table(rows)"
    )


# --- numbers of rows -----------------------------------------------------------------------------------------


def pulls(prefixes: Sequence[SourcePrefix], rng: random.Random, plan: Plan) -> tuple[PrefixPull, ...]:
    """Return all rows and punctuations of all sources, in one of the orders in which an ingress may number them."""
    marking = _Marking(prefixes, plan)
    waiting = [deque(_pieces(prefix, rng)) for prefix in prefixes]
    numbered: list[PrefixPull] = []
    upto = 0
    while any(waiting):
        number = rng.choice([n for n, pieces in enumerate(waiting) if pieces])
        pull = _pull(number, waiting[number].popleft(), upto, marking)
        if pull.upto > upto:
            numbered.append(pull)
            upto = pull.upto
    return tuple(numbered)


@dataclass(frozen=True)
class _Piece:
    """The next item of a source: rows, or a punctuation, or its end."""

    rows: pa.RecordBatch
    mark: tuple[str, int | None] | None = None
    is_end: bool = False


def _pieces(prefix: SourcePrefix, rng: random.Random) -> Iterator[_Piece]:
    """Yield the rows, cut at random and at the source's punctuations, with these punctuations and the end."""
    rows, punctuations = prefix.rows, prefix.punctuations
    nothing = rows.slice(0, 0)
    some = (rng.randint(0, len(rows)) for _ in range(rng.randint(0, _CUTS_MAX)))
    before = 0
    for place in sorted({0, len(rows), *some, *(place for place, _, _ in punctuations)}):
        if place > before:
            yield _Piece(rows.slice(before, place - before))
        yield from (_Piece(nothing, (kind, value)) for at, kind, value in punctuations if at == place)
        before = place
    yield _Piece(nothing, is_end=True)


class _Marking:
    """The watermarks of a simulated ingress, which runs the steps before the first exchange to find event times."""

    def __init__(self, prefixes: Sequence[SourcePrefix], plan: Plan) -> None:
        times = find_time_places(plan.first, {n: each.source.event_time for n, each in enumerate(prefixes)})
        self.watermarks = Watermarks(times, {})
        self._steps: Steps | None = None
        if any(place > INPUT for time in times.values() for place in time.places):
            self._steps = Steps(plan, 0, (place for time in times.values() for place in time.places))
            self._steps.open([0])

    def advance(self, number: int, rows: pa.RecordBatch, after: int) -> tuple[tuple[int, int], ...]:
        """Return the watermarks among the next rows of a source."""
        numbers = np.arange(after + 1, after + 1 + len(rows), dtype=np.int64)
        batch, place = Batch(rows, numbers, None, np.zeros(len(rows), np.uint16)), INPUT - number
        outputs: StepOutputs = {place: batch} if self._steps is None else self._steps.process(batch, place=place)
        return self.watermarks.advance(number, outputs, after)


def _pull(number: int, piece: _Piece, after: int, marking: _Marking) -> PrefixPull:
    """Number a piece, starting after `after`, as the ingress does."""
    count = len(piece.rows)
    punctuations = marking.advance(number, piece.rows, after) if count else ()
    among = tuple(Punctuation(sn, "watermark", value) for sn, value in punctuations)
    if piece.mark is not None:
        among = (Punctuation(after + 1, *piece.mark),)
    elif piece.is_end and (value := marking.watermarks.end(number)) is not None:
        among = (Punctuation(after + 1, "watermark", value),)
    return PrefixPull(
        number, piece.rows, number_watermarks(after, count, punctuations), among, after + count + len(among)
    )
