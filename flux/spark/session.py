"""Preparation of a Spark session for Flux: registers the format "flux", and ships Flux to the executors."""

from __future__ import annotations

import sys
from typing import Any

from ..types.errors import PlanError
from .archive import archive, is_archived

_ARCHIVE_ATTRIBUTE = "_flux_archive"


def check_classic(spark: Any, owner: str) -> None:
    """Raise `PlanError` for a session of Spark Connect, and for what is not a session."""
    if type(spark).__module__.startswith("pyspark.sql.connect"):
        raise PlanError(
            f"{owner}: this is a session of Spark Connect, whose driver is on another host, and Flux runs beside the "
            "driver. Make a classic session in a program that is submitted to the cluster: "
            "SparkSession.builder.master(...), not remote(...). With Spark Connect, flux.spark.Frame, to_dataframe, "
            "stateful_processor and pandas_with_state work"
        )
    if not hasattr(spark, "sparkContext"):
        raise PlanError(f"{owner}: a SparkSession was expected, got a {type(spark).__name__}")


def register(spark: Any) -> None:
    """Register the format "flux" with the session, and ship Flux to its executors; repeated calls are harmless.

    `flux.spark.Stream` and `flux.spark.Cluster` call it themselves; ``spark.readStream.format("flux")`` needs it.
    """
    from pyspark import cloudpickle

    from .source import staging_protocol, writer

    check_classic(spark, "flux.spark.register")
    context = spark.sparkContext
    if context.master.startswith("local") and context.pythonExec == "python3":
        # That Python is Spark's default, not a choice of the user's. It may differ from ours and lack pyarrow.
        context.pythonExec = sys.executable
    ship(context)
    # Pickled by value, tasks that write need msgpack and pyarrow but not Flux. Spark runs each
    # commit in a new process: this saves it the import of all of Flux, which takes as long as a small micro-batch.
    cloudpickle.register_pickle_by_value(staging_protocol)
    cloudpickle.register_pickle_by_value(writer)
    spark.dataSource.register(writer.FluxSink)


def activate(spark: Any) -> None:
    """Activate the session in this thread: formats are looked up in the active one, and a new thread has none."""
    spark._get_j_spark_session_class(spark._jvm).setActiveSession(spark._jsparkSession)


def ship(context: Any) -> None:
    """Ship Flux to the executors of an application, once."""
    if not is_archived() and not hasattr(context, _ARCHIVE_ATTRIBUTE):
        path = archive()
        context.addPyFile(path)
        setattr(context, _ARCHIVE_ATTRIBUTE, path)


def driver_host(context: Any) -> str:
    """Return the host name at which executors reach this machine."""
    if context.master.startswith("local[") or context.master == "local":
        return "127.0.0.1"  # The executor is in the driver's process.
    host: str = context.getConf().get("spark.driver.host")
    return host
