"""Fixtures of the tests with real processes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from .fakes import FakeController, FakeEgress, FakeIngress, FakeWorker


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Runs have fake processes; calling it replaces one of them by name."""

    def use(**processes: type[Any]) -> None:
        for name, process in processes.items():
            monkeypatch.setattr(f"flux.run.{name}", process)

    use(ControllerProcess=FakeController, IngressProcess=FakeIngress, EgressProcess=FakeEgress, Worker=FakeWorker)
    return use
