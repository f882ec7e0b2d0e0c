"""Beginnings: the first rows of each source of a flow, and how a simulated ingress numbers them.

A real ingress numbers the rows of several sources as they come. Here a seed says in what pieces they come, and which
source gives the next one. Watermarks stand where the ingress of a run would set them: they are made by the same code.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import AsyncGenerator, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy.typing as npt
import pyarrow as pa
import trio

from ..errors import PlanError
from ..plain import plain_schema
from ..punctuation import Punctuation
from ..site.watermarks import Watermarks, numbered
from ..sources.source import Source, SourceContext

__all__ = ["Beginning", "Pull", "beginnings", "pulls"]

PATIENCE_S = 20.0  # So long a source may take for its next rows.
_CUTS_MAX = 8


@dataclass(frozen=True)
class Beginning:
    """The first rows of a source, and the punctuations that it set among them: behind how many rows, kind, value."""

    source: Source
    rows: pa.RecordBatch
    marks: tuple[tuple[int, str, int | None], ...] = ()


@dataclass(frozen=True)
class Pull:
    """What the ingress numbers at once: rows of one source with their numbers, and the marks among or behind them."""

    source: int
    rows: pa.RecordBatch
    sn: npt.NDArray[Any]
    marks: tuple[Punctuation, ...]
    upto: int


# --- reading -------------------------------------------------------------------------------------------------


def beginnings(sources: Sequence[Source], count: int, flow: str) -> list[Beginning]:
    """The first `count` rows of each source, read here; `PlanError` if they cannot be had."""
    if count < 1:
        raise PlanError(f"simulate: rows counts rows of each source and is at least 1, got {count!r}")
    for source in sources:
        if type(source).start is not Source.start:
            raise PlanError(
                f"simulate: source {type(source).__name__} of {flow!r} begins when a run does, and a simulated world is "
                "none. Give a flow for testing some of its rows, as flux.sources.Table(rows)"
            )
    found = [_beginning(source, count) for source in sources]
    if not any(len(beginning.rows) for beginning in found):
        who = "the source gave no rows" if len(found) == 1 else f"none of the sources of {flow!r} gave rows"
        raise PlanError(f"simulate: {who}; give it some, such as flux.sources.Table([{{...}}, ...])")
    return found


def _beginning(source: Source, count: int) -> Beginning:
    with TemporaryDirectory() as folder:
        directory = Path(folder)
        source.bind(directory)
        try:
            return trio.run(_read, source, count, directory)
        finally:
            source.stop()


async def _read(source: Source, count: int, directory: Path) -> Beginning:
    found: list[pa.RecordBatch] = []
    marks: list[tuple[int, str, int | None]] = []
    came = 0
    batches = source.batches(SourceContext(directory))
    try:
        while came < count:
            with trio.move_on_after(PATIENCE_S) as waiting:
                batch = await anext(batches, None)
            if waiting.cancelled_caught:
                raise _is_slow(source, came, count)
            if batch is None:
                break
            found.append(batch.rows.slice(0, count - came))
            came += len(found[-1])
            marks += [(came, kind, value) for kind, value in batch.marks]
    finally:
        if isinstance(batches, AsyncGenerator):
            await batches.aclose()
    rows = [batch for batch in found if len(batch)]
    nothing = pa.RecordBatch.from_pylist([], plain_schema(source.schema))
    return Beginning(source, pa.concat_batches(rows) if rows else nothing, tuple(marks))


def _is_slow(source: Source, came: int, count: int) -> PlanError:
    return PlanError(
        f"simulate: source {type(source).__name__} gave {came} of the {count} rows that were asked for, then nothing for "
        f"{PATIENCE_S:g} s, and it did not end. Ask for fewer (rows=...), or give the flow a source that ends, such as "
        "flux.sources.Table(rows)"
    )


# --- numbering -----------------------------------------------------------------------------------------------


def pulls(found: Sequence[Beginning], rng: random.Random) -> tuple[Pull, ...]:
    """All rows and marks of all sources, in one of the orders in which an ingress may number them."""
    told = {n: each.source.event_time for n, each in enumerate(found) if each.source.event_time is not None}
    watermarks = Watermarks(told, {})
    waiting = [deque([*_pieces(beginning, rng), None]) for beginning in found]  # None: the source has ended.
    numbered_so_far: list[Pull] = []
    upto = 0
    while any(waiting):
        number = rng.choice([n for n, pieces in enumerate(waiting) if pieces])
        pull = _pull(number, waiting[number].popleft(), upto, watermarks, found[number].rows.slice(0, 0))
        if pull is not None:
            numbered_so_far.append(pull)
            upto = pull.upto
    return tuple(numbered_so_far)


Piece = pa.RecordBatch | tuple[str, int | None] | None


def _pieces(beginning: Beginning, rng: random.Random) -> Iterator[Piece]:
    """Rows, cut at random and at the source's own marks, and these marks."""
    rows, marks = beginning.rows, beginning.marks
    some = [rng.randint(0, len(rows)) for _ in range(rng.randint(0, _CUTS_MAX))]
    for start, end in pairwise(sorted({0, len(rows), *some, *(place for place, _, _ in marks)}, key=int)):
        yield from ((kind, value) for place, kind, value in marks if place == start == 0)
        yield rows.slice(start, end - start)
        yield from ((kind, value) for place, kind, value in marks if place == end)
    if not len(rows):
        yield from ((kind, value) for _, kind, value in marks)


def _pull(number: int, piece: Piece, after: int, watermarks: Watermarks, nothing: pa.RecordBatch) -> Pull | None:
    if isinstance(piece, pa.RecordBatch):
        marks = watermarks.behind(number, piece, after)
        upto = after + len(piece) + len(marks)
        among = tuple(Punctuation(sn, "watermark", value) for sn, value in marks)
        return Pull(number, piece, numbered(after, len(piece), marks), among, upto)
    kind, value = ("watermark", watermarks.end(number)) if piece is None else piece
    if piece is None and value is None:
        return None
    return Pull(number, nothing, numbered(after, 0, ()), (Punctuation(after + 1, kind, value),), after + 1)
