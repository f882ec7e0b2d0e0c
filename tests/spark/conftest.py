"""Fixtures for tests of the hand-off: ingresses on one directory, and one Spark session for all tests."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from session import new_session
from spark_ingress import Ingress, IngressFactory


@pytest.fixture
def ingress(tmp_path: Path) -> Iterator[IngressFactory]:
    """Make ingresses that all use one directory, as restarts of one would."""
    made: list[Ingress] = []

    def make(*, hold: bool = False) -> Ingress:
        made.append(Ingress(tmp_path, hold=hold))
        return made[-1]

    yield make
    for one in made:
        one.kill()


def _has_java() -> bool:
    home = os.environ.get("JAVA_HOME")
    return bool((home and (Path(home) / "bin" / "java").exists()) or shutil.which("java"))


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    if not _has_java():
        pytest.skip("Spark needs Java 17 or later, on the PATH or in JAVA_HOME")
    session = new_session()
    yield session
    session.stop()
