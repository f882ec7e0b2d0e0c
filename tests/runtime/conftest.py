"""Fixtures of the tests with real processes."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from experiments import dmz

from .commands import JOB, ROOT, SECRET, Processes
from .fakes import FakeController, FakeEgress, FakeIngress, FakeWorker


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Runs have fake processes; calling it replaces one of them by name."""

    def use(**processes: type[Any]) -> None:
        for name, process in processes.items():
            monkeypatch.setattr(f"flux.run.{name}", process)

    use(ControllerProcess=FakeController, IngressProcess=FakeIngress, EgressProcess=FakeEgress, Worker=FakeWorker)
    return use


@pytest.fixture
def processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Processes]:
    (tmp_path / "job.py").write_text(JOB)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("FLUX_SECRET", SECRET)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    processes = Processes(tmp_path)
    yield processes
    sys.modules.pop("job", None)
    processes.end()


@pytest.fixture(scope="session")
def packets() -> list[pa.RecordBatch]:
    return dmz.packets(150_000, batch_rows=4_096)


@pytest.fixture(scope="session")
def expected(packets: list[pa.RecordBatch]) -> pa.Table:
    """What a plain loop makes of them."""
    return dmz.plain_table(packets)
