"""From Spark through Flux to Spark, each row once, while all that can be killed is. Executors: test_executors.

Its time is Spark's: a query takes seconds to start and to stop, and each micro-batch about one.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from experiments.spark_sites.exactly_once import Pipeline, ends, sites

ROWS = 24_000


def test_whatever_is_killed_the_final_table_is_what_a_batch_computes(spark: Any, tmp_path: Path) -> None:
    pipeline = Pipeline(spark, tmp_path, ROWS, lambda flow: flow.start(sites=3, standby=2))
    said: list[str] = []
    with pipeline.run:
        pipeline.kill_all([*ends(), *sites(["site-1", "site-2", "site-3"])], said.append)
        table = pipeline.finish()
    assert len(said) == 7
    assert pipeline.has_killed("worker") and pipeline.has_killed("query")
    assert table.num_rows == pipeline.expected.num_rows
    assert pipeline.is_exact(table)
