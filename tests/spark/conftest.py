"""Fixtures for tests of the hand-off: ingresses on one directory, and one Spark session for all tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from session import new_session
from spark_ingress import Ingress, IngressFactory

import flux


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


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    try:
        flux.spark.check_java()
    except flux.FluxError as error:
        pytest.skip(str(error))
    session = new_session()
    yield session
    session.stop()
