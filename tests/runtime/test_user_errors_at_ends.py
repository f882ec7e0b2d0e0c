"""Every error a user can cause at the ends of a flow: sources and their values, sinks, disks. Real runs.

Each says who, what and where, and what to do.
"""

from __future__ import annotations

import os
import resource
import socket
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import flux
from flux.sources.source import SourceBatch, SourceContext

from .user_errors import ROWS, Cases, Counts, batched, check, flow_of

CASES = Cases()
case = CASES.add


NOBODY = 65_534


def full_disk(size_bytes: int = 20_000) -> None:
    """For this process and those that it forks: no file may grow beyond so many bytes."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))


# Sources.


@case(flux.PlanError, "there are no files at", "none.parquet", "Give the path of some")
def a_file_that_is_missing(tmp_path: Path) -> None:
    flux.sources.Files(tmp_path / "none.parquet")


@case(flux.PlanError, "text.parquet cannot be read as parquet", "format=... says what it is")
def a_file_of_another_format(tmp_path: Path) -> None:
    (tmp_path / "text.parquet").write_text("k,v\n1,2\n")
    flux.sources.Files(tmp_path / "text.parquet")


@case(flux.PlanError, "data.csv cannot be read as csv", "format=... says what it is")
def a_file_that_is_no_text(tmp_path: Path) -> None:
    (tmp_path / "data.csv").write_bytes(b"\x83\xff,\xfe\n\x00\x01\n")
    flux.sources.Files(tmp_path / "data.csv", format="csv")


@case(flux.FluxError, "rows.jsonl cannot be read as jsonl", "between bytes", "Correct the file")
def a_line_that_is_no_record(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text('{"k": 1, "v": 2}\nnot at all\n')
    schema = pa.schema({"k": pa.int64(), "v": pa.int64()})
    flow_of(source=flux.sources.Files(tmp_path / "rows.jsonl", format="jsonl", schema=schema)).run()


def written(path: Path) -> Path:
    path.parent.mkdir(exist_ok=True)
    pq.write_table(pa.Table.from_pylist(ROWS), path)
    return path


@case(flux.FluxError, "rows.parquet was there when the flow was made, and is gone", "Put it back")
def a_file_that_is_gone_when_the_run_begins(tmp_path: Path) -> None:
    path = written(tmp_path / "rows.parquet")
    flow = flow_of(source=flux.sources.Files(path))
    path.unlink()
    flow.run()


@case(flux.FluxError, "in/rows.parquet was there when the flow was made, and is gone", "Put it back")
def a_file_that_is_gone_from_its_directory(tmp_path: Path) -> None:
    path = written(tmp_path / "in" / "rows.parquet")
    flow = flow_of(source=flux.sources.Files(path.parent))
    path.unlink()
    flow.run()


@case(flux.FluxError, "there are no files at", "*.parquet", "or follow=True to wait for them")
def a_pattern_that_nothing_fits(tmp_path: Path) -> None:
    schema = pa.Table.from_pylist(ROWS).schema
    flow_of(source=flux.sources.Files(tmp_path / "*.parquet", schema=schema)).run()


class ReadByNobody(flux.sources.Files):
    """Files, read by a user who may not: the ingress of a superuser gives up its rights."""

    def _check_exists(self) -> None:
        super()._check_exists()
        if os.geteuid() == 0:
            os.seteuid(NOBODY)


@case(flux.FluxError, "rows.parquet cannot be read", "Permission denied", "Fix or remove it")
def a_file_that_may_not_be_read(tmp_path: Path) -> None:
    path = written(tmp_path / "rows.parquet")
    source = ReadByNobody(path)
    path.chmod(0)
    flow_of(source=source).run()


@case(flux.FluxError, "cannot connect to 127.0.0.1:", "Start the server there, or say reconnect=True")
def a_server_that_is_not_there(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # Nobody listens there.
        flow = flux.Dataflow("wrong")
        lines = flow.source(flux.sources.Lines(*taken.getsockname(), reconnect=False))
        same = batched(lambda batch: None)
        lines.exchange("line", partitions=4).apply(same).sink(flux.sinks.Null())
        flow.run()


class Broken(flux.sources.Source):
    """A source of the user's own."""

    schema = pa.schema({"k": pa.int64()})

    async def batches(self, context: SourceContext, after: Any = None) -> Any:
        yield SourceBatch(pa.record_batch({"k": pa.array([1, 2, 3])}))
        raise LookupError("no more")


@case(
    flux.SourceError,
    "source Broken (",
    "test_user_errors_at_ends.py:",
    ") raised LookupError: no more when it was read after row 3. Fix it",
)
def a_source_that_raises(tmp_path: Path) -> None:
    flow_of(source=Broken()).run()


class Exits(Broken):
    async def batches(self, context: SourceContext, after: Any = None) -> Any:
        yield SourceBatch(pa.record_batch({"k": pa.array([1, 2])}))
        raise SystemExit(0)


@case(flux.SourceError, "source Exits (", "raised SystemExit: 0 when it was read after row 2. Fix it")
def a_source_that_exits(tmp_path: Path) -> None:
    flow_of(source=Exits()).run()


# Values that a type cannot have: Arrow holds them without complaint.


def no_text(*values: bytes) -> Any:
    return pa.Array.from_buffers(pa.string(), len(values), pa.array(values).buffers())


def flow_with(column: Any) -> flux.Dataflow:
    return flow_of(source=flux.sources.Table(pa.table({"k": list(range(len(column))), "t": column})))


@case(flux.FluxError, "source Table gave", "column 't'", "90000 is not a time32[s]", "0 to 86,399", "Correct it")
def a_source_with_a_time_beyond_the_day(tmp_path: Path) -> None:
    flow_with(pa.array([1, 90_000, 3], pa.time32("s"))).run(sites=2)


@case(flux.FluxError, "source Table gave", "column 't'", "within list<", "-1 is not a time64[us]", "Correct it")
def a_source_with_a_time_before_the_day_in_a_list(tmp_path: Path) -> None:
    times = pa.array([1, -1, 3], pa.time64("us"))
    flow_with(pa.ListArray.from_arrays([0, 1, 3], times)).run(sites=2)


@case(flux.FluxError, "source Table gave", "column 't'", "1 is not a date64[ms]", "86,400,000", 'timestamp("ms")')
def a_source_with_a_date_that_is_no_whole_day(tmp_path: Path) -> None:
    flow_with(pa.array([0, 1, 2], pa.date64())).run(sites=2)


@case(flux.FluxError, "source Table gave", "column 't'", r"b'\xff' is not a string", "UTF-8", "column of binary")
def a_source_with_text_that_is_none(tmp_path: Path) -> None:
    flow_with(no_text(b"a", b"\xff", b"c")).run(sites=2)


@case(flux.OperatorError, "step 'Mine'", "output column 't'", "90000 is not a time32[s]", "Correct it")
def an_output_with_a_time_beyond_the_day(tmp_path: Path) -> None:
    late = batched(
        lambda batch: batch.emit({"k": batch["k"], "t": pa.array([90_000] * len(batch), pa.int32())}),
        output={"k": "int64", "t": "time32[s]"},
    )
    flow = flux.Dataflow("wrong")
    rows = flow.source(flux.sources.Table(ROWS)).exchange("k", partitions=4).apply(late)
    rows.exchange("k", partitions=4).apply(Counts).sink(flux.sinks.Collect())
    flow.run(sites=2)


@case(flux.OperatorError, "step 'Counts'", "row 2: column 't'", "Python has no value for 12000-01-01", "with select")
def a_date_that_python_cannot_hold(tmp_path: Path) -> None:
    flow_with(pa.array([0, 3_663_382, 0], pa.date32())).run(sites=2)


@case(flux.OperatorError, "step 'Counts'", "row 2: column 't'", "Python has no value for", "4611686018427387904")
def a_key_that_python_cannot_hold(tmp_path: Path) -> None:
    flow = flux.Dataflow("wrong")
    times = pa.array([0, 2**62, 5]).cast(pa.timestamp("us"))
    rows = flow.source(flux.sources.Table(pa.table({"k": [1, 2, 3], "t": times}))).exchange("t", partitions=4)
    rows.apply(Counts).sink(flux.sinks.Collect())
    flow.run(sites=2)


# Sinks.


@case(flux.PlanError, "Parquet: ", "holds 'part-", "already", "say overwrite=True")
def a_directory_of_another_run(tmp_path: Path) -> None:
    for _ in range(2):
        flow_of(sink=flux.sinks.Parquet(tmp_path / "out")).run()


@case(flux.PlanError, "Jsonl: ", "is there already and not empty", "say overwrite=True")
def a_file_of_another_run(tmp_path: Path) -> None:
    for _ in range(2):
        flow_of(sink=flux.sinks.Jsonl(tmp_path / "out.jsonl")).run()


@case(flux.FluxError, "Jsonl cannot write", "No such file or directory", "choose another path")
def a_sink_in_no_directory(tmp_path: Path) -> None:
    flow_of(sink=flux.sinks.Jsonl("/proc/none/out.jsonl")).run()


@case(
    flux.SinkError,
    "sink Callback (",
    "test_user_errors_at_ends.py:",
    ") raised KeyError: 'price' when it took the output of the input 1",
    "Fix it",
)
def a_callback_that_raises(tmp_path: Path) -> None:
    flow_of(sink=flux.sinks.Callback(lambda rows: {}["price"])).run()


@case(flux.FluxError, "Jsonl cannot write the column 'day'", "it is 12000-01-01 in row ", "years 1 to 9999", "filter")
def a_date_that_json_has_no_form_for(tmp_path: Path) -> None:
    flow = flux.Dataflow("far")
    days = pa.table({"k": [1, 2], "day": pa.array([0, 3_663_382], pa.date32())})
    flow.source(flux.sources.Table(days)).exchange("k").select("day").sink(flux.sinks.Jsonl(tmp_path / "out.jsonl"))
    flow.run(sites=2)


@case(flux.SinkError, "sink Callback (", ") raised SystemExit: 0 when it took the output of the input 1", "Fix it")
def a_callback_that_exits(tmp_path: Path) -> None:
    flow_of(sink=flux.sinks.Callback(lambda rows: sys.exit(0))).run()


# Full disks.


class FullJsonl(flux.sinks.Jsonl):
    def open(self, directory: Path) -> int | None:
        full_disk(1_000)
        return super().open(directory)


@case(flux.FluxError, "Jsonl cannot write", "The output that was written before is safe", "Make room there")
def a_full_disk_for_a_file(tmp_path: Path) -> None:
    flow_of(sink=FullJsonl(tmp_path / "out.jsonl")).run()


class FullParquet(flux.sinks.Parquet):
    def open(self, directory: Path) -> int | None:
        full_disk(1_000)
        return super().open(directory)


@case(flux.FluxError, "flux.sinks.Parquet", "cannot write", "Make room there")
def a_full_disk_for_a_directory(tmp_path: Path) -> None:
    flow_of(sink=FullParquet(tmp_path / "out")).run()


class OnAFullDisk(flux.sources.Table):
    async def batches(self, context: SourceContext, after: Any = None) -> Any:
        full_disk(500)
        async for batch in super().batches(context, after):
            yield batch


@case(flux.FluxError, "the journal cannot write", "numbering.journal", "Make room there")
def a_full_disk_for_the_journal_of_the_ingress(tmp_path: Path) -> None:
    flow_of(source=OnAFullDisk(ROWS, batch_rows=5)).run()


@case(flux.FluxError, "a recording cannot write", "site-", "without record=", "Make room there")
def a_full_disk_for_a_recording(tmp_path: Path) -> None:
    flow_of(batched(lambda batch: None, open=lambda self, context: full_disk(400))).run(record=tmp_path / "recorded")


@case(flux.FluxError, "the journal cannot write", "controller.journal", "Make room there")
def a_full_disk_for_the_journal_of_the_controller(tmp_path: Path) -> None:
    with flow_of(source=flux.sources.Table(ROWS, rate=100)).start(sites=3) as run:
        run.wait_for_output(20)
        [pid] = [process.pid for process in run.status().processes if process.name == "controller"]
        assert pid is not None
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (10, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
        run.kill("site-1")
        run.wait(timeout=60)


@case(flux.FluxError, "the recording cannot write", "taken: File exists", "choose another path")
def a_recording_where_a_file_is(tmp_path: Path) -> None:
    (tmp_path / "taken").touch()
    flow_of().run(record=tmp_path / "taken")


@case(flux.FluxError, "no directory can be made for the run", "name another by TMPDIR")
def a_place_for_temporary_files_that_is_not_there(tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tempfile.tempdir", str(tmp_path / "none"))
        flow_of().run()


@pytest.mark.parametrize("name", CASES)
def test_an_error_says_what_happened_and_what_to_do(name: str, tmp_path: Path) -> None:
    check(CASES[name], tmp_path)
