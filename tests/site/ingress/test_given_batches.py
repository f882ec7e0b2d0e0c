"""What a source of the user's own yields: batches with the columns of its schema, or an error that says what came."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import trio

from flux.site.ingress.admission import Admission
from flux.site.ingress.batch_coalescer import BatchCoalescer
from flux.site.ingress.batch_slicer import BatchSlicer
from flux.site.ingress.source_input import SourceInput
from flux.sources import Source, SourceBatch, SourceContext
from flux.types.errors import SourceError


class Given(Source):
    """Yields what it is given."""

    schema = pa.schema({"id": pa.int64(), "name": pa.dictionary(pa.int8(), pa.string())})
    replays = False

    def __init__(self, *batches: Any) -> None:
        self._batches = batches

    async def batches(self, context: SourceContext, after: Any = None) -> AsyncIterator[SourceBatch]:
        for batch in self._batches:
            yield batch


def read(source: Source, tmp_path: Path) -> list[dict[str, Any]]:
    """The rows that an ingress takes from the source."""
    rows: list[dict[str, Any]] = []

    async def main() -> None:
        source_input = SourceInput(0, source, tmp_path, is_again=False)
        async with trio.open_nursery():
            source_input.take_from(source_input.batches())
            while (batch := await source_input.next(None)) is not None:
                rows.extend(batch.rows.to_pylist())

    trio.run(main)
    return rows


def batch(**columns: Any) -> SourceBatch:
    return SourceBatch(pa.record_batch(columns))


def test_rows_after_a_yielded_none_are_not_lost_in_silence(tmp_path: Path) -> None:
    source = Given(batch(id=[1], name=["a"]), None, batch(id=[2], name=["b"]))
    with pytest.raises(BaseExceptionGroup) as raised:
        read(source, tmp_path)
    assert raised.group_contains(TypeError, match=r"`batches` yielded None; expected a SourceBatch, such as")


@pytest.mark.parametrize("yielded", [None, pa.record_batch({"id": [1]}), {"id": 1}])
def test_what_is_no_batch_is_refused_where_batches_are_coalesced_too(yielded: Any) -> None:
    async def main() -> None:
        async with trio.open_nursery() as nursery:
            batches = Given(yielded).batches(SourceContext(Path()))
            coalescer = BatchCoalescer(batches, Admission(limit_s=1.0, rows_max=100))
            nursery.start_soon(coalescer.read)
            with pytest.raises(TypeError, match="expected a SourceBatch"):
                await BatchSlicer(coalescer).next()
            await coalescer.aclose()

    trio.run(main)


def test_the_rows_of_a_batch_are_a_record_batch() -> None:
    for rows in (pa.table({"id": [1]}), [{"id": 1}], None):
        with pytest.raises(TypeError, match=r"the rows of a SourceBatch are a pyarrow\.RecordBatch, got"):
            SourceBatch(rows)


@pytest.mark.parametrize(
    "columns",
    [
        {"id": ["1"], "name": ["a"]},
        {"id": pa.array([1], pa.int32()), "name": ["a"]},
        {"id": [1]},
        {"id": [1], "name": ["a"], "more": [1]},
        {"name": ["a"], "id": [1]},
    ],
)
def test_columns_that_are_not_those_of_the_schema_are_refused(tmp_path: Path, columns: dict[str, Any]) -> None:
    with pytest.raises(BaseExceptionGroup) as raised:
        read(Given(batch(id=[1], name=["a"]), batch(**columns)), tmp_path)
    said = r"source Given gave rows with the columns .*and its schema has id int64, name string\. Give all columns in"
    assert raised.group_contains(SourceError, match=said)


def test_columns_may_be_stored_as_the_schema_says_or_plainly(tmp_path: Path) -> None:
    stored = pa.array(["a"]).dictionary_encode()
    rows = read(Given(batch(id=[1], name=["a"]), batch(id=[1], name=stored)), tmp_path)
    assert rows == [{"id": 1, "name": "a"}] * 2
