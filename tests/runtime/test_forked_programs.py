"""Programs that have used libraries with threads before their flow starts: its processes are forks of the program.

It takes half a minute: each program is an interpreter of its own, with large libraries.
"""

from __future__ import annotations

import ctypes.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

HANG_S = 60.0
FLOW = """
import logging
import flux
logging.basicConfig(format="%(levelname)s %(message)s")
numbers = [{"k": i % 7, "v": i} for i in range(20_000)]

def run(step):
    flow = flux.Dataflow("forked")
    flow.source(flux.sources.Table(numbers)).exchange("k").apply(step).sink(flux.sinks.Collect())
    print(flow.run(sites=2).outputs)

class Plain(flux.KeyedOperator):
    output = {"v": "int64"}
    def on_tuple(self, key, row, state):
        return None, [{"v": row.v}]
"""
USES_POLARS = """
import polars as pl
def total(rows):
    return int(pl.DataFrame(rows).group_by("k").agg(pl.col("v").sum()).sort("k")["v"].sum())
total(numbers)
"""
IN_POLARS = """
class InPolars(flux.KeyedOperator):
    output = {"v": "int64"}
    def on_tuple(self, key, row, state):
        return None, [{"v": total([{"k": 1, "v": row.v}])}]
"""
USES_OPENMP = """
import ctypes, ctypes.util
gomp = ctypes.CDLL(ctypes.util.find_library("gomp"))
nothing = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda _: None)
gomp.GOMP_parallel(nothing, None, 2, 0)
"""
USES_OTHERS = """
import duckdb, numpy as np, pyarrow as pa
from concurrent.futures import ThreadPoolExecutor
matrix = np.random.rand(600, 600)
(matrix @ matrix).sum()
connection = duckdb.connect()
def counted():
    return connection.execute("select count(*) from (select distinct x % 1000 from range(1000000) t(x))").fetchall()
counted()
pa.Table.from_pylist(numbers).group_by("k").aggregate([("v", "sum")])
pool = ThreadPoolExecutor(2)
list(pool.map(abs, [1, 2, 3]))
class InOthers(flux.Operator):
    output = {"v": "int64"}
    def process(self, batch):
        counted(), (matrix @ matrix).sum()
        return batch.emit({"v": batch["v"]})
"""


def program(tmp_path: Path, text: str) -> tuple[int, str, str]:
    """Run a program without a `__main__` guard; its exit status, output and log."""
    path = tmp_path / "program.py"
    path.write_text(text)
    ended = subprocess.run([sys.executable, str(path)], capture_output=True, text=True, timeout=HANG_S, check=False)
    return ended.returncode, ended.stdout, ended.stderr


def test_an_operator_that_would_wait_for_threads_of_polars_is_refused_before_anything_starts(tmp_path: Path) -> None:
    status, out, errors = program(tmp_path, FLOW + USES_POLARS + IN_POLARS + "run(InPolars)")
    assert (status, out) == (1, "")
    last = errors.strip().splitlines()[-1]
    assert "PlanError" in last and "InPolars" in last and "total" in last
    assert "Polars" in last and "polars-0" in last and "flux run" in last


def test_a_polars_that_only_the_program_uses_is_a_warning(tmp_path: Path) -> None:
    status, out, errors = program(tmp_path, FLOW + USES_POLARS + "run(Plain)")
    assert (status, out) == (0, "20000\n"), errors
    assert "WARNING" in errors and "Polars" in errors and "polars-0" in errors


def test_polars_in_an_operator_alone_runs_without_a_warning(tmp_path: Path) -> None:
    text = FLOW + USES_POLARS.replace("\ntotal(numbers)", "") + IN_POLARS + "numbers = numbers[:200]\nrun(InPolars)"
    assert program(tmp_path, text) == (0, "200\n", "")


@pytest.mark.skipif(ctypes.util.find_library("gomp") is None, reason="GNU OpenMP is not installed here")
def test_threads_of_openmp_are_named_with_their_library(tmp_path: Path) -> None:
    status, out, errors = program(tmp_path, FLOW + USES_OPENMP + "run(Plain)")
    assert (status, out) == (0, "20000\n"), errors
    assert "WARNING" in errors and "libgomp" in errors and "OMP_NUM_THREADS=1" in errors


LIMITED = "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, ({0}, {0}))\n"


def test_too_few_file_descriptors_are_an_error_that_says_how_many_are_needed(tmp_path: Path) -> None:
    for limit in (26, 35):
        status, _, errors = program(tmp_path, FLOW + LIMITED.format(limit) + "run(Plain)")
        [needed] = re.findall(rf"needs (\d+) file descriptors in each process, and {limit} are allowed", errors)
        assert status == 1 and f"ulimit -n {needed}" in errors
    assert program(tmp_path, FLOW + LIMITED.format(needed) + "run(Plain)") == (0, "20000\n", "")


def test_threads_that_a_fork_does_not_need_are_no_reason_to_warn(tmp_path: Path) -> None:
    assert program(tmp_path, FLOW + USES_OTHERS + "run(InOthers)") == (0, "20000\n", "")
