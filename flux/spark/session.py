"""A Spark session made ready for Flux: the format "flux" is known to it, and its executors have Flux."""

from __future__ import annotations

import sys
from typing import Any

from .archive import archive, travels_already

_SHIPPED = "_flux_archive"


def register(spark: Any) -> None:
    """Make the format "flux" known to the session, and carry Flux to its executors; as often as one likes.

    `flux.spark.Stream` and `flux.spark.Cluster` call it themselves; ``spark.readStream.format("flux")`` needs it.
    """
    from pyspark import cloudpickle

    from .source import staging_protocol, writer

    context = spark.sparkContext
    if context.master.startswith("local") and context.pythonExec == "python3":
        # Nobody chose that Python: it is Spark's default, and may be another one than ours, without pyarrow.
        context.pythonExec = sys.executable
    ship(context)
    # By value, tasks that write need msgpack and pyarrow but not Flux. It also spares each commit, which Spark runs in
    # a new process, the import of all of Flux: as long as a whole small micro-batch takes.
    cloudpickle.register_pickle_by_value(staging_protocol)
    cloudpickle.register_pickle_by_value(writer)
    spark.dataSource.register(writer.FluxSink)


def activate(spark: Any) -> None:
    """Let this thread know the session: formats are looked up in the active one, and a new thread has none."""
    spark._get_j_spark_session_class(spark._jvm).setActiveSession(spark._jsparkSession)


def ship(context: Any) -> None:
    """Carry Flux to the executors of an application, once."""
    if not travels_already() and not hasattr(context, _SHIPPED):
        path = archive()
        context.addPyFile(path)
        setattr(context, _SHIPPED, path)


def driver_host(context: Any) -> str:
    """Where executors reach this machine."""
    if context.master.startswith("local[") or context.master == "local":
        return "127.0.0.1"  # They are in one process with the driver.
    host: str = context.getConf().get("spark.driver.host")
    return host
