"""What `Files` promises: rows in the order of names, behind any offset the same ones, and what is added is followed."""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import tempfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
import trio
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st

from flux.sources import Files, files, formats
from flux.types.errors import FluxError, PlanError

from .reading import Followed, batches_of, check_offsets, numbers, rows_of, values_of


def write(path: Path, table: pa.Table, end: str = "\n") -> None:
    if path.suffix == ".parquet":
        pq.write_table(table, path, row_group_size=7)
    elif path.suffix == ".csv":
        path.write_text("n\n" + "\n".join(str(n) for n in table["n"].to_pylist()) + end)
    else:
        path.write_text("\n".join(json.dumps(row) for row in table.to_pylist()) + end)


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that small files are read in many pieces."""
    monkeypatch.setattr("flux.sources.text_file.CHUNK_BYTES", 40)
    monkeypatch.setattr(formats, "PARQUET_BATCH_ROWS", 5)
    monkeypatch.setattr("flux.sources.files.DEFAULT_BATCH_ROWS", 3)


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("format", ["parquet", "csv", "jsonl"])
@pytest.mark.parametrize("end", ["\n", ""])
def test_files_are_read_in_the_order_of_names_and_from_any_offset(format: Any, end: str, tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    for name, first, count in (("b", 25, 40), ("a", 0, 25), ("c", 65, 1)):
        write(data / f"{name}.{format}", numbers(first, count), end)
    (data / "_SUCCESS").write_text("")
    (data / f".hidden.{format}").write_text("nothing")
    (data / "README").write_text("about these files")
    for path in (data, data / f"*.{format}"):
        run = tmp_path / path.name.replace("*", "glob")
        run.mkdir(exist_ok=True)
        assert values_of(Files(path, format), run) == list(range(66))
        shutil.rmtree(run) if run != data else (run / "files.journal").unlink()
        run.mkdir(exist_ok=True)
        check_offsets(lambda path=path: Files(path, format), run)
    assert values_of(Files(data / f"a.{format}", format), tmp_path) == list(range(25))


@pytest.mark.usefixtures("small_chunks")
def test_quoted_values_may_hold_line_breaks(tmp_path: Path) -> None:
    values = ['say "hi"\nand go', "plain", "a,b\n\n", "x" * 100 + "\n" + "y" * 100, "last"]
    table = pa.table({"t": values, "n": range(5)})
    pyarrow.csv.write_csv(table, tmp_path / "a.csv")
    assert rows_of(batches_of(Files(tmp_path, "csv"), tmp_path)) == table.to_pylist()


def test_empty_files_and_lines_bring_no_rows(tmp_path: Path) -> None:
    write(tmp_path / "a.jsonl", numbers(0, 2))
    (tmp_path / "b.jsonl").write_text("")
    (tmp_path / "c.jsonl").write_text('\n\n{"n": 2}\n\n')
    assert values_of(Files(tmp_path, "jsonl"), tmp_path) == [0, 1, 2]


def test_a_csv_file_with_names_alone_brings_no_rows(tmp_path: Path) -> None:
    write(tmp_path / "a.csv", numbers(0, 2))
    (tmp_path / "b.csv").write_text("n\n")
    (tmp_path / "c.csv").write_text("n")
    assert values_of(Files(tmp_path, "csv"), tmp_path) == [0, 1]


def test_missing_fields_of_json_are_null(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"a": 1, "b": "x"}\n{"b": "y"}\n')
    assert rows_of(batches_of(Files(tmp_path, "jsonl"), tmp_path)) == [{"a": 1, "b": "x"}, {"a": None, "b": "y"}]


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("b.csv", "m\n1\n", r"b\.csv has the columns m; the first file had n"),
        ("b.csv", "n\nword\n", r"b\.csv cannot be read as csv with the columns n int64, between bytes 2 and 7"),
        ("b.jsonl", '{"n": 1, "m": 2}\n', r"b\.jsonl cannot be read as jsonl"),
        ("b.jsonl", "no json\n", r"b\.jsonl cannot be read as jsonl"),
        ("b.parquet", "no parquet", r"b\.parquet cannot be read"),
    ],
)
def test_a_file_that_does_not_fit_is_an_error_that_names_it(name: str, text: str, says: str, tmp_path: Path) -> None:
    format: Any = name.removeprefix("b.")
    write(tmp_path / f"a.{format}", numbers(0, 1))
    (tmp_path / name).write_text(text)
    with pytest.raises(FluxError, match=says):
        batches_of(Files(tmp_path, format), tmp_path)


def test_a_parquet_file_with_other_columns_is_named(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", numbers(0, 1))
    pq.write_table(pa.table({"n": ["x"]}), tmp_path / "b.parquet")
    with pytest.raises(FluxError, match=r"b\.parquet has the columns n string; the first file had n int64"):
        batches_of(Files(tmp_path), tmp_path)


def test_files_that_are_not_there_are_a_plan_error(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match=r"no files with names that end in \.csv at"):
        Files(tmp_path, "csv")
    with pytest.raises(PlanError, match="there are no files at"):
        Files(tmp_path / "nothing.csv", "csv", follow=True)
    (tmp_path / "broken.parquet").write_text("what?")
    with pytest.raises(PlanError, match=r"broken\.parquet cannot be read"):
        Files(tmp_path)
    with pytest.raises(PlanError, match="format is 'parquet' or 'csv' or 'jsonl' or 'text', got 'xml'"):
        Files(tmp_path, "xml")  # type: ignore[arg-type]


@pytest.mark.parametrize("format", ["parquet", "csv", "jsonl"])
def test_a_file_that_was_cut_or_removed_is_an_error_when_it_is_read_again(format: Any, tmp_path: Path) -> None:
    path = tmp_path / f"a.{format}"
    write(path, numbers(0, 20))
    source = Files(path, format)
    [batch] = batches_of(source, tmp_path)
    write(path, numbers(0, 10))
    says = rf"a\.{format} was read beyond .* removed, cut or replaced .* Its rows cannot be read again"
    with pytest.raises(FluxError, match=says):
        batches_of(source, tmp_path, batch.offset)
    path.unlink()
    with pytest.raises(FluxError, match=says):
        batches_of(source, tmp_path, batch.offset)


@pytest.fixture
def fast_polls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flux.sources.files.POLL_EVERY_S", 0.001)


@pytest.mark.usefixtures("fast_polls")
@pytest.mark.parametrize("format", ["csv", "jsonl"])
def test_lines_that_are_appended_are_followed_when_they_are_whole(format: Any, tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    row = "%d" if format == "csv" else '{"n": %d}'
    write(data / f"b.{format}", numbers(0, 2))
    source = Files(data, format, follow=True)

    def add(name: str, text: str) -> None:
        with (data / f"{name}.{format}").open("a") as file:
            file.write(text)

    async def main() -> None:
        async with contextlib.aclosing(Followed(source, tmp_path)) as followed:
            assert await followed.more(2) == [0, 1]
            # Half a line, then a new file that comes first by name, with half a line of names.
            add("b", (row % 2)[:-1] if format == "jsonl" else "1")
            add("a", "n" if format == "csv" else "")
            add("c", ("n\n" if format == "csv" else "") + row % 3 + "\n")
            assert await followed.more(1) == [3]
            add("b", "}\n" if format == "jsonl" else "2\n")
            assert await followed.more(1) == [2 if format == "jsonl" else 12]
            add("a", ("\n" if format == "csv" else "") + row % 4 + "\n")
            assert await followed.more(1) == [4]
            add("c", row % 5 + "\n")
            add("b", row % 6 + "\n" + row % 7 + "\n")
            assert sorted(await followed.more(3)) == [5, 6, 7]
            values, offsets = followed.values, followed.offsets
        for count, offset in offsets:
            async with contextlib.aclosing(Followed(source, tmp_path, offset)) as again:
                if count < len(values):
                    assert await again.more(len(values) - count) == values[count:]
                add("b", row % 8 + "\n")
                assert await again.more(1) == [8], "and it goes on behind what was read before"
                values = [*values, 8]

    trio.run(main)


@pytest.mark.usefixtures("fast_polls")
def test_new_parquet_files_are_followed_when_they_are_whole(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    source = Files(data, follow=True, schema=numbers(0, 0).schema)

    async def main() -> None:
        async with contextlib.aclosing(Followed(source, tmp_path)) as followed:
            write(data / "b.parquet", numbers(0, 9))
            assert await followed.more(9) == list(range(9))
            write(tmp_path / "whole.parquet", numbers(9, 9))
            content = (tmp_path / "whole.parquet").read_bytes()
            (data / "a.parquet").write_bytes(content[:50])
            write(data / "c.parquet", numbers(18, 2))
            assert await followed.more(2) == [18, 19]
            (data / "a.parquet").write_bytes(content)
            assert await followed.more(9) == list(range(9, 18))
        async with contextlib.aclosing(Followed(source, tmp_path, followed.offsets[0][1])) as again:
            assert await again.more(11) == [18, 19, *range(9, 18)], "in the order in which they were read"

    trio.run(main)


@pytest.mark.usefixtures("fast_polls")
def test_a_followed_file_that_shrinks_is_an_error(tmp_path: Path) -> None:
    write(tmp_path / "a.csv", numbers(0, 5))

    async def main() -> None:
        async with contextlib.aclosing(Followed(Files(tmp_path / "a.csv", "csv", follow=True), tmp_path)) as followed:
            await followed.more(5)
            os.truncate(tmp_path / "a.csv", 4)
            with pytest.raises(FluxError, match=r"a\.csv was read up to 12, .* it was cut or overwritten"):
                await followed.more(1)

    trio.run(main)


@pytest.mark.usefixtures("fast_polls")
def test_files_that_grow_in_turn_for_ever_do_not_fill_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flux.sources.segments.SHORTEN_AT_BYTES", 1_000)
    data = tmp_path / "data"
    data.mkdir()

    async def main() -> None:
        source = Files(data, "jsonl", follow=True, schema=pa.schema({"n": pa.int64()}))
        async with contextlib.aclosing(Followed(source, tmp_path)) as followed:
            largest = 0
            for n in range(100):
                with (data / f"{'ab'[n % 2]}.jsonl").open("a") as file:
                    file.write(f'{{"n": {n}}}\n')
                await followed.more(1)
                followed.release(1)
                largest = max(largest, (tmp_path / files.JOURNAL).stat().st_size)
        assert followed.values == list(range(100))
        assert largest < 2_500

    trio.run(main)


@pytest.mark.parametrize("shorten_at", [0, 1 << 20])
@settings(max_examples=25)
@given(seed=st.integers(0, 10**6), chunk=st.integers(5, 60))
def test_any_order_of_growing_is_read_again_alike(shorten_at: int, seed: int, chunk: int) -> None:
    chance = random.Random(seed)

    async def main(data: Path, run: Path) -> None:
        source = Files(data, "jsonl", follow=True, schema=pa.schema({"n": pa.int64()}))
        written = 0
        followed = Followed(source, run)
        for _ in range(chance.randint(1, 6)):
            came = 0
            for name in chance.sample("abcd", chance.randint(1, 4)):
                with (data / f"{name}.jsonl").open("a") as file:
                    for _ in range(chance.randint(1, 6)):
                        file.write(f'{{"n": {written}}}\n')
                        written, came = written + 1, came + 1
            await followed.more(came)
            followed.release(chance.randint(0, 5))
        await followed.aclose()
        assert sorted(followed.values) == list(range(written))
        # What was released is not asked for again; the last batch of it may be where the ingress goes on.
        count, offset = chance.choice(followed.offsets[max(0, followed.released - 1) :])
        again = Followed(source, run, offset)
        if count < written:
            assert await again.more(written - count) == followed.values[count:]
        await again.aclose()

    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr("flux.sources.text_file.CHUNK_BYTES", chunk)
        patch.setattr("flux.sources.segments.SHORTEN_AT_BYTES", shorten_at)
        patch.setattr("flux.sources.files.POLL_EVERY_S", 0.001)
        patch.setattr("flux.sources.files.DEFAULT_BATCH_ROWS", 2)
        data = Path(folder, "data")
        data.mkdir()
        trio.run(main, data, Path(folder))
