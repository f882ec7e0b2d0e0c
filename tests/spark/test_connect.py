"""Spark Connect: what works with its sessions, and what is refused with what to do."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from spark_ingress import DEADLINE_S

from flux.spark import Cluster, register
from flux.types.errors import PlanError

PROGRAM = Path(__file__).with_name("connect_program.py")
CONNECT = type("SparkSession", (), {"__module__": "pyspark.sql.connect.session"})


@pytest.mark.parametrize("use", [Cluster, register])
def test_a_session_of_spark_connect_is_called_that(use: Any) -> None:
    """A class of that module stands in for the session, which needs grpcio; the test below has the real one."""
    with pytest.raises(PlanError, match=r"a session of Spark Connect.* SparkSession.builder.master"):
        use(CONNECT())
    with pytest.raises(PlanError, match="a SparkSession was expected, got a list"):
        use([])


@pytest.mark.long
def test_static_frames_and_operators_work_and_the_rest_is_refused() -> None:
    pytest.importorskip("grpc", reason="Spark Connect needs pip install 'pyspark[connect]'")
    # A program of its own: a process has sessions of one kind.
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable}
    ran = subprocess.run(
        [sys.executable, str(PROGRAM)], capture_output=True, text=True, timeout=10 * DEADLINE_S, env=environment
    )
    assert ran.returncode == 0, ran.stderr[-2_000:]
    found = json.loads(ran.stdout.splitlines()[-1])
    # In the time zone of the session, not in UTC.
    assert found.pop("rows") == [["a", 5]]
    for name, refused in found.items():
        assert refused.startswith(f"flux.spark.{name}: this is a session of Spark Connect"), refused
