"""Whose output it is: one run's at a time, as that run left it, and nothing else is left when the stream has ended."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import flux
from flux.sinks import Jsonl, Parquet
from flux.types.errors import PlanError, SinkError

from .test_sinks import die, numbers, rows_in


def directory(path: Path) -> Path:
    path.mkdir()
    return path


def opened(make: Any, tmp_path: Path, name: str, **settings: Any) -> Any:
    """The sink of a run, open at `out`."""
    sink = make(tmp_path / "out", **settings)
    sink.open(directory(tmp_path / name))
    return sink


@pytest.mark.parametrize("make", [Jsonl, Parquet])
def test_a_run_is_refused_output_that_another_one_writes(make: Any, tmp_path: Path) -> None:
    first = opened(make, tmp_path, "first", overwrite=True)
    first.write(numbers(0, 3), 0, 3)
    with pytest.raises(flux.FluxError, match=r"another run .* writes to|in use by a process that still lives"):
        opened(make, tmp_path, "second", overwrite=True)
    first.write(numbers(3, 3), 3, 6)
    first.close()
    assert rows_in(tmp_path / "out") == [*range(6)]


@pytest.mark.parametrize("make", [Jsonl, Parquet])
@pytest.mark.parametrize("at_the_end", [False, True])
def test_where_machines_share_no_locks_the_run_that_came_first_is_refused(
    make: Any, at_the_end: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fcntl.flock", lambda fd, operation: None)
    first = opened(make, tmp_path, "first", overwrite=True)
    first.write(numbers(0, 3), 0, 3)
    second = opened(make, tmp_path, "second", overwrite=True)
    second.write(numbers(100, 3), 0, 3)
    with pytest.raises(SinkError, match=r"another run.* has taken .*out over"):
        first.close() if at_the_end else first.write(numbers(3, 3), 3, 6)
    die(first) if not at_the_end or make is Parquet else None
    with pytest.raises(SinkError, match=r"another run.* has taken .*out over"):
        make(tmp_path / "out", overwrite=True).open(tmp_path / "first")
    second.write(numbers(103, 3), 3, 6)
    second.close()
    assert rows_in(tmp_path / "out") == [*range(100, 106)]


def remove(path: Path) -> None:
    shutil.rmtree(path) if path.is_dir() else path.unlink()


def rename(path: Path) -> None:
    path.rename(path.with_name("out.1"))


def rename_and_create(path: Path) -> None:
    rename(path)
    path.touch() if path.with_name("out.1").is_file() else path.mkdir()


def truncate(path: Path) -> None:
    os.truncate(path, 0)


def add(path: Path) -> None:
    with path.open("a") as file:
        file.write("something\n")


def remove_a_part(path: Path) -> None:
    min(path.glob("part-*")).unlink()


def remove_the_note(path: Path) -> None:
    path.with_name(".out.flux").unlink()


CASES = [
    *((Jsonl, change) for change in (remove, rename, rename_and_create, truncate, add, remove_the_note)),
    *((Parquet, change) for change in (remove, rename, rename_and_create)),
]


@pytest.mark.parametrize(("make", "change"), CASES)
@pytest.mark.parametrize("at_the_end", [False, True])
def test_output_that_is_changed_in_flight_is_a_sink_error(
    make: Any, change: Callable[[Path], None], at_the_end: bool, tmp_path: Path
) -> None:
    sink = opened(make, tmp_path, "run")
    sink.write(numbers(0, 3), 0, 3)
    sink.flush()
    change(tmp_path / "out")
    with pytest.raises(SinkError, match=r"out .* during the run, so output that was written is not there"):
        sink.close() if at_the_end else sink.write(numbers(3, 3), 3, 6)


def test_a_part_that_is_removed_before_the_end_is_a_sink_error(tmp_path: Path) -> None:
    sink = opened(Parquet, tmp_path, "run", file_rows=2)
    sink.write(numbers(0, 3), 0, 3)
    sink.write(numbers(3, 3), 3, 6)
    die(sink)
    sink = Parquet(tmp_path / "out", file_rows=2)
    sink.open(tmp_path / "run")
    remove_a_part(tmp_path / "out")
    with pytest.raises(SinkError, match="has 3 part files, but 4 were written"):
        sink.close()


@pytest.mark.parametrize("content", ["", "{", "[]", '{"run": 1}'])
def test_a_note_that_is_damaged_is_an_error_that_names_it_and_says_what_to_do(content: str, tmp_path: Path) -> None:
    (tmp_path / ".out.flux").write_text(content)
    with pytest.raises(SinkError, match=r"\.out\.flux, the note that says whose output out is, is damaged.*Remove"):
        opened(Jsonl, tmp_path, "run", overwrite=True)
    assert (tmp_path / ".out.flux").read_text() == content


@pytest.mark.parametrize("make", [Jsonl, Parquet])
def test_nothing_but_the_output_is_left_at_the_end_and_an_egress_may_close_it_again(make: Any, tmp_path: Path) -> None:
    sink = opened(make, tmp_path, "run")
    sink.write(numbers(0, 3), 0, 3)
    sink.close()
    left = [path.name for path in tmp_path.rglob("*") if path.name.startswith(".")]
    assert not left
    again = make(tmp_path / "out")
    assert again.open(tmp_path / "run") == 3, "the egress died before it noted the end"
    again.close()
    assert rows_in(tmp_path / "out") == [0, 1, 2]


@pytest.mark.parametrize("make", [Jsonl, Parquet])
def test_what_a_killed_run_left_says_whose_it_is_and_the_next_run_cleans_it(make: Any, tmp_path: Path) -> None:
    sink = opened(make, tmp_path, "killed")
    sink.write(numbers(0, 3), 0, 3)
    sink.flush()
    die(sink)
    (tmp_path / "out" / ".part-half").touch() if make is Parquet else None
    with pytest.raises(PlanError, match=rf"out .*\({os.uname().nodename}, process {os.getpid()}\).*overwrite=True"):
        opened(make, tmp_path, "refused")
    sink = opened(make, tmp_path, "next", overwrite=True)
    sink.write(numbers(7, 1), 0, 1)
    sink.close()
    assert rows_in(tmp_path / "out") == [7]
    assert not [path.name for path in tmp_path.rglob("*") if path.name.startswith(".")]


# In processes.


def flow_to(sink: flux.sinks.Sink, rows: int, rate: float | None = None) -> flux.Dataflow:
    flow = flux.Dataflow("owned")
    table = flux.sources.Table(pa.table({"n": pa.array(range(rows), pa.int64())}), rate=rate, batch_rows=100)
    flow.source(table).filter(lambda row: True).sink(sink)
    return flow


def test_of_two_runs_on_one_file_one_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    with flow_to(Jsonl(path, overwrite=True), 10_000, rate=1_500).start() as first:
        first.wait_for_output(100)
        with pytest.raises(PlanError, match=r"another run .* writes to .*out\.jsonl now"):
            flow_to(Jsonl(path, overwrite=True), 100).run()
        first.wait(timeout=60)
    assert rows_in(path) == [*range(10_000)]


def test_a_file_that_is_removed_in_flight_ends_the_run(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    with flow_to(Jsonl(path), 100_000, rate=5_000).start() as run:
        run.wait_for_output(100)
        path.unlink()
        with pytest.raises(SinkError, match=r"out\.jsonl was removed or renamed during the run"):
            run.wait(timeout=60)
