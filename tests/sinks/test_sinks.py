"""What the sinks promise: each row once and in order, also when the egress is killed at any point and started again.

It takes about 20 s: an egress is killed at each of its steps, once for each kind of sink.
"""

from __future__ import annotations

import contextlib
import datetime
import decimal
import json
import os
import signal
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgpack
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flux.sinks import Callback, Collect, Jsonl, Null, Parquet, Sink
from flux.site.egress.sink_journal import SinkJournal
from flux.storage.journal import Journal
from flux.types.errors import FluxError, OperatorError, PlanError

Ranges = list[tuple[int, int]]  # How many sequence numbers, and how many rows they brought.
RANGES = st.lists(st.tuples(st.integers(1, 5), st.integers(0, 12)), min_size=1, max_size=10)

# What the disk is asked for: dying before the n-th of these is dying at any point that matters.
DISK_CALLS = ("pwrite", "fsync", "ftruncate", "rename", "unlink")


@pytest.fixture(autouse=True)
def _nobody_waits_for_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that is killed loses nothing the system has: these tests need no fsync, and die at it all the same."""
    monkeypatch.setattr(os, "fsync", lambda fd: None)


def numbers(first: int, count: int) -> pa.RecordBatch:
    return pa.record_batch({"n": pa.array(range(first, first + count), pa.int64())})


def folders(root: Path) -> tuple[Path, Path]:
    """The run's directory and a path for its output."""
    run = root / "run"
    run.mkdir(exist_ok=True)
    return run, root / "out"


def die(sink: Any) -> None:
    """Leave a sink as a killed egress does: without its locks."""
    if isinstance(sink, Jsonl):
        os.close(sink._fd)
    else:
        sink._journal.close()


def rows_in(path: Path) -> list[int]:
    if path.is_dir():
        return [n for part in sorted(path.glob("part-*")) for n in pq.read_table(part)["n"].to_pylist()]
    return [json.loads(line)["n"] for line in path.read_text().splitlines()] if path.exists() else []


def egress(sink: Sink, run: Path, ranges: Ranges, flushes: bool = True) -> int:
    """What the egress process does with a sink, from where the last one left it; returns the rows in total."""
    progress = SinkJournal(run / "egress.journal")
    progress.resume(sink.open(run))
    upto = row = 0
    for index, (numbered, rows) in enumerate(ranges):
        after, upto, first, row = upto, upto + numbered, row, row + rows
        if upto <= progress.upto:
            continue
        assert after == progress.upto, "what is durable ends where a range ends"
        end = index == len(ranges) - 1
        progress.give(upto, rows, end)
        if rows:
            sink.write(numbers(first, rows), after, upto)
        if end:
            sink.close()
        progress.take()
        if flushes and index % 3 == 2:
            sink.flush()
    if progress.ended:
        sink.close()
    progress.close()
    return progress.rows


def killed_in(life: Callable[[], None], calls: int) -> bool:
    """Whether `life`, in a process of its own, was killed before its `calls`-th call to the disk."""
    pid = os.fork()
    if pid == 0:
        with contextlib.suppress(BaseException):
            die_at(calls)
            life()
            os._exit(0)
        os._exit(1)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert status in (0, -signal.SIGKILL), f"the egress failed with {status}"
    return status != 0


def die_at(calls: int) -> None:
    """In a process of its own: die before the n-th call to the disk; of a write, half is done by then."""
    left = [calls]

    def dying(name: str) -> Callable[..., Any]:
        genuine = getattr(os, name)

        def call(*arguments: Any, **named: Any) -> Any:
            left[0] -= 1
            if not left[0]:
                if name == "pwrite":
                    fd, data, position = arguments
                    genuine(fd, data[: len(data) // 2], position)
                os.kill(os.getpid(), signal.SIGKILL)
            return genuine(*arguments, **named)

        return call

    for name in DISK_CALLS:
        setattr(os, name, dying(name))


def parquet(out: Path) -> Sink:
    return Parquet(out, file_rows=5)


@pytest.mark.parametrize("make", [Jsonl, parquet])
@settings(max_examples=40)
@given(ranges=RANGES, deaths=st.lists(st.integers(1, 60), max_size=4))
def test_an_egress_that_is_killed_anywhere_leaves_each_row_once(
    make: Callable[[Path], Sink], ranges: Ranges, deaths: list[int]
) -> None:
    total = sum(rows for _, rows in ranges)
    with tempfile.TemporaryDirectory() as folder:
        run, out = folders(Path(folder))
        for calls in deaths:
            killed_in(lambda: egress(make(out), run, ranges) and None, calls)
            seen = rows_in(out) if out.is_dir() else []
            assert seen == list(range(len(seen))), "what a reader of finished files sees is right at any time"
        assert egress(make(out), run, ranges) == total
        assert rows_in(out) == list(range(total))


@pytest.mark.parametrize("make", [Jsonl, parquet])
def test_every_single_point_of_a_short_life_is_survived(make: Callable[[Path], Sink], tmp_path: Path) -> None:
    ranges = [(2, 2), (1, 0), (3, 5), (2, 1)]
    for calls in range(1, 200):
        root = tmp_path / str(calls)
        root.mkdir()
        run, out = folders(root)
        killed = killed_in(lambda run=run, out=out: egress(make(out), run, ranges) and None, calls)
        assert egress(make(out), run, ranges) == 8
        assert rows_in(out) == list(range(8)), f"killed at call {calls}"
        if not killed:
            return
    pytest.fail("the life never came to its end")


@settings(max_examples=20)
@given(ranges=RANGES, deaths=st.lists(st.integers(1, 40), max_size=3))
def test_a_callback_is_given_each_row_at_least_once_and_in_order(ranges: Ranges, deaths: list[int]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        run, out = folders(Path(folder))

        def note(rows: pa.RecordBatch) -> None:
            with out.open("a") as file:
                file.write("".join(f"{n}\n" for n in rows["n"].to_pylist()))

        for calls in deaths:
            killed_in(lambda: egress(Callback(note), run, ranges) and None, calls)
        total = egress(Callback(note), run, ranges)
        seen = [int(line) for line in out.read_text().split()] if out.exists() else []
        assert total == sum(rows for _, rows in ranges)
        assert list(dict.fromkeys(seen)) == list(range(total))


class Ledger:
    """A callback that keeps its position with the rows: one file, replaced at once."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __call__(self, rows: pa.RecordBatch, upto: int) -> None:
        fresh = self.path.with_suffix(".new")
        fresh.write_text(json.dumps([upto, self.rows() + rows["n"].to_pylist()]))
        fresh.rename(self.path)

    def _held(self) -> tuple[int, list[int]]:
        return tuple(json.loads(self.path.read_text())) if self.path.exists() else (0, [])

    def position(self) -> int:
        return self._held()[0]

    def rows(self) -> list[int]:
        return self._held()[1]


@settings(max_examples=20)
@given(ranges=RANGES, deaths=st.lists(st.integers(1, 40), max_size=3))
def test_a_callback_that_keeps_its_position_has_each_row_once(ranges: Ranges, deaths: list[int]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        run, out = folders(Path(folder))
        for calls in deaths:
            killed_in(lambda: egress(Callback(Ledger(out)), run, ranges) and None, calls)
        total = egress(Callback(Ledger(out)), run, ranges)
        assert Ledger(out).rows() == list(range(total)) == list(range(sum(rows for _, rows in ranges)))


def test_a_callback_that_has_a_position_of_another_run_is_an_error(tmp_path: Path) -> None:
    run, out = folders(tmp_path)
    Ledger(out)(numbers(0, 3), 500)
    with pytest.raises(FluxError, match="the sink says that it has the output up to 500"):
        egress(Callback(Ledger(out)), run, [(1, 1)])


@pytest.mark.parametrize("fn", [None, 3, "print"])
def test_a_callback_that_cannot_be_called_is_a_plan_error(fn: Any) -> None:
    with pytest.raises(PlanError, match="fn must be callable"):
        Callback(fn)


@pytest.mark.parametrize("position", [-1, None, "7", True])
def test_a_position_that_is_none_is_a_plan_error(position: Any, tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "out")
    ledger.position = lambda: position  # type: ignore[method-assign]
    with pytest.raises(PlanError, match=r"fn\.position\(\) must give"):
        Callback(ledger).open(tmp_path)


# Output of others.


@pytest.mark.parametrize("make", [Jsonl, Parquet])
def test_another_runs_output_is_refused_and_untouched(make: Any, tmp_path: Path) -> None:
    run, out = folders(tmp_path)
    egress(make(out), run, [(1, 5)])
    other = tmp_path / "other"
    other.mkdir()
    with pytest.raises(PlanError, match=r"out .*overwrite=True"):
        make(out).open(other)
    assert rows_in(out) == list(range(5))


@pytest.mark.parametrize("make", [Jsonl, Parquet])
def test_another_runs_output_is_replaced_if_told_so(make: Any, tmp_path: Path) -> None:
    run, out = folders(tmp_path)
    egress(make(out), run, [(1, 5), (1, 5)])
    other = tmp_path / "other"
    other.mkdir()
    egress(make(out, overwrite=True), other, [(1, 3)])
    assert rows_in(out) == list(range(3))


def test_two_runs_cannot_write_to_one_directory_at_once(tmp_path: Path) -> None:
    run, out = folders(tmp_path)
    first = Parquet(out)
    first.open(run)
    with pytest.raises(FluxError, match="in use by a process that still lives"):
        Parquet(out, overwrite=True).open(tmp_path)


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_directory_with_files_of_others_is_never_touched(overwrite: bool, tmp_path: Path) -> None:
    run, out = folders(tmp_path)
    out.mkdir()
    (out / "thesis.tex").write_text("all of it")
    with pytest.raises(PlanError, match=r"holds 'thesis\.tex'"):
        Parquet(out, overwrite=overwrite).open(run)
    assert (out / "thesis.tex").read_text() == "all of it"


def test_rows_that_a_killed_run_left_unreadable_are_not_thrown_away_silently(tmp_path: Path) -> None:
    run, out = folders(tmp_path)
    sink = Parquet(out)
    sink.open(run)
    sink.write(numbers(0, 3), 0, 3)
    die(sink)
    with pytest.raises(PlanError, match=rf"holds rows of another run that was killed \(.*, process {os.getpid()}\)"):
        Parquet(out).open(tmp_path)


@pytest.mark.parametrize("records", [[["run", 1]], [None, ["row"]]])
def test_a_record_of_another_shape_in_the_directory_is_an_error_that_names_it(
    records: list[Any], tmp_path: Path
) -> None:
    run, out = folders(tmp_path)
    sink = Parquet(out)
    sink.open(run)
    die(sink)
    journal, [owner] = Journal.open(out / ".flux-open")
    journal.shorten([owner.content if each is None else msgpack.packb(each) for each in records], journal.size)
    journal.close()
    with pytest.raises(
        FluxError, match=r"\.flux-open has a record of another shape at byte \d+: .*Nothing was changed"
    ):
        Parquet(out).open(run)


def test_a_jsonl_path_that_is_a_directory_is_a_plan_error(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match="is a directory"):
        Jsonl(tmp_path).open(tmp_path)


def test_a_file_that_somebody_cut_during_the_run_is_an_error(tmp_path: Path) -> None:
    run, out = folders(tmp_path)
    sink = Jsonl(out)
    sink.open(run)
    sink.write(numbers(0, 3), 0, 3)
    die(sink)
    os.truncate(out, 4)
    with pytest.raises(FluxError, match="has 4 bytes, but 27 were written"):
        Jsonl(out).open(run)


def test_a_partial_line_does_not_stay(tmp_path: Path) -> None:
    run, out = folders(tmp_path)
    sink = Jsonl(out)
    sink.open(run)
    sink.write(numbers(0, 2), 0, 2)
    die(sink)
    with out.open("a") as file:
        file.write('{"n": 2}\n{"n": ')
    assert Jsonl(out).open(run) == 2
    assert out.read_text() == '{"n": 0}\n{"n": 1}\n'


@pytest.mark.parametrize("make", [Jsonl, Parquet])
def test_a_path_that_cannot_be_is_said_plainly(make: Any, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(FluxError, match=rf"{make.__name__} cannot write {tmp_path / 'file' / 'out'}: .*another path"):
        make(tmp_path / "file" / "out").open(tmp_path)


# What the egress notes.


def test_what_was_given_and_not_taken_is_not_counted_and_ends_nothing(tmp_path: Path) -> None:
    progress = SinkJournal(tmp_path / "progress")
    progress.give(5, rows=3, end=False)
    progress.take()
    progress.give(9, rows=4, end=True)
    progress.close()
    progress = SinkJournal(tmp_path / "progress")
    assert (progress.upto, progress.rows, progress.ended) == (5, 3, False)
    progress.resume(5)
    assert (progress.upto, progress.rows, progress.ended) == (5, 3, False)
    progress.resume(9)
    assert (progress.upto, progress.rows, progress.ended) == (9, 7, True), "the sink knows better"


def test_ranges_without_rows_are_noted_though_the_sink_does_not_see_them(tmp_path: Path) -> None:
    progress = SinkJournal(tmp_path / "progress")
    for upto, rows in ((5, 3), (7, 0), (9, 0)):
        progress.give(upto, rows, end=False)
        progress.take()
    progress.give(11, rows=0, end=True)
    progress.close()
    progress = SinkJournal(tmp_path / "progress")
    progress.resume(5)
    assert (progress.upto, progress.rows, progress.ended) == (9, 3, False)
    for wrong in (0, 4, 6, 12):
        with pytest.raises(FluxError, match=f"the sink says that it has the output up to {wrong}, .* up to 5"):
            progress.resume(wrong)


def test_the_notes_of_an_endless_stream_do_not_fill_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flux.site.egress.sink_journal._SHORTEN_AT_BYTES", 1_000)
    progress = SinkJournal(tmp_path / "progress")
    for upto in range(1, 500):
        progress.give(upto, rows=2, end=False)
        assert (tmp_path / "progress").stat().st_size < 1_200
        progress.take()
    progress.close()
    again = SinkJournal(tmp_path / "progress")
    assert (again.upto, again.rows) == (499, 998)


# A full disk.


@pytest.mark.parametrize("make", [Jsonl, Parquet])
def test_a_full_disk_is_said_plainly_and_loses_nothing(make: Any, tmp_path: Path, limit_file_size: Any) -> None:
    run, out = folders(tmp_path)
    sink = make(out)
    sink.open(run)
    sink.write(numbers(0, 20), 0, 20)
    with limit_file_size(1_500), pytest.raises(FluxError, match=rf"{make.__name__}.* cannot write {out}.*Make room"):
        sink.write(numbers(20, 1_000), 20, 1_020)
    die(sink)
    again = make(out)
    assert again.open(run) == 20
    assert rows_in(out) == list(range(20))
    again.write(numbers(20, 1_000), 20, 1_020)
    again.close()
    assert rows_in(out) == list(range(1_020))


def test_a_file_that_does_not_fit_leaves_its_rows_where_they_were(tmp_path: Path, limit_file_size: Any) -> None:
    run, out = folders(tmp_path)
    sink = Parquet(out)
    sink.open(run)
    sink.write(numbers(0, 20), 0, 20)
    with limit_file_size(300), pytest.raises(FluxError, match=r"Parquet cannot write .*part-0*1-0*20\.parquet"):
        sink.flush()
    assert [path.name for path in out.iterdir()] == [".flux-open"]
    sink.flush()
    assert rows_in(out) == list(range(20))


# What lies there.


def test_names_of_parts_say_their_range_and_sort_as_the_rows(tmp_path: Path) -> None:
    run, out = folders(tmp_path)
    egress(Parquet(out, file_rows=4), run, [(3, 4), (2, 0), (95, 9), (1, 1)])
    names = [path.name.removesuffix(".parquet").split("-") for path in sorted(out.glob("*.parquet"))]
    assert [[int(part) for part in name[1:]] for name in names] == [
        [1, 3],
        [4, 100, 0],
        [4, 100, 1],
        [4, 100, 2],
        [101, 101],
    ]
    assert pq.read_table(out)["n"].to_pylist() == list(range(14)), "hidden files are no part of the table"
    assert all(pq.read_metadata(path).num_rows <= 4 for path in out.glob("*.parquet"))


def test_small_writes_are_gathered_into_one_file(tmp_path: Path) -> None:
    run, out = folders(tmp_path)
    egress(Parquet(out), run, [(1, 1)] * 50, flushes=False)
    assert len(list(out.glob("*.parquet"))) == 1


def test_output_that_changes_its_columns_is_an_operator_error(tmp_path: Path) -> None:
    sink = Parquet(tmp_path / "out")
    sink.open(tmp_path)
    sink.write(numbers(0, 1), 0, 1)
    with pytest.raises(OperatorError, match="n int64 at first and then m string"):
        sink.write(pa.record_batch({"m": ["x"]}), 1, 2)


@pytest.mark.parametrize(("setting", "value"), [("file_rows", 0), ("file_rows", 1.5), ("flush_every_s", 0)])
def test_settings_that_make_no_sense_are_plan_errors(setting: str, value: Any, tmp_path: Path) -> None:
    with pytest.raises(PlanError, match=f"{setting} must be"):
        Parquet(tmp_path, **{setting: value})


def test_values_that_json_does_not_have_are_written_in_a_form_that_is_documented(tmp_path: Path) -> None:
    moment = datetime.datetime(2024, 2, 29, 12, 30, 0, 5)
    columns = {
        "nan": pa.array([float("nan")]),
        "inside": pa.array([[1.0, float("inf")]]),
        "raw": pa.array([b"\x00\xff"]),
        "at": pa.array([moment], pa.timestamp("us")),
        "fine": pa.array([1], pa.timestamp("ns")),
        "day": pa.array([moment.date()]),
        "money": pa.array([decimal.Decimal("1.10")]),
        "word": pa.array(["naïve\n"]),
        "none": pa.array([None], pa.int8()),
    }
    sink = Jsonl(tmp_path / "out")
    sink.open(tmp_path)
    sink.write(pa.record_batch(columns), 0, 1)
    [line] = (tmp_path / "out").read_text().splitlines()
    assert json.loads(line) == {
        "nan": None,
        "inside": [1.0, None],
        "raw": "AP8=",
        "at": "2024-02-29T12:30:00.000005",
        "fine": "1970-01-01T00:00:00.000000001",
        "day": "2024-02-29",
        "money": "1.10",
        "word": "naïve\n",
        "none": None,
    }


DAYS_TO_10000 = 2_932_897
BEYOND = {
    "a date": pa.array([0, None, DAYS_TO_10000], pa.date32()),
    "a date before the year 1": pa.array([0, None, -DAYS_TO_10000], pa.date32()),
    "a timestamp": pa.array([0, None, DAYS_TO_10000 * 86_400], pa.timestamp("s")),
    "a timestamp that is beyond in its zone": pa.array(
        [0, None, DAYS_TO_10000 * 86_400_000 - 1], pa.timestamp("ms", "Asia/Tokyo")
    ),
    "a duration": pa.array([0, None, 2**62], pa.duration("s")),
    "one in a list": pa.array([[0], None, [1, DAYS_TO_10000]], pa.list_(pa.date32())),
}


@pytest.mark.parametrize("kind", BEYOND)
def test_a_time_that_json_lines_have_no_form_for_is_an_error_that_names_it(kind: str, tmp_path: Path) -> None:
    sink = Jsonl(tmp_path / "out")
    sink.open(tmp_path)
    rows = pa.record_batch({"n": [1, 2, 3], "when": BEYOND[kind]})
    with pytest.raises(FluxError, match=r"Jsonl .* column 'when': it is .* in row 3 .* input 38 to 40\."):
        sink.write(rows, 37, 40)
    sink.write(rows[:2], 37, 39)
    assert len((tmp_path / "out").read_text().splitlines()) == 2


# The others.


def test_null_and_collect_keep_no_position(tmp_path: Path) -> None:
    assert Null().open(tmp_path) is None
    assert Collect().open(tmp_path) is None


def test_a_sink_without_write_says_what_to_define() -> None:
    with pytest.raises(NotImplementedError, match="must define `write"):
        Sink().write(numbers(0, 1), 0, 1)
