"""Whose outlet it is: one run's at a time, as that run left it; and what is damaged is an error, never fewer rows."""

from __future__ import annotations

import json
import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable
from test_outlet import all_values, die, outlet, reader, rows, values

import flux
from flux.spark import Outlet
from flux.spark.sink import outlet_store
from flux.types.errors import PlanError, SinkError


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flux.spark.sink.outlet._LOCK_TIMEOUT_S", 0.0)


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("overwrite", [False, True])
def test_a_run_is_refused_an_outlet_that_another_one_writes(overwrite: bool, tmp_path: Path) -> None:
    first, _ = outlet(tmp_path, "first", overwrite=True)
    first.write(rows(0, 3), 0, 3)
    with pytest.raises(PlanError, match=rf"another run .*process {os.getpid()}\) writes to .*out now"):
        outlet(tmp_path, "second", overwrite=overwrite)
    first.write(rows(3, 3), 3, 6)
    first.close()
    assert all_values(tmp_path) == [*range(6)]


@pytest.mark.parametrize("at_the_end", [False, True])
def test_where_machines_share_no_locks_the_run_that_came_first_is_refused_and_does_not_end_the_others_output(
    at_the_end: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fcntl.flock", lambda fd, operation: None)
    first, _ = outlet(tmp_path, "first", overwrite=True, segment_bytes=1)
    first.write(rows(0, 3), 0, 3)
    second, _ = outlet(tmp_path, "second", overwrite=True, segment_bytes=1)
    second.write(rows(100, 3), 0, 3)
    with pytest.raises(SinkError, match=r"another run.* has taken .*out over"):
        first.close() if at_the_end else first.write(rows(3, 3), 3, 6)
    die(first)
    with pytest.raises(SinkError, match=r"another run.* has taken .*out over"):
        outlet(tmp_path, "first", overwrite=True)
    assert outlet_store.read_json(str(tmp_path / "out"), outlet_store.ENDED) is None
    second.write(rows(103, 3), 3, 6)
    second.close()
    assert all_values(tmp_path) == [*range(100, 106)]


def test_an_outlet_that_was_ended_is_not_touched_by_a_further_egress_of_its_run(tmp_path: Path) -> None:
    first, _ = outlet(tmp_path, "first")
    first.write(rows(0, 3), 0, 3)
    first.close()
    second, _ = outlet(tmp_path, "second", overwrite=True)
    second.write(rows(7, 1), 0, 1)
    again, upto = outlet(tmp_path, "first")
    assert upto == 3, "the egress died before it noted the end"
    again.close()
    assert outlet_store.read_json(str(tmp_path / "out"), outlet_store.ENDED) is None
    assert all_values(tmp_path) == [7]


def remove(path: Path) -> None:
    shutil.rmtree(path)


def rename(path: Path) -> None:
    path.rename(path.with_name("out.1"))


def rename_and_create(path: Path) -> None:
    rename(path)
    path.mkdir()


def copy(path: Path) -> None:
    """As a backup that is put back, which is a directory of the same files under other inodes."""
    rename(path)
    shutil.copytree(path.with_name("out.1"), path)


def remove_the_open_segment(path: Path) -> None:
    max(path.glob("*.rows")).unlink()


def remove_the_claim(path: Path) -> None:
    (path / outlet_store.CLAIM).unlink()


CHANGES = [remove, rename, rename_and_create, copy, remove_the_open_segment, remove_the_claim]


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("at_the_end", [False, True])
def test_an_outlet_that_is_changed_in_flight_is_a_sink_error(
    change: Callable[[Path], None], at_the_end: bool, tmp_path: Path
) -> None:
    written, _ = outlet(tmp_path)
    written.write(rows(0, 3), 0, 3)
    change(tmp_path / "out")
    with pytest.raises(SinkError, match=r"out.* during the run, so output that was written is not there"):
        written.close() if at_the_end else written.write(rows(3, 3), 3, 6)


def test_an_outlet_that_is_removed_between_two_egresses_is_a_sink_error(tmp_path: Path) -> None:
    first, _ = outlet(tmp_path)
    first.write(rows(0, 3), 0, 3)
    die(first)
    remove(tmp_path / "out")
    with pytest.raises(SinkError, match=r"was removed, or its outlet\.json was, during the run"):
        outlet(tmp_path)


# Damage.


def flip_a_bit(path: Path, position: int) -> None:
    content = bytearray(path.read_bytes())
    content[position] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("position", [0, 9, 55])
def test_a_flipped_bit_in_an_index_is_an_error_and_no_end_of_the_rows(position: int, tmp_path: Path) -> None:
    written, _ = outlet(tmp_path)
    for n in range(3):
        written.write(rows(n, 1), n, n + 1)
    [index] = (tmp_path / "out").glob("*.index")
    flip_a_bit(index, outlet_store.ENTRY.size + position)
    with pytest.raises(OSError, match=r"\.index is damaged: an entry before its last does not fit its checksum"):
        all_values(tmp_path)
    die(written)
    with pytest.raises(SinkError, match=r"Outlet: .*\.index is damaged: an entry before its last"):
        outlet(tmp_path)
    assert index.stat().st_size == 3 * outlet_store.ENTRY.size, "it is left as it is"


@pytest.mark.parametrize("harm", ["a flipped bit", "a removed index", "a cut index"])
def test_rows_between_two_segments_are_missed(harm: str, tmp_path: Path) -> None:
    written, _ = outlet(tmp_path, segment_bytes=1)
    for n in range(3):
        written.write(rows(n, 1), n, n + 1)
    index = sorted((tmp_path / "out").glob("*.index"))[1]
    if harm == "a flipped bit":
        flip_a_bit(index, 0)
    elif harm == "a removed index":
        index.unlink()
    else:
        os.truncate(index, 5)
    with pytest.raises(OSError, match=r"out is damaged: of the rows 1 to 1 there is no entry in an index"):
        all_values(tmp_path)


def test_rows_that_the_end_of_the_stream_counts_are_missed(tmp_path: Path) -> None:
    written, _ = outlet(tmp_path)
    for n in range(3):
        written.write(rows(n, 1), n, n + 1)
    written.close()
    [index] = (tmp_path / "out").glob("*.index")
    flip_a_bit(index, 2 * outlet_store.ENTRY.size)
    with pytest.raises(OSError, match=r"out is damaged: the stream ended after 3 rows, and there are 2"):
        all_values(tmp_path)


def test_segments_that_were_to_be_deleted_and_came_back_with_the_power_are_no_damage(tmp_path: Path) -> None:
    written, _ = outlet(tmp_path, segment_bytes=1)
    for n in range(4):
        written.write(rows(n, 1), n, n + 1)
    first = min((tmp_path / "out").glob("*.index"))
    kept = first.read_bytes()
    reading = reader(tmp_path)
    end = reading.latestOffset(reading.initialOffset(), ReadAllAvailable())
    reading.commit(end | {"rows": 2})
    assert outlet_store.segments(str(tmp_path / "out")) == [2, 3]
    first.write_bytes(kept)
    assert values(reading, end | {"rows": 2}, end) == [2, 3]
    assert reading.store.begin == 2


@pytest.mark.parametrize("name", [outlet_store.CLAIM, outlet_store.ENDED, outlet_store.COMMITTED])
def test_a_note_that_is_no_json_is_an_error_that_names_it(name: str, tmp_path: Path) -> None:
    written, _ = outlet(tmp_path)
    written.write(rows(0, 3), 0, 3)
    (tmp_path / "out" / name).write_text("{")
    with pytest.raises(OSError, match=rf"{name} is damaged: it is not JSON"):
        all_values(tmp_path)


# In processes.


def flow_to(sink: flux.sinks.Sink, count: int, rate: float | None = None) -> flux.Dataflow:
    flow = flux.Dataflow("owned")
    table = flux.sources.Table(pa.table({"n": pa.array(range(count), pa.int64())}), rate=rate, batch_rows=100)
    flow.source(table).filter(lambda row: True).sink(sink)
    return flow


@pytest.mark.usefixtures("impatient")
def test_of_two_runs_on_one_outlet_one_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "out"
    with flow_to(Outlet(path, overwrite=True), 6_000, rate=1_500).start() as first:
        first.wait_for_output(100)
        with pytest.raises(PlanError, match=r"another run .* writes to .*out now"):
            flow_to(Outlet(path, overwrite=True), 100).run()
        first.wait(timeout=60)
    assert all_values(tmp_path) == [*range(6_000)]
    assert json.loads((path / outlet_store.ENDED).read_text())["rows"] == 6_000


def test_a_run_whose_outlet_is_removed_ends_with_an_error(tmp_path: Path) -> None:
    with flow_to(Outlet(tmp_path / "out"), 100_000, rate=5_000).start() as run:
        run.wait_for_output(100)
        remove(tmp_path / "out")
        with pytest.raises(SinkError, match=r"out.* was removed"):
            run.wait(timeout=60)


def test_a_reader_that_looks_for_a_writer_does_not_keep_a_run_out(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    looking = (tmp_path / "out" / outlet_store.LOCK).open("w")
    outlet_store.lock_file(looking.fileno(), 1)  # LOCK_SH, as `is_written`.
    soon = threading.Timer(0.2, looking.close)
    soon.start()
    written, _ = outlet(tmp_path)
    soon.join()
    assert outlet_store.is_written(str(tmp_path / "out"))
    written.close()
    assert not outlet_store.is_written(str(tmp_path / "out"))
