"""How files are written: compressed, with other delimiters, as text, with columns in any order, with bad lines."""

from __future__ import annotations

import bz2
import contextlib
import gzip
import lzma
import os
import signal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
import trio

import flux
from flux.sources import Files, SourceContext
from flux.types.errors import FluxError, PlanError

from .reading import Followed, batches_of, check_offsets, rows_of, values_of


def zstd(data: bytes) -> bytes:
    return bytes(pa.Codec("zstd").compress(data, asbytes=True))


COMPRESSED = {".gz": gzip.compress, ".bz2": bz2.compress, ".xz": lzma.compress, ".zst": zstd}


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flux.sources.text_file.CHUNK_BYTES", 40)
    monkeypatch.setattr("flux.sources.files.DEFAULT_BATCH_ROWS", 3)


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("suffix", COMPRESSED)
@pytest.mark.parametrize("format", ["csv", "jsonl", "text"])
def test_compressed_files_are_read_by_their_suffix(suffix: str, format: Any, tmp_path: Path) -> None:
    row, head = {"csv": ("%d\n", "n\n"), "jsonl": ('{"n": %d}\n', ""), "text": ("%d\n", "")}[format]
    data = tmp_path / "data"
    data.mkdir()
    name = {"text": "log"}.get(format, format)
    for nth, first in (("a", 0), ("b", 30)):
        text = head + "".join(row % n for n in range(first, first + 30))
        (data / f"{nth}.{name}{suffix}").write_bytes(COMPRESSED[suffix](text.encode()))
    (data / f"c.{name}").write_text(head + row % 60)
    values = [str(n) for n in range(61)] if format == "text" else [*range(61)]
    assert values_of(Files(data, format), tmp_path) == values
    (tmp_path / "files.journal").unlink()
    check_offsets(lambda: Files(data, format), tmp_path)


@pytest.mark.parametrize("suffix", COMPRESSED)
def test_a_compressed_file_that_is_cut_is_an_error(suffix: str, tmp_path: Path) -> None:
    whole = COMPRESSED[suffix](b"".join(b"%d\n" % (n * 7919 % 1000) for n in range(1000)))
    (tmp_path / f"a.log{suffix}").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(FluxError, match=rf"a\.log{suffix} cannot be read"):
        batches_of(Files(tmp_path / f"a.log{suffix}", "text"), tmp_path)


@pytest.mark.parametrize("suffix", COMPRESSED)
def test_a_compressed_file_that_is_being_written_is_followed_when_it_is_whole(
    suffix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flux.sources.files.POLL_EVERY_S", 0.001)
    whole = COMPRESSED[suffix](b"".join(b'{"n": %d}\n' % n for n in range(100)))
    data = tmp_path / "data"
    data.mkdir()

    async def main() -> None:
        source = Files(data, "jsonl", follow=True, schema=pa.schema({"n": pa.int64()}))
        async with contextlib.aclosing(Followed(source, tmp_path)) as followed:
            (data / f"a.jsonl{suffix}").write_bytes(whole[:50])
            (data / "b.jsonl").write_text('{"n": 100}\n')
            assert await followed.more(1) == [100]
            with (data / f"a.jsonl{suffix}").open("ab") as file:
                file.write(whole[50:])
            assert await followed.more(100) == [*range(100)]

    trio.run(main)


def test_csv_options_are_those_of_pyarrow(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("1;'a;b';2,5\n2;-;3,5\n")
    convert = pyarrow.csv.ConvertOptions(decimal_point=",", null_values=["-"], strings_can_be_null=True)
    source = Files(
        tmp_path / "a.csv",
        "csv",
        delimiter=";",
        quote_char="'",
        column_names=["n", "t", "x"],
        convert_options=convert,
    )
    assert rows_of(batches_of(source, tmp_path)) == [{"n": 1, "t": "a;b", "x": 2.5}, {"n": 2, "t": None, "x": 3.5}]


@pytest.mark.parametrize(
    ("format", "options", "says"),
    [
        ("csv", {"delimeter": ";"}, "delimeter.*Options of CSV are delimiter, quote_char, column_names"),
        ("csv", {"delimiter": ";;"}, "Options of CSV are"),
        ("csv", {"convert_options": pyarrow.csv.ConvertOptions(include_columns=["n"])}, "may not choose columns"),
        ("jsonl", {"delimiter": ";"}, "delimiter is for format='csv'"),
        ("text", {"schema": pa.schema({"n": pa.int64()})}, "the only column is line"),
    ],
)
def test_options_that_make_no_sense_are_plan_errors(format: Any, options: Any, says: str, tmp_path: Path) -> None:
    (tmp_path / "a").write_text("n\n1\n")
    with pytest.raises(PlanError, match=says):
        Files(tmp_path / "a", format, **options)


@pytest.mark.usefixtures("small_chunks")
def test_text_is_given_line_by_line_as_it_is(tmp_path: Path) -> None:
    lines = ["", '{"not": json', "a,b", "", "  Ä  ", "x" * 100, "end"]
    (tmp_path / "a.log").write_bytes("\r\n".join(lines).encode())
    (tmp_path / "b.log").write_bytes("\n".join(lines).encode() + b"\n")
    assert values_of(Files(tmp_path, "text"), tmp_path) == [*lines, *lines]


def test_columns_of_parquet_files_may_be_in_any_order(tmp_path: Path) -> None:
    pq.write_table(pa.table({"a": [1], "b": ["x"]}), tmp_path / "a.parquet")
    pq.write_table(pa.table({"b": ["y"], "a": [2]}), tmp_path / "b.parquet")
    assert rows_of(batches_of(Files(tmp_path), tmp_path)) == [{"a": 1, "b": "x"}, {"a": 2, "b": "y"}]


# Lines that cannot be read.

BAD = {
    "csv": ("n,m\n1,1\nx,2\n3,3\n4\n5,5\n", {3: "x,2", 5: "4"}, [1, 3, 5]),
    "jsonl": (
        '{"n": 1}\n{"n": \n\n{"n": 3}\n{"m": 4}\nwhat\n{"n": 5}',
        {2: '{"n":', 5: '{"m": 4}', 6: "what"},
        [1, 3, 5],
    ),
    "text": (b"1\n\xff\n3\n", {2: "\ufffd"}, ["1", "3"]),
}


@pytest.mark.parametrize("chunk_bytes", [7, 1 << 20])
@pytest.mark.parametrize("format", BAD)
def test_a_line_that_cannot_be_read_is_skipped_and_reported_with_its_place(
    format: Any, chunk_bytes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flux.sources.text_file.CHUNK_BYTES", chunk_bytes)
    text, bad, good = BAD[format]
    path = tmp_path / "a"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    schema = {"csv": pa.schema({"n": pa.int64(), "m": pa.int64()}), "jsonl": pa.schema({"n": pa.int64()})}.get(format)
    source = Files(path, format, schema=schema)
    with pytest.raises(FluxError, match=f'a cannot be read as {format}.*on_error="skip"'):
        batches_of(source, tmp_path)
    (tmp_path / "files.journal").unlink()
    skipped: list[tuple[int, int, str, str]] = []

    async def read(after: Any) -> list[Any]:
        batches: Any = source.batches(SourceContext(tmp_path, lambda *record: skipped.append(record)), after)
        async with contextlib.aclosing(batches):
            return [batch async for batch in batches]

    given = trio.run(read, None)
    assert [next(iter(row.values())) for row in rows_of(given)] == good
    expected = [(nth, line, f"{path}, line {line}: {bad[line]}") for nth, line in enumerate(bad, 1)]
    assert [record[:3] for record in skipped] == expected
    for batch in given:
        skipped.clear()
        trio.run(read, batch.offset)
        assert [record[:3] for record in skipped] == expected[len(expected) - len(skipped) :], "numbered alike"


@pytest.mark.parametrize(
    ("format", "text"),
    [("csv", "n,m\n1,1\n4\n5,5\n"), ("jsonl", '{"n": 1, "m": 1}\nwhat\n{"n": 5, "m": 5}\n')],
)
def test_the_columns_are_known_though_some_of_the_first_lines_cannot_be_read(
    format: Any, text: str, tmp_path: Path
) -> None:
    path = tmp_path / "a"
    path.write_text(text)
    flow = flux.Dataflow("bad lines")
    flow.source(Files(path, format)).sink(flux.sinks.Collect())
    with pytest.raises(FluxError, match=f'a cannot be read as {format} with the columns n int64, m int64.*"skip"'):
        flow.run()
    report = flow.run(on_error="skip")
    assert report.table.to_pylist() == [{"n": 1, "m": 1}, {"n": 5, "m": 5}]
    assert report.skipped == 1


@pytest.mark.parametrize(
    ("format", "text"),
    [
        ("csv", "n\n1,2\n3,4\n5\n"),
        ("jsonl", 'what\nis\n{"n": 1}\n'),
        ("jsonl", '{"n": 1}\n{"n": "one"}\n{"n": 2}\n'),
    ],
)
def test_a_file_most_of_which_is_something_else_is_a_plan_error(format: Any, text: str, tmp_path: Path) -> None:
    (tmp_path / "a").write_text(text)
    with pytest.raises(PlanError, match=rf"a cannot be read as {format}: .*name its columns with schema=\.\.\."):
        Files(tmp_path / "a", format)


def test_lines_that_were_skipped_are_in_the_report_once_though_the_ingress_was_killed(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    bad = {40, 1_500}
    path.write_text("".join("oops\n" if n in bad else f'{{"n": {n}}}\n' for n in range(2_000)))
    flow, sink = flux.Dataflow("bad lines"), flux.sinks.Collect()
    source = Files(path, "jsonl", follow=True, schema=pa.schema({"n": pa.int64()}))
    flow.source(source).filter(lambda row: True).sink(sink)
    with flow.start(on_error="skip") as run:
        for more in (1_998, 1_999):
            run.wait_for_output(more)
            os.kill(run._driver.processes.live("ingress").pid, signal.SIGKILL)
            with path.open("a") as file:
                file.write(f'{{"n": {more + 2}}}\nworse\n')
        run.wait_for_output(2_000)
        run._driver.wait(lambda state: state.dropped_rows.skipped == 4, 60)
        assert run._run_state.dropped_rows.skipped == 4
        rows = run._run_state.dropped_rows.rows
    assert [(row.step, row.row) for row in rows] == [("source Files", n) for n in (41, 1_501, 2_002, 2_004)]
    assert rows[0].values == f"{path}, line 41: oops" and "JSON" in rows[0].error
