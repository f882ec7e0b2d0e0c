"""A standalone cluster, its master and worker processes of their own, and a job that is submitted as users do."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pyspark
import pytest

pytestmark = pytest.mark.gauntlet

HERE = Path(__file__).parent / "standalone"
BIN = Path(pyspark.__file__).parent / "bin"
ROWS, KEYS = 20_000, 40
PATIENCE_S = 120.0


@contextmanager
def daemon(folder: Path, kind: str, *arguments: str) -> Iterator[Path]:
    """A process of the cluster's; what it writes is in the file."""
    said = folder / f"{kind}.log"
    environment = os.environ | {"SPARK_HOME": str(BIN.parent), "PYSPARK_PYTHON": sys.executable}
    command = [str(BIN / "spark-class"), f"org.apache.spark.deploy.{kind.lower()}.{kind}", *arguments]
    with said.open("wb") as file:
        process = subprocess.Popen(command, cwd=folder, env=environment, stdout=file, stderr=file)
    try:
        yield said
    finally:
        process.terminate()
        process.wait(60)


def await_text(path: Path, pattern: str) -> str:
    """What the pattern's group has found in the file, once it is there."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        if found := re.search(pattern, path.read_text()):
            return found[1]
        threading.Event().wait(0.1)
    raise AssertionError(f"{pattern} did not come within {PATIENCE_S:g} s:\n{path.read_text()}")


def test_a_job_that_is_submitted_to_a_standalone_cluster_outlives_an_executor(tmp_path: Path) -> None:
    with ExitStack() as stack:
        begin = ["--host", "127.0.0.1", "--port", "0", "--webui-port", "0"]
        log = stack.enter_context(daemon(tmp_path, "Master", *begin))
        master = await_text(log, r"Starting Spark master at (spark://\S+)")
        work = ["--work-dir", str(tmp_path / "work"), "--cores", "3", "--memory", "3g"]
        worker = stack.enter_context(daemon(tmp_path, "Worker", *begin, *work, master))
        await_text(worker, r"(Successfully registered with master)")
        options = ["--executor-cores", "1", "--total-executor-cores", "3", "--executor-memory", "1g"]
        options += ["--py-files", str(HERE / "carried_ops.py"), "--conf", "spark.driver.host=127.0.0.1"]
        done = subprocess.run(
            [str(BIN / "spark-submit"), "--master", master, *options, str(HERE / "job.py")],
            cwd=tmp_path,
            env=os.environ | {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"},
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    figures = json.loads(done.stdout.splitlines()[-1])
    totals = [0] * KEYS
    expected = []
    for n in range(ROWS):
        totals[n % KEYS] += 2 * n
        expected.append([n % KEYS, totals[n % KEYS]])
    assert figures["rows"] == expected
    assert figures["failures"] == ["site-1"]
    assert all(".zip/" in where for where in figures["flux"]), f"Flux came from {figures['flux']}, not with the job"
