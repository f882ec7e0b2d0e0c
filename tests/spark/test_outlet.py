"""The outlet on disk, without Spark: each row once, in order, until it is committed."""

from __future__ import annotations

import os
import pickle
import threading
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows
from pyspark.sql.types import LongType, StructField, StructType
from spark_ingress import DEADLINE_S

import flux
from flux.spark import Outlet
from flux.spark.sink import outlet_store
from flux.spark.sink.reader import OutletReader
from flux.types.errors import FluxError, PlanError

SCHEMA = pa.schema({"n": pa.int64()})
FOR_SPARK = StructType([StructField("n", LongType())])


def rows(first: int, count: int) -> pa.RecordBatch:
    return pa.record_batch({"n": pa.array(range(first, first + count), pa.int64())})


def outlet(directory: Path, run: str = "run", **options: Any) -> tuple[Outlet, int | None]:
    """An outlet as an egress of the run `run` opens it, and how far that finds it."""
    made = Outlet(directory / "out", **options)
    made.expect(SCHEMA)
    (directory / run).mkdir(exist_ok=True)
    return made, made.open(directory / run)


def die(written: Outlet) -> None:
    """Leave an outlet as a killed egress does: without its lock."""
    os.close(written._lock)


def reader(directory: Path, **options: str) -> OutletReader:
    return OutletReader({"path": str(directory / "out"), **options}, FOR_SPARK)


def stop(reading: OutletReader) -> None:
    """Release the outlet, as the end of the query's process does."""
    assert reading.unlock is not None
    reading.unlock()


def values(reading: OutletReader, start: Any, end: Any) -> list[int]:
    batches = [batch for piece in reading.partitions(start, end) for batch in reading.read(piece)]
    return [n for batch in batches for n in batch.column("n").to_pylist()]


def all_values(directory: Path) -> list[int]:
    reading = reader(directory)
    start = reading.initialOffset()
    return values(reading, start, reading.latestOffset(start, ReadAllAvailable()))


def test_offsets_are_rows_and_the_sequence_number_up_to_which_they_are_complete(tmp_path: Path) -> None:
    written, _ = outlet(tmp_path)
    written.write(rows(0, 10), 0, 7)
    written.write(rows(10, 10), 7, 20)
    reading = reader(tmp_path)
    start = reading.initialOffset()
    assert (start["rows"], start["sn"]) == (0, 0)
    ends = [reading.latestOffset(start, ReadMaxRows(limit)) for limit in (4, 10, 15, 100)]
    assert [(end["rows"], end["sn"]) for end in ends] == [(4, 0), (10, 7), (15, 7), (20, 20)]
    assert values(reading, ends[0], ends[2]) == list(range(4, 15))


def test_without_new_rows_the_offset_stays(tmp_path: Path) -> None:
    written, _ = outlet(tmp_path)
    reading = reader(tmp_path)
    start = reading.initialOffset()
    assert reading.latestOffset(start, ReadAllAvailable()) is start
    written.write(rows(0, 1), 0, 1)
    assert reading.latestOffset(start, ReadAllAvailable())["rows"] == 1


@settings(deadline=None, max_examples=25)
@given(
    writes=st.lists(st.integers(1, 50), min_size=1, max_size=20),
    cut=st.integers(0, 1_000),
    limit=st.integers(1, 60),
    segment_bytes=st.sampled_from([1, 500, 2_000, 10**9]),
)
def test_micro_batches_of_any_size_hold_each_row_once(
    writes: list[int], cut: int, limit: int, segment_bytes: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    directory = tmp_path_factory.mktemp("outlet")
    written, _ = outlet(directory, segment_bytes=segment_bytes)
    total = 0
    for count in writes:
        written.write(rows(total, count), total, total + count)
        total += count
    reading, found = reader(directory, partitions="3"), []
    start = reading.initialOffset()
    while (end := reading.latestOffset(start, ReadMaxRows(limit))) != start:
        assert end["rows"] - start["rows"] <= limit
        again = values(reading, start, end)
        stop(reading)
        reading = reader(directory, partitions="2")  # A restarted query reads the micro-batch again, cut otherwise.
        assert values(reading, start, end) == again
        found += again
        reading.commit(end)
        if len(found) > cut:
            # The query was restarted: a new reader, from the offsets that Spark has noted.
            stop(reading)
            reading, cut = reader(directory, partitions="3"), 10**9
        start = end
    assert found == list(range(total))


def test_an_egress_that_is_started_again_goes_on_behind_what_counts(tmp_path: Path) -> None:
    first, upto = outlet(tmp_path, segment_bytes=100)
    assert upto == 0
    first.write(rows(0, 10), 0, 10)
    first.write(rows(10, 10), 10, 25)
    die(first)
    # It died while it wrote a third time.
    segment = max((tmp_path / "out").glob("*.rows"))
    segment.write_bytes(segment.read_bytes() + b"half a batch")
    index = segment.with_suffix(".index")
    index.write_bytes(index.read_bytes() + b"half an entry")
    second, upto = outlet(tmp_path, segment_bytes=100)
    assert upto == 25
    second.write(rows(20, 5), 25, 30)
    assert all_values(tmp_path) == list(range(25))


def test_an_egress_that_died_between_two_segments_knows_how_far_it_was(tmp_path: Path) -> None:
    first, _ = outlet(tmp_path, segment_bytes=1)
    first.write(rows(0, 3), 0, 9)
    first._open_segment(3)
    die(first)
    reading = reader(tmp_path)
    reading.commit(reading.latestOffset(reading.initialOffset(), ReadAllAvailable()))
    stop(reading)
    second, upto = outlet(tmp_path, segment_bytes=1)
    assert upto == 9
    second.write(rows(3, 3), 9, 12)
    assert all_values(tmp_path) == [3, 4, 5]


def test_what_is_committed_is_deleted_segment_by_segment(tmp_path: Path) -> None:
    written, _ = outlet(tmp_path, segment_bytes=1)
    for n in range(5):
        written.write(rows(n, 1), n, n + 1)
    reading = reader(tmp_path)
    reading.commit(reading.latestOffset(reading.initialOffset(), ReadMaxRows(3)))
    assert outlet_store.segments(str(tmp_path / "out")) == [3, 4]
    stop(reading)
    assert all_values(tmp_path) == [3, 4]


def test_rows_that_were_deleted_are_not_given_again(tmp_path: Path) -> None:
    written, _ = outlet(tmp_path, segment_bytes=1)
    for n in range(3):
        written.write(rows(n, 1), n, n + 1)
    reading = reader(tmp_path)
    start = reading.initialOffset()
    end = reading.latestOffset(start, ReadMaxRows(2))
    reading.commit(end)
    with pytest.raises(ValueError, match=r"asks for the rows 0 to 1 .* keeps 2 to 2: .* new checkpointLocation"):
        reading.partitions(start, end)


def test_output_waits_while_spark_does_not_commit(tmp_path: Path) -> None:
    written, _ = outlet(tmp_path, max_rows=10)
    written.write(rows(0, 10), 0, 10)
    second = threading.Thread(target=written.write, args=(rows(10, 10), 10, 20))
    second.start()
    reading = reader(tmp_path)
    start = reading.initialOffset()
    end = reading.latestOffset(start, ReadAllAvailable())
    assert end["rows"] == 10 and second.is_alive()
    reading.commit(end)
    second.join(DEADLINE_S)
    assert not second.is_alive()
    assert reading.latestOffset(end, ReadAllAvailable())["rows"] == 20


def test_a_run_that_stops_does_not_wait_for_spark(tmp_path: Path) -> None:
    written, _ = outlet(tmp_path, max_rows=1)
    written.write(rows(0, 1), 0, 1)
    written.interrupt()
    with pytest.raises(FluxError, match="stopped while the output waited for Spark"):
        written.write(rows(1, 1), 1, 2)


def test_a_run_whose_output_waits_for_spark_ends_by_itself(tmp_path: Path) -> None:
    class Same(flux.KeyedOperator):
        output = {"n": "int64"}  # noqa: RUF012

        def on_tuple(self, key: Any, row: Any, state: Any) -> Any:
            return None, [{"n": row.n}]

    flow = flux.Dataflow("waits")
    numbers = flow.source(flux.sources.Table([{"n": n} for n in range(100)], batch_rows=10))
    numbers.exchange("n", partitions=2).apply(Same).sink(Outlet(tmp_path / "out", max_rows=1))
    with flow.start(sites=2) as run:
        run.wait_for_output(1)
    assert run._driver is not None
    assert [process.exited for process in run._driver.processes if process.name == "egress"] == [0]


def test_until_end_a_reader_waits_for_rows_and_returns_at_the_end(tmp_path: Path) -> None:
    written, _ = outlet(tmp_path)
    reading = reader(tmp_path, until="end")
    reading.prepareForTriggerAvailableNow()
    start = reading.initialOffset()
    found: list[Any] = []
    waiting = threading.Thread(target=lambda: found.append(reading.latestOffset(start, ReadAllAvailable())))
    waiting.start()
    written.write(rows(0, 5), 0, 5)
    waiting.join(DEADLINE_S)
    assert found[0]["rows"] == 5
    written.close()
    assert reading.latestOffset(found[0], ReadAllAvailable()) == found[0]


def test_until_end_an_abandoned_stream_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flux.spark.sink.reader.ABANDONED_TIMEOUT_S", 0.05)
    written, _ = outlet(tmp_path)
    written.write(rows(0, 5), 0, 5)
    die(written)  # And its run with it.
    reading = reader(tmp_path, until="end")
    reading.prepareForTriggerAvailableNow()
    end = reading.latestOffset(reading.initialOffset(), ReadAllAvailable())
    with pytest.raises(ValueError, match=r"has not ended, and no run of Flux writes there any more.* 5 rows, was read"):
        reading.latestOffset(end, ReadAllAvailable())


def test_until_now_is_what_was_there_when_the_query_began(tmp_path: Path) -> None:
    written, _ = outlet(tmp_path)
    written.write(rows(0, 5), 0, 5)
    reading = reader(tmp_path)
    reading.prepareForTriggerAvailableNow()
    written.write(rows(5, 5), 5, 10)
    start = reading.initialOffset()
    assert reading.latestOffset(start, ReadAllAvailable())["rows"] == 5


def test_tasks_are_sent_their_rows_where_they_cannot_read_them(tmp_path: Path) -> None:
    written, _ = outlet(tmp_path)
    written.write(rows(0, 5), 0, 5)
    reading = reader(tmp_path, deliver="task")
    start = reading.initialOffset()
    pieces = reading.partitions(start, reading.latestOffset(start, ReadAllAvailable()))
    for path in (tmp_path / "out").glob("*.rows"):
        path.unlink()
    assert [n for batch in reading.read(pieces[0]) for n in batch.column("n").to_pylist()] == list(range(5))
    stop(reading)
    reading = reader(tmp_path)
    blind = reading.partitions(start, reading.latestOffset(start, ReadAllAvailable()))
    with pytest.raises(FileNotFoundError, match=r'does not exist on this executor.s host.*option\("deliver", "task"\)'):
        list(reading.read(blind[0]))


def test_another_runs_output_is_not_touched(tmp_path: Path) -> None:
    first, _ = outlet(tmp_path)
    first.write(rows(0, 5), 0, 5)
    die(first)
    with pytest.raises(PlanError, match="this run would mix its output with it"):
        outlet(tmp_path, run="another")
    old = reader(tmp_path)
    checkpoint = old.initialOffset()
    _, upto = outlet(tmp_path, run="another", overwrite=True)
    assert upto == 0 and all_values(tmp_path) == []
    with pytest.raises(ValueError, match="output of another run of Flux than the one in this query's checkpoint"):
        reader(tmp_path).latestOffset(checkpoint, ReadAllAvailable())


def test_only_what_flux_wrote_is_overwritten(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.txt").write_text("years of work")
    with pytest.raises(PlanError, match=r"holds 'thesis\.txt', which no run of Flux wrote"):
        outlet(tmp_path, overwrite=True)


def test_damage_is_noticed(tmp_path: Path) -> None:
    written, _ = outlet(tmp_path)
    written.write(rows(0, 5), 0, 5)
    [path] = (tmp_path / "out").glob("*.rows")
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(OSError, match=r"is damaged: the 5 rows at 0 do not match their checksum"):
        all_values(tmp_path)


def test_a_sink_for_spark_needs_declared_columns() -> None:
    class Undeclared(flux.KeyedOperator):
        def on_tuple(self, key: Any, row: Any, state: Any) -> Any:
            return None, []

    flow = flux.Dataflow("undeclared")
    stream = flow.source(flux.sources.Table([{"n": 1}])).exchange("n", partitions=2).apply(Undeclared)
    with pytest.raises(PlanError, match=r"flux\.spark\.Outlet: Spark must know the columns .*declare `output`"):
        stream.sink(Outlet("anywhere"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"path": ""}, r"give \.option\(.path., directory of a flux\.spark\.Outlet\)"),
        ({"path": "x", "maxRowsPerTrigger": "0"}, "option maxrowspertrigger is a whole number above 0, got '0'"),
        ({"path": "x", "until": "never"}, "option until is now or end, got 'never'"),
        ({"path": "x", "deliver": "mail"}, "option deliver is file or task, got 'mail'"),
    ],
)
def test_wrong_options_are_named(options: dict[str, str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        OutletReader(options, FOR_SPARK)


@pytest.mark.parametrize("wrong", [{"max_rows": 0}, {"segment_bytes": 0}, {"max_rows": True}])
def test_wrong_settings_are_named(wrong: dict[str, Any]) -> None:
    with pytest.raises(PlanError, match="must be a whole number above 0"):
        Outlet("anywhere", **wrong)


def test_a_second_reader_is_refused_and_the_first_misses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flux.spark.sink.reader.OTHER_READER_TIMEOUT_S", 0.0)
    written, _ = outlet(tmp_path)
    written.write(rows(0, 300), 0, 300)
    first = reader(tmp_path)
    start = first.initialOffset()
    middle = first.latestOffset(start, ReadAllAvailable())
    assert values(first, start, middle) == list(range(300))
    first.commit(middle)
    written.write(rows(300, 10), 300, 310)
    second = reader(tmp_path)
    for asked in (
        second.initialOffset,  # A new query would begin at row 300, and one from a checkpoint
        lambda: second.latestOffset(start, ReadAllAvailable()),
        lambda: second.partitions(start, middle),
        lambda: second.commit(middle),  # would delete what the first has not read.
    ):
        with pytest.raises(ValueError, match=r"another query reads .*out\. An outlet .* serves one: .*foreachBatch"):
            asked()
    assert values(first, middle, first.latestOffset(middle, ReadAllAvailable())) == list(range(300, 310))
    copy = pickle.loads(pickle.dumps(first))  # As Spark sends it to tasks.
    del first
    assert second.initialOffset() == middle
    assert copy.unlock is None


def test_a_second_reader_waits_for_one_that_is_ending(tmp_path: Path) -> None:
    written, _ = outlet(tmp_path)
    written.write(rows(0, 3), 0, 3)
    first, second = reader(tmp_path), reader(tmp_path)
    first.initialOffset()
    assert first.unlock is not None
    ending = threading.Timer(0.2, first.unlock)
    ending.start()
    assert second.initialOffset()["rows"] == 0
    ending.join()
