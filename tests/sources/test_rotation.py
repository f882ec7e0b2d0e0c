"""Files that are rotated, truncated, replaced and removed while they are followed: each row once, or an error."""

from __future__ import annotations

import contextlib
import gzip
import itertools
import os
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import trio

import flux
from flux.sources import Files, file_tracker
from flux.types.errors import FluxError

from .reading import Followed

SCHEMA = pa.schema({"n": pa.int64()})
OPEN = contextlib.ExitStack()


@pytest.fixture(autouse=True)
def fast_polls(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr("flux.sources.files.POLL_EVERY_S", 0.001)
    with OPEN:
        yield


class Log:
    """A log as a daemon writes it: by a handle that stays with the file when its name changes."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.parent.mkdir(exist_ok=True)
        self.reopen()

    def write(self, *numbers: int) -> None:
        self.handle.write(b"".join(b'{"n": %d}\n' % number for number in numbers))

    def reopen(self) -> None:
        self.handle = OPEN.enter_context(self.path.open("ab", buffering=0))

    def replace(self, *numbers: int) -> None:
        """Put another file in its place, as an editor or a copy of elsewhere does."""
        fresh = self.path.with_name("fresh")
        fresh.write_text("".join(f'{{"n": {number}}}\n' for number in numbers))
        fresh.rename(self.path)


Rotation = Callable[[Log], None]


def next_name(log: Log) -> Path:
    return log.path.with_name(f"app.log.{len([*log.path.parent.glob('app.log.*')]) + 1}")


def by_create(log: Log) -> None:
    """As logrotate's `create`: rename, create, and the daemon opens the new file."""
    log.path.rename(next_name(log))
    log.reopen()


def by_copytruncate(log: Log) -> None:
    shutil.copy(log.path, next_name(log))
    os.truncate(log.path, 0)


def by_copytruncate_and_compress(log: Log) -> None:
    copy = next_name(log)
    by_copytruncate(log)
    with gzip.open(f"{copy}.gz", "wb") as file:
        file.write(copy.read_bytes())
    copy.unlink()


def by_removal(log: Log) -> None:
    log.path.unlink()
    log.reopen()


def by_a_name_that_is_followed_too(log: Log) -> None:
    log.path.rename(log.path.with_name(f"app-{len([*log.path.parent.iterdir()])}.log"))
    log.reopen()


ROTATIONS = [by_create, by_copytruncate, by_copytruncate_and_compress, by_removal, by_a_name_that_is_followed_too]
KEEPING = [rotation for rotation in ROTATIONS if rotation is not by_removal]


def files(log: Log) -> Files:
    return Files(log.path.with_name("*.log"), "jsonl", follow=True, schema=SCHEMA)


def following(log: Log, run: Path, after: Any = None) -> contextlib.aclosing[Followed]:
    return contextlib.aclosing(Followed(files(log), run, after))


@pytest.mark.parametrize("rotate", ROTATIONS)
@pytest.mark.parametrize("after", [1, 3, 9])
def test_a_rotated_file_is_read_to_its_end_and_the_new_one_from_its_start(
    rotate: Rotation, after: int, tmp_path: Path
) -> None:
    async def main() -> None:
        log = Log(tmp_path / "logs" / "app.log")
        async with following(log, tmp_path) as followed:
            for first in (200, 300, 400):
                log.write(first, first + 1)
                await followed.more(2)
                log.write(first + 2)
                rotate(log)
                log.write(*range(first + 10, first + 10 + after))
                expected = [first + 2, *range(first + 10, first + 10 + after)]
                assert await followed.more(1 + after) == expected, "shorter than what was read, as long, and longer"

    trio.run(main)


def test_what_is_written_to_a_renamed_file_by_the_old_handle_is_read(tmp_path: Path) -> None:
    async def main() -> None:
        log = Log(tmp_path / "logs" / "app.log")
        async with following(log, tmp_path) as followed:
            log.write(1)
            await followed.more(1)
            old = log.handle
            by_create(log)
            log.write(2)
            assert await followed.more(1) == [2]
            old.write(b'{"n": 3}\n')
            assert await followed.more(1) == [3]
            log.path.with_name("app.log.1").unlink()
            old.write(b'{"n": 4}\n')
            assert await followed.more(1) == [4], "also when it is removed"
            log.write(5)
            assert await followed.more(1) == [5]

    trio.run(main)


def test_a_removed_file_is_let_go_and_its_unfinished_line_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_tracker, "REMOVED_GRACE_S", 0.0)

    def held() -> list[str]:
        links = []
        for fd in os.listdir("/proc/self/fd"):
            with contextlib.suppress(FileNotFoundError):
                links.append(os.readlink(f"/proc/self/fd/{fd}"))
        return [link for link in links if link.endswith("app.log (deleted)")]

    async def main() -> None:
        log = Log(tmp_path / "logs" / "app.log")
        async with following(log, tmp_path) as followed:
            log.write(1)
            log.handle.write(b'{"n": 2}')
            await followed.more(1)
            log.handle.close()
            by_removal(log)
            assert await followed.more(1) == [2]
            log.write(3)
            assert await followed.more(1) == [3]
            assert not held(), "its room on the disk is free"

    trio.run(main)


def cascade(log: Log) -> None:
    """As logrotate with numbers: each older file gets the next name, and the newest the first."""
    for number, suffix in itertools.product(range(9, 0, -1), ("", ".gz")):
        with contextlib.suppress(FileNotFoundError):
            older = log.path.with_name(f"app.log.{number + 1}{suffix}")
            log.path.with_name(f"app.log.{number}{suffix}").rename(older)


def by_numbers(log: Log) -> None:
    cascade(log)
    log.path.rename(log.path.with_name("app.log.1"))
    log.reopen()


def by_numbers_and_copytruncate(log: Log) -> None:
    cascade(log)
    shutil.copy(log.path, log.path.with_name("app.log.1"))
    os.truncate(log.path, 0)


def by_dates_before_the_suffix(log: Log) -> None:
    log.path.rename(log.path.with_name(f"app-2026010{len([*log.path.parent.iterdir()])}.log"))
    log.reopen()


def by_numbers_and_compress(log: Log) -> None:
    by_numbers(log)
    plain = log.path.with_name("app.log.1")
    with gzip.open(f"{plain}.gz", "wb") as file:
        file.write(plain.read_bytes())
    plain.unlink()


SEVERAL = [by_create, by_copytruncate, by_numbers, by_numbers_and_copytruncate, by_dates_before_the_suffix]


@pytest.mark.parametrize("rotate", [*SEVERAL, by_numbers_and_compress])
@pytest.mark.parametrize("is_down", [False, True])
def test_a_file_that_was_rotated_away_between_two_looks_is_read(
    rotate: Rotation, is_down: bool, tmp_path: Path
) -> None:
    async def main() -> None:
        log = Log(tmp_path / "logs" / "app.log")
        log.path.with_name("app.log.0").write_text('{"n": -1}\n')  # From before the run, and not part of it.
        os.utime(log.path.with_name("app.log.0"), (1_700_000_000, 1_700_000_000))
        log.path.with_name("app.log.pos").write_text("what another program keeps there")
        source = Files(log.path, "jsonl", follow=True, schema=SCHEMA)
        async with contextlib.aclosing(Followed(source, tmp_path)) as followed:
            log.write(1, 2)
            await followed.more(2)
            if not is_down:
                for first in (3, 6, 9):
                    log.write(first)
                    rotate(log)
                    log.write(first + 1, first + 2)
                assert await followed.more(9) == [*range(3, 12)]
                log.write(12)
                assert await followed.more(1) == [12]
                return
        for first in (3, 6, 9):
            log.write(first)
            rotate(log)
            log.write(first + 1, first + 2)
        async with contextlib.aclosing(Followed(source, tmp_path, followed.offsets[-1][1])) as again:
            assert await again.more(9) == [*range(3, 12)]
            log.write(12)
            assert await again.more(1) == [12]

    trio.run(main)


@pytest.mark.parametrize("numbers", [[7], [7, 8], [7, 8, 9]], ids=["shorter", "equal", "longer"])
def test_a_file_that_is_replaced_is_another_one(numbers: list[int], tmp_path: Path) -> None:
    async def main() -> None:
        log = Log(tmp_path / "logs" / "app.log")
        async with following(log, tmp_path) as followed:
            log.write(1, 2)
            await followed.more(2)
            log.write(3)
            log.replace(*numbers)
            assert await followed.more(1 + len(numbers)) == [3, *numbers]

    trio.run(main)


@pytest.mark.parametrize("numbers", [[7], [7, 8], [7, 8, 9]], ids=["shorter", "equal", "longer"])
def test_a_file_that_is_overwritten_and_has_no_copy_is_an_error(numbers: list[int], tmp_path: Path) -> None:
    async def main() -> None:
        log = Log(tmp_path / "logs" / "app.log")
        async with following(log, tmp_path) as followed:
            log.write(1, 2)
            await followed.more(2)
            log.path.write_text("".join(f'{{"n": {number}}}\n' for number in numbers))
            with pytest.raises(FluxError, match=r"app\.log was read up to 18, .* cut or overwritten.*no file beside"):
                await followed.more(1)

    trio.run(main)


def test_a_copy_that_the_pattern_names_too_is_an_error(tmp_path: Path) -> None:
    async def main() -> None:
        log = Log(tmp_path / "logs" / "app.log")
        async with following(log, tmp_path) as followed:
            log.write(1, 2)
            await followed.more(2)
            shutil.copy(log.path, log.path.with_name("copy.log"))
            await followed.more(2)
            os.truncate(log.path, 0)
            with pytest.raises(FluxError, match=r"copy\.log is a copy of .*app\.log, and both were read"):
                await followed.more(1)

    trio.run(main)


@pytest.mark.parametrize("rotate", KEEPING)
@pytest.mark.parametrize("resumed_after", [1, 2, 3])
def test_an_ingress_that_is_started_again_finds_the_files_that_were_rotated_meanwhile(
    rotate: Rotation, resumed_after: int, tmp_path: Path
) -> None:
    async def main() -> None:
        log = Log(tmp_path / "logs" / "app.log")
        async with following(log, tmp_path) as followed:
            for number in (1, 2, 3):
                log.write(number)
                await followed.more(1)
        log.write(4)
        rotate(log)
        log.write(*range(5, 15))
        count, offset = followed.offsets[resumed_after - 1]
        async with following(log, tmp_path, offset) as again:
            assert await again.more(14 - count) == [*range(count + 1, 15)]
            log.write(15)
            assert await again.more(1) == [15]
            offsets = again.offsets
        for count, offset in offsets:
            async with following(log, tmp_path, offset) as third:
                missing = [*range(resumed_after + count + 1, 16)]
                assert not missing or await third.more(len(missing)) == missing

    trio.run(main)


def test_a_rotated_file_that_was_read_to_its_end_may_be_removed_while_the_ingress_is_down(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        log = Log(tmp_path / "logs" / "app.log")
        async with following(log, tmp_path) as followed:
            log.write(1)
            await followed.more(1)
            by_create(log)
            for number in (2, 3):  # In between it was seen that the first file does not grow.
                log.write(number)
                await followed.more(1)
        log.path.with_name("app.log.1").unlink()
        async with following(log, tmp_path, followed.offsets[-1][1]) as again:
            for number in (4, 5):
                log.write(number)
                assert await again.more(1) == [number]
        assert "was removed when it was not held open. It was read up to 9" in caplog.text

    trio.run(main)


@pytest.mark.parametrize("numbers", [[7], [7, 8, 9], [7, 8, 9, 10]], ids=["shorter", "equal", "longer"])
@pytest.mark.parametrize("keeps_inode", [True, False])
@pytest.mark.parametrize("resumed_after", [0, 1, 3])
def test_what_cannot_be_read_again_is_an_error_and_never_other_rows(
    resumed_after: int, keeps_inode: bool, numbers: list[int], tmp_path: Path
) -> None:
    async def main() -> None:
        log = Log(tmp_path / "logs" / "app.log")
        async with following(log, tmp_path) as followed:
            for number in (1, 2, 3):
                log.write(number)
                await followed.more(1)
        if keeps_inode:
            log.path.write_text("".join(f'{{"n": {number}}}\n' for number in numbers))
        else:
            log.replace(*numbers)
        offset = followed.offsets[resumed_after - 1][1] if resumed_after else None
        async with following(log, tmp_path, offset) as again:
            with pytest.raises(FluxError, match=r"app\.log was read.* cannot be read"):
                await again.more(1)

    trio.run(main)


def test_a_file_that_was_read_and_compressed_is_not_read_again(tmp_path: Path) -> None:
    async def main() -> None:
        data = tmp_path / "data"
        log = Log(data / "a.jsonl")
        source = Files(data, "jsonl", follow=True, schema=SCHEMA)
        async with contextlib.aclosing(Followed(source, tmp_path)) as followed:
            log.write(1, 2)
            await followed.more(2)
            with gzip.open(data / "a.jsonl.gz", "wb") as file:
                file.write(log.path.read_bytes())
            log.path.unlink()
            Log(data / "b.jsonl").write(3)
            assert await followed.more(1) == [3]

    trio.run(main)


def test_more_files_than_are_held_open_are_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_tracker, "HELD_MAX", 2)

    async def main() -> None:
        logs = [Log(tmp_path / "logs" / f"{name}.log") for name in "abcde"]
        async with following(logs[0], tmp_path) as followed:
            for round in range(3):
                for nth, log in enumerate(logs):
                    log.write(10 * round + nth)
                    assert await followed.more(1) == [10 * round + nth]
            logs[0].path.rename(tmp_path / "logs" / "elsewhere")
            logs[0].write(40)
            assert await followed.more(1) == [40]

    trio.run(main)


# In processes.


def flow_of(log: Log) -> tuple[flux.Dataflow, flux.sinks.Collect]:
    flow, sink = flux.Dataflow("rotated"), flux.sinks.Collect()
    flow.source(files(log)).map(lambda row: {"n": row.n}, output={"n": "int64"}).sink(sink)
    return flow, sink


@pytest.mark.parametrize("rotate", [by_create, by_copytruncate])
def test_a_killed_ingress_reads_on_in_the_rotated_file(rotate: Rotation, tmp_path: Path) -> None:
    log = Log(tmp_path / "logs" / "app.log")
    flow, sink = flow_of(log)
    log.write(*range(100))
    with flow.start(sites=2) as run:
        for first in (100, 300):
            run.wait_for_output(first)
            run.kill("ingress")
            log.write(*range(first, first + 50))
            rotate(log)
            log.write(*range(first + 50, first + 200))
            run.wait_for_output(first + 200)
    assert sorted(sink.table()["n"].to_pylist()) == [*range(500)]


def test_a_killed_ingress_does_not_take_another_file_for_the_one_that_it_read(tmp_path: Path) -> None:
    log = Log(tmp_path / "logs" / "app.log")
    flow, _ = flow_of(log)
    log.write(*range(100))
    with flow.start(sites=2) as run:
        run.wait_for_output(100)
        os.kill(run._driver.processes.live("ingress").pid, signal.SIGSTOP)
        log.replace(*range(1_000, 1_200))
        run.kill("ingress")
        with pytest.raises(FluxError, match=r"app\.log was read.* cannot be read"):
            run.wait(timeout=60)
