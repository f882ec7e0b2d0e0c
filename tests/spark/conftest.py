"""Fixtures for tests of the hand-off: ingresses on one directory, and one Spark session for all tests."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
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
    from pyspark.sql import SparkSession

    import flux.spark  # noqa: F401  # sets PYSPARK_PYTHON, which a session reads when it is made

    manager = "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    session = (
        SparkSession.builder.master("local[2,4]")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.log.level", "OFF")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.streaming.checkpoint.fileChecksum.enabled", "false")
        .config("spark.sql.streaming.checkpointFileManagerClass", manager)
        .getOrCreate()
    )
    yield session
    session.stop()
