"""Offsets of `flux.spark.Stream`: a micro-batch that is not done is staged, and is gone on with behind the offset."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from flux.spark import Stream
from flux.spark.source.batch_times import BatchTimes
from flux.spark.source.spark_stream import BatchPlace


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


def taken(committed: Any, after: Any) -> list[tuple[list[int], Any, bool, Any]]:
    """What is given behind `after`: rows, offset, whether it says that all were received, kinds of marks."""
    batches = stream()._source_batches(committed, BatchPlace.of(after), BatchTimes(None, 0, now_ms=lambda: 7))
    return [
        (
            batch.rows["n"].to_pylist(),
            batch.offset,
            batch.received is not None,
            [kind for kind, _ in batch.punctuations],
        )
        for batch in batches
    ]


def test_rows_have_offsets_and_the_boundary_behind_them_says_that_all_were_received() -> None:
    assert taken(Committed(4), None) == [
        ([40, 41, 42], [4, 3, 0, [None, 0]], False, []),
        ([43, 44, 45], [4, 6, 0, [None, 0]], False, []),
        ([46, 47, 48], [4, 9, 0, [None, 0]], False, []),
        ([], [4, 9, 1, [None, 7]], True, ["clock", "batch"]),
    ]


@pytest.mark.parametrize("done_rows", range(10))
def test_a_micro_batch_is_gone_on_with_behind_any_row(done_rows: int) -> None:
    batches = taken(Committed(4), [4, done_rows, 0, None])
    assert [n for rows, *_ in batches for n in rows] == list(range(40 + done_rows, 49))
    assert [received for _, _, received, _ in batches].count(True) == 1
    assert batches[-1] == ([], [4, 9, 1, [None, 7]], True, ["clock", "batch"])


@pytest.mark.parametrize("after", [[4, 9, 1, None], [4, 9, 3, None], [5, 0, 0, None]])
def test_a_micro_batch_of_which_all_copies_have_the_boundary_is_done_at_once(after: Any) -> None:
    committed = Committed(4)
    assert taken(committed, after) == []
    assert committed.is_done


def test_later_micro_batches_are_not_skipped() -> None:
    assert len(taken(Committed(5), [4, 9, 1, None])) == 4


def test_the_clock_and_the_newest_event_time_go_on_where_they_were() -> None:
    times = BatchTimes("n", 2_000, [5_000_000, 90], now_ms=lambda: 7)
    times.observe(pa.record_batch({"n": [4_000]}))
    assert times.punctuations(3) == (("watermark", 3_000), ("clock", 90), ("batch", 3))
    times.observe(pa.record_batch({"n": [7_000]}))
    assert times.punctuations(4) == (("watermark", 5_000), ("clock", 90), ("batch", 4))
