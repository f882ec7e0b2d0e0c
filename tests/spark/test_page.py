"""The page about Spark: its blocks run as they are printed, with a session of the tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

ROOT = Path(__file__).parent.parent.parent


def test_the_python_of_the_page_runs(spark: Any, tmp_path: Path) -> None:
    from tests.docs.pages import run_page

    (tmp_path / "packets").mkdir()
    packets = pa.table({"src": [n % 7 for n in range(1_000)], "bytes": list(range(1_000))})
    pq.write_table(packets, tmp_path / "packets" / "first.parquet")
    printed = run_page(ROOT / "docs" / "spark.rst", {"__name__": "spark_page", "spark": spark, "data": tmp_path})
    assert printed[0] == "1000\n"
