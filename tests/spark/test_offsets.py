"""Offsets of `flux.spark.Stream`: a micro-batch that is not done is staged, and is gone on with behind the offset."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from flux.spark import Stream


class Committed:
    """A micro-batch of three record batches, as the staging hands it out."""

    def __init__(self, batch_id: int) -> None:
        self.batch_id = batch_id
        self.rows = 9
        self.is_done = False

    def batches(self) -> list[pa.RecordBatch]:
        first = 10 * self.batch_id
        return [pa.record_batch({"n": range(first + start, first + start + 3)}) for start in (0, 3, 6)]

    def done(self) -> None:
        self.is_done = True


def stream() -> Stream:
    """A stream in the ingress process, where nothing of Spark is touched."""
    made = object.__new__(Stream)
    made.schema = pa.schema({"n": pa.int64()})
    return made


def taken(committed: Any, after: Any) -> list[tuple[list[int], Any, bool]]:
    batches = stream()._source_batches(committed, after)
    return [(batch.rows["n"].to_pylist(), batch.offset, batch.received is not None) for batch in batches]


def test_batches_have_offsets_and_the_last_one_says_that_all_were_received() -> None:
    assert taken(Committed(4), None) == [
        ([40, 41, 42], [4, 3], False),
        ([43, 44, 45], [4, 6], False),
        ([46, 47, 48], [4, 9], True),
    ]


@pytest.mark.parametrize("done_rows", range(9))
def test_a_micro_batch_is_gone_on_with_behind_any_row(done_rows: int) -> None:
    batches = taken(Committed(4), [4, done_rows])
    assert [n for rows, _, _ in batches for n in rows] == list(range(40 + done_rows, 49))
    assert [received for *_, received in batches].count(True) == 1
    assert batches[-1][1:] == ([4, 9], True)


@pytest.mark.parametrize("after", [[4, 9], [5, 0]])
def test_a_micro_batch_that_all_copies_have_is_done_at_once(after: Any) -> None:
    committed = Committed(4)
    assert taken(committed, after) == []
    assert committed.is_done


def test_later_micro_batches_are_not_skipped() -> None:
    assert len(taken(Committed(5), [4, 9])) == 3
