"""What a stream must know of its Spark query: a free name, how it ended, and whether its checkpoint was used before."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["free_name", "has_commits", "has_read_all"]


def free_name(spark: Any, wanted: str) -> str:
    """Return `wanted`, with a number if an active query has that name: Spark refuses a second one."""
    taken = {query.name for query in spark.streams.active}
    name, number = wanted, 1
    while name in taken:
        number += 1
        name = f"{wanted}-{number}"
    return name


def has_read_all(query: Any, trigger: Mapping[str, Any]) -> bool:
    """Whether a query that has ended without an error read everything that its trigger asks for.

    A query that was stopped ends in the same way; only Spark's own note that it found no new data differs. ``once``
    ends after a micro-batch, without that note; a micro-batch that was stopped has no progress.
    """
    if not trigger.keys() & {"availableNow", "once"}:
        return False
    try:
        is_once_over = "once" in trigger and query.lastProgress is not None
        return is_once_over or bool(query._jsq.streamingQuery().noNewData())
    except Exception:
        return False  # Spark's JVM is gone.


def has_commits(spark: Any, checkpoint: str) -> bool:
    """Whether Spark has committed a micro-batch in this checkpoint, which may be in any file system that it knows."""
    path = spark._jvm.org.apache.hadoop.fs.Path(f"{checkpoint}/commits")
    files = path.getFileSystem(spark.sparkContext._jsc.hadoopConfiguration())
    return bool(files.exists(path)) and any(status.getPath().getName().isdigit() for status in files.listStatus(path))
