"""Beginnings: the first rows of each source of a flow, and how a simulated ingress numbers them.

A real ingress numbers the rows of several sources as they come. Here a seed says in what pieces they come, and which
source gives the next one. Watermarks stand where the ingress of a run would set them: they are made by the same code.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import AsyncGenerator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy.typing as npt
import pyarrow as pa
import trio

from ..model.punctuation import Punctuation
from ..site.ingress.watermarks import Watermarks, number_watermarks
from ..sources.source import Source, SourceContext, check_given
from ..types.errors import PlanError
from ..types.normalize import normalize_schema

__all__ = ["PrefixPull", "SourcePrefix", "pulls", "source_prefixes"]

PATIENCE_S = 20.0  # So long a source may take for its next rows.
_CUTS_MAX = 8


@dataclass(frozen=True)
class SourcePrefix:
    """The first rows of a source, and the punctuations that it set among them: behind how many rows, kind, value."""

    source: Source
    rows: pa.RecordBatch
    punctuations: tuple[tuple[int, str, int | None], ...] = ()


@dataclass(frozen=True)
class PrefixPull:
    """What the ingress numbers at once: rows of one source with their numbers, and the marks among or behind them."""

    source: int
    rows: pa.RecordBatch
    sn: npt.NDArray[Any]
    punctuations: tuple[Punctuation, ...]
    upto: int


# --- reading -------------------------------------------------------------------------------------------------


def source_prefixes(sources: Sequence[Source], count: int, flow: str) -> list[SourcePrefix]:
    """The first `count` rows of each source, read here; `PlanError` if they cannot be had."""
    if count < 1:
        raise PlanError(f"simulate: rows counts rows of each source and is at least 1, got {count!r}")
    for source in sources:
        if type(source).start is not Source.start:
            raise PlanError(
                f"simulate: source {type(source).__name__} of {flow!r} begins when a run does, and here is none. Give "
                "a flow for testing some of its rows, as flux.sources.Table(rows)"
            )
    found = [_beginning(source, count) for source in sources]
    if not any(len(beginning.rows) for beginning in found):
        who = "the source gave no rows" if len(found) == 1 else f"none of the sources of {flow!r} gave rows"
        raise PlanError(f"simulate: {who}; give it some, such as flux.sources.Table([{{...}}, ...])")
    return found


def _beginning(source: Source, count: int) -> SourcePrefix:
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
            check_given(source, found[-1])
            came += len(found[-1])
            punctuations += [(came, kind, value) for kind, value in batch.punctuations]
    finally:
        if isinstance(batches, AsyncGenerator):
            await batches.aclose()
    rows = [batch for batch in found if len(batch)]
    nothing = pa.RecordBatch.from_pylist([], normalize_schema(source.schema))
    return SourcePrefix(source, pa.concat_batches(rows) if rows else nothing, tuple(punctuations))


def _is_slow(source: Source, came: int, count: int) -> PlanError:
    return PlanError(
        f"simulate: source {type(source).__name__} gave {came} of the {count} rows that were asked for, nothing more "
        f"for {PATIENCE_S:g} s, and it did not end. Ask for fewer (rows=...), or give the flow a source that ends, "
        "such as flux.sources.Table(rows)"
    )


# --- numbering -----------------------------------------------------------------------------------------------


def pulls(found: Sequence[SourcePrefix], rng: random.Random) -> tuple[PrefixPull, ...]:
    """All rows and marks of all sources, in one of the orders in which an ingress may number them."""
    told = {n: each.source.event_time for n, each in enumerate(found) if each.source.event_time is not None}
    watermarks = Watermarks(told, {})
    waiting = [deque(_pieces(beginning, rng)) for beginning in found]
    numbered_so_far: list[PrefixPull] = []
    upto = 0
    while any(waiting):
        number = rng.choice([n for n, pieces in enumerate(waiting) if pieces])
        pull = _pull(number, waiting[number].popleft(), upto, watermarks)
        if pull.upto > upto:
            numbered_so_far.append(pull)
            upto = pull.upto
    return tuple(numbered_so_far)


@dataclass(frozen=True)
class _Piece:
    """What a source gives next: rows, or a mark, or its end."""

    rows: pa.RecordBatch
    mark: tuple[str, int | None] | None = None
    is_end: bool = False


def _pieces(beginning: SourcePrefix, rng: random.Random) -> Iterator[_Piece]:
    """Rows, cut at random and at the source's own marks, these marks, and the end."""
    rows, punctuations = beginning.rows, beginning.punctuations
    nothing = rows.slice(0, 0)
    some = (rng.randint(0, len(rows)) for _ in range(rng.randint(0, _CUTS_MAX)))
    before = 0
    for place in sorted({0, len(rows), *some, *(place for place, _, _ in punctuations)}):
        if place > before:
            yield _Piece(rows.slice(before, place - before))
        yield from (_Piece(nothing, (kind, value)) for at, kind, value in punctuations if at == place)
        before = place
    yield _Piece(nothing, is_end=True)


def _pull(number: int, piece: _Piece, after: int, watermarks: Watermarks) -> PrefixPull:
    """What a piece is when it is numbered behind `after`: as the ingress does it."""
    count = len(piece.rows)
    punctuations: tuple[tuple[int, int], ...] = watermarks.behind(number, piece.rows, after) if count else ()
    among = tuple(Punctuation(sn, "watermark", value) for sn, value in punctuations)
    if piece.mark is not None:
        among = (Punctuation(after + 1, *piece.mark),)
    elif piece.is_end and (value := watermarks.end(number)) is not None:
        among = (Punctuation(after + 1, "watermark", value),)
    return PrefixPull(
        number, piece.rows, number_watermarks(after, count, punctuations), among, after + count + len(among)
    )
