"""`flux.spark.MicroBatches`: where they end does not depend on the source's batches, nor on an ingress that dies."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

import flux
from flux.sources import Source, SourceContext
from flux.spark import MicroBatches

ROWS = 11


def cut(sizes: list[int], rows: int, **settings: Any) -> MicroBatches:
    """Rows 0 to 10, from a source that gives batches of these sizes, in micro-batches of so many rows."""
    batches, first = [], 0
    for size in [*sizes, ROWS]:
        stop = min(ROWS, first + size)
        if stop > first:
            batches.append(pa.record_batch({"n": pa.array(range(first, stop), pa.int64())}))
        first = stop
    return MicroBatches(Pieces(batches), rows=rows, **settings)


class Pieces(Source):
    """Gives record batches as they are; the offset is the number of rows."""

    replays = True
    schema = pa.schema({"n": pa.int64()})

    def __init__(self, batches: list[pa.RecordBatch]) -> None:
        self._batches = batches

    async def batches(self, context: SourceContext, after: Any = None) -> Any:
        position = 0
        for batch in self._batches:
            position += batch.num_rows
            if position > (after or 0):
                yield flux.sources.SourceBatch(batch, offset=position)


def steps(source: MicroBatches, after: Any = None) -> list[tuple[Any, Any]]:
    """What comes behind an offset: single rows, and boundaries with their watermark; each with the offset behind it."""

    async def all_of_it() -> list[tuple[Any, Any]]:
        found: list[tuple[Any, Any]] = []
        async for batch in source.batches(SourceContext(Path()), after):
            found += [(n, batch.offset) for n in batch.rows["n"].to_pylist()]
            punctuations = dict(batch.punctuations)
            if punctuations:
                assert next(reversed(punctuations)) == "batch"
                found.append(
                    (f"batch {punctuations['batch']}, watermark {punctuations.get('watermark')}", batch.offset)
                )
        return found

    return trio.run(all_of_it)


def test_a_boundary_comes_behind_every_n_rows_and_at_the_end() -> None:
    found = [what for what, _ in steps(cut([3, 4], 4, event_time="n", delay=0.002))]
    boundaries = ["batch 0, watermark 1", "batch 1, watermark 5", "batch 2, watermark 8"]
    assert found == [0, 1, 2, 3, boundaries[0], 4, 5, 6, 7, boundaries[1], 8, 9, 10, boundaries[2]]


@settings(deadline=None, max_examples=30)
@given(st.lists(st.integers(1, 5), max_size=6), st.integers(1, 12))
def test_it_goes_on_behind_any_offset_as_if_nothing_had_been(sizes: list[int], rows: int) -> None:
    source = cut(sizes, rows, event_time="n")
    whole = steps(source)
    assert [what for what, _ in whole] == [what for what, _ in steps(cut([], rows, event_time="n"))]
    for place, (_, offset) in enumerate(whole):
        if place + 1 < len(whole) and whole[place + 1][1] != offset:
            assert [what for what, _ in steps(source, offset)] == [what for what, _ in whole[place + 1 :]]


def test_offsets_differ_so_that_what_was_given_is_known() -> None:
    offsets = [offset for what, offset in steps(cut([2, 2, 2], 3)) if isinstance(what, str) or what % 2 == 1]
    assert all(one != other for one, other in itertools.pairwise(offsets))


@pytest.mark.parametrize("kinds", [("site-1",), ("ingress",)])
def test_micro_batches_are_the_same_when_something_is_killed(kinds: tuple[str, ...]) -> None:
    """Each micro-batch emits how many rows it had: a boundary that is lost, repeated or moved would be seen."""
    flow = flux.Dataflow("cut")
    source = MicroBatches(flux.sources.Table(pa.table({"n": range(2_000)}), rate=4_000, batch_rows=30), rows=100)
    flow.source(source).exchange("n", partitions=8).apply(Sizes).sink(flux.sinks.Collect())
    with flow.start(sites=2, standby=1) as run:
        run.wait_for_output(40)
        for kind in kinds:
            run.kill(kind)
        table = run.wait().table
    sizes: dict[int, int] = {}
    for row in table.to_pylist():
        sizes[row["batch"]] = sizes.get(row["batch"], 0) + row["rows"]
    assert sizes == dict.fromkeys(range(20), 100)


class Sizes(flux.Operator):
    """At each boundary: which it is, and how many rows of the partition came before it since the last."""

    output: ClassVar[Any] = {"batch": "int64", "rows": "int64"}

    def open(self, context: flux.Context) -> None:
        self.rows = 0

    def process(self, batch: flux.Batch) -> None:
        self.rows += len(batch)

    def on_punctuation(self, p: flux.Punctuation) -> Any:
        if p.kind != "batch":
            return None
        rows, self.rows = self.rows, 0
        return {"batch": [p.value], "rows": [rows]}

    def get_state(self) -> Any:
        return self.rows

    def install_state(self, state: Any) -> None:
        self.rows = state
