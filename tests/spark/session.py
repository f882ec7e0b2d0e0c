"""The Spark session of the tests."""

from __future__ import annotations

from typing import Any

_CHECKPOINTS = "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
_STATE = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"

# What runs for a minute is not worth optimising: that, and a parallel collector, took a third of the CPU.
_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


def new_session() -> Any:
    """A session for small streams: two partitions, nothing on the screen, little written for each micro-batch."""
    import more_processors
    import processors
    import suite_processors
    import suite_times
    from pyspark import cloudpickle
    from pyspark.sql import SparkSession

    import flux.spark  # noqa: F401  # sets PYSPARK_PYTHON, which a session reads when it is made
    from experiments.dmz import sessions

    # Spark's workers cannot import the folders of the tests and of the experiments.
    cloudpickle.register_pickle_by_value(processors)
    cloudpickle.register_pickle_by_value(more_processors)
    cloudpickle.register_pickle_by_value(suite_processors)
    cloudpickle.register_pickle_by_value(suite_times)
    cloudpickle.register_pickle_by_value(sessions)
    return (
        SparkSession.builder.master("local[2,4]")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.log.level", "OFF")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.streaming.checkpoint.fileChecksum.enabled", "false")
        .config("spark.sql.streaming.checkpointFileManagerClass", _CHECKPOINTS)
        .config("spark.sql.streaming.stateStore.providerClass", _STATE)  # `transformWithState` needs it.
        .config("spark.driver.extraJavaOptions", _JAVA)
        .getOrCreate()
    )
