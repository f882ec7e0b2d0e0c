"""Batch mode: a static DataFrame as a source, and the result of a run as a DataFrame.

Both pass through the memory of the program that holds the Spark session, as Arrow. Read a DataFrame that does not fit
there as a stream: `flux.spark.Stream` with the trigger ``availableNow``, its default.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from ...driver.report import Report
from ...sources import Table
from ...types.errors import FluxError, PlanError

__all__ = ["Frame", "to_dataframe"]


class Frame(Table):
    """The rows of a static DataFrame, read when the source is created; otherwise a `flux.sources.Table`.

    events = flow.source(flux.spark.Frame(spark.read.parquet(path)))
    """

    def __init__(self, df: Any, rate: float | None = None, batch_rows: int | None = None) -> None:
        if getattr(df, "isStreaming", None) is not False:
            what = "a streaming one" if hasattr(df, "isStreaming") else f"a {type(df).__name__}"
            raise PlanError(
                f"flux.spark.Frame: a Spark DataFrame that is not streaming was expected, got {what}; for a streaming "
                "one use flux.spark.Stream(df), for other data flux.sources.Table"
            )
        super().__init__(df.toArrow(), rate, batch_rows)


def to_dataframe(report: Report, spark: Any) -> Any:
    """Return the output of a run with `flux.sinks.Collect()` as a DataFrame of this session."""
    from ..sink.reader import WIDER

    table = report.table
    if table is None:
        raise FluxError("flux.spark.to_dataframe: the run collected nothing: it needs the sink flux.sinks.Collect()")
    fields = [field.with_type(WIDER.get(field.type, field.type)) for field in table.schema]
    return spark.createDataFrame(table.cast(pa.schema(fields)))
