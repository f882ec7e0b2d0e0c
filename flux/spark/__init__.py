"""Spark as a source and a sink, sites on its executors, and its own stateful operators, unchanged."""

from .cluster.executor_sites import Cluster
from .java import check_java
from .operators.group_state import pandas_with_state
from .operators.processor import stateful_processor
from .session import register
from .sink.outlet import Outlet
from .source.micro_batches import MicroBatches
from .source.spark_stream import Stream
from .source.static_frames import Frame, to_dataframe

__all__ = [
    "Cluster",
    "Frame",
    "MicroBatches",
    "Outlet",
    "Stream",
    "check_java",
    "pandas_with_state",
    "register",
    "stateful_processor",
    "to_dataframe",
]
