"""What a run keeps on disk is for its user alone: directories 0700, files 0600, whatever the umask."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import flux
from flux.driver.remote import join_request
from flux.spark import archive
from flux.storage.private import private_directory
from flux.types.errors import FluxError
from tests.runtime.live import Live
from tests.runtime.waiting import wait_until


@pytest.fixture(autouse=True)
def open_to_all() -> Iterator[None]:
    """The umask of a careless user."""
    before = os.umask(0)
    yield
    os.umask(before)


def open_to_others(root: Path) -> list[str]:
    """What is in a directory, and the directory itself, that others may read or write; sockets are in it too."""
    found = []
    for path in [root, *root.rglob("*")]:
        mode = path.lstat().st_mode
        if mode & 0o077 and not stat.S_ISSOCK(mode):
            found.append(f"{path.relative_to(root)} {stat.filemode(mode)}")
    return found


def test_journals_notes_and_directories_of_a_run_are_private(tmp_path: Path) -> None:
    flow = flux.Dataflow("private")
    flow.source(Live([[1, 2, 3]])).filter(lambda row: True).sink(flux.sinks.Jsonl(tmp_path / "out.jsonl"))
    with flow.start(record=tmp_path / "record") as run:
        run.wait_for_output(3)
        names = {path.name for path in run.directory.rglob("*")}
        assert {"numbering.journal", "egress.journal", "sink.token"} <= names, "what is looked at is there"
        assert not open_to_others(run.directory)
        wait_until(lambda: any((tmp_path / "record").iterdir()), "nothing is recorded")
        assert not open_to_others(tmp_path / "record")
        run.wait(timeout=60)
    assert (tmp_path / "out.jsonl").stat().st_mode & 0o777 == 0o666, (
        "the output is for others too, if the umask says so"
    )


def test_the_journal_of_a_remote_end_is_private(tmp_path: Path) -> None:
    join_request._claim("ingress", tmp_path / "journal", {"run": "r", "started": False})
    assert not open_to_others(tmp_path / "journal")


@pytest.mark.parametrize("mode", [0o755, 0o770, 0o777, 0o701])
def test_a_directory_that_is_open_to_others_is_refused(mode: int, tmp_path: Path) -> None:
    (tmp_path / "journal").mkdir()
    (tmp_path / "journal").chmod(mode)
    with pytest.raises(FluxError, match=r"journal is to hold what only you may read.*chmod 700"):
        join_request._claim("ingress", tmp_path / "journal", {"run": "r", "started": False})
    (tmp_path / "link").symlink_to(tmp_path)
    with pytest.raises(FluxError, match="link is to hold what only you may read"):
        private_directory(tmp_path / "link", "")


def test_a_controller_refuses_a_journal_that_is_open_to_others(tmp_path: Path) -> None:
    (tmp_path / "journal").mkdir()
    (tmp_path / "remote.py").write_text(
        "import flux\nflow = flux.Dataflow('remote')\n"
        "flow.source(flux.sources.Table([{'n': 1}])).filter(bool).sink(flux.sinks.Null())\n"
    )
    flux_command = [sys.executable, "-c", "import sys; from flux.commands.main import main; sys.exit(main())"]
    arguments = ["controller", "remote:flow", "--listen", "127.0.0.1:0", "--sites", "2"]
    ended = subprocess.run(
        [*flux_command, *arguments, "--journal", str(tmp_path / "journal")],
        cwd=tmp_path,
        env=os.environ | {"FLUX_SECRET": "0123456789abcdef" * 4, "PYTHONPATH": os.getcwd()},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ended.returncode != 0 and "is to hold what only you may read" in ended.stderr, ended.stderr


def test_the_archive_for_executors_is_in_a_private_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    written: list[Any] = []
    monkeypatch.setattr(archive, "write_archive", lambda path: written.append(path) or Path(path).touch())
    folder = Path(archive.archive()).parent
    assert written and folder.stat().st_mode & 0o777 == 0o700
    folder.chmod(0o777)
    with pytest.raises(FluxError, match=r"is to hold what only you may read.*TMPDIR"):
        archive.archive()


def test_rows_that_wait_in_a_directory_of_output_are_private_and_the_output_is_not(tmp_path: Path) -> None:
    sink = flux.sinks.Parquet(tmp_path / "out")
    (tmp_path / "run").mkdir()
    sink.open(tmp_path / "run")
    sink.write(pa.record_batch({"n": [1]}), 0, 1)
    assert (tmp_path / "out" / ".flux-open").stat().st_mode & 0o777 == 0o600
    sink.flush()
    [part] = (tmp_path / "out").glob("part-*")
    assert part.stat().st_mode & 0o777 == 0o666
    sink.close()
