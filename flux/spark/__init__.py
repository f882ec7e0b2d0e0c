"""Streams in from Spark and out to it, sites on its executors, and its own stateful operators, unchanged."""

from flux.spark.cluster import Cluster
from flux.spark.group_state import pandas_with_state
from flux.spark.java import check_java
from flux.spark.micro_batches import MicroBatches
from flux.spark.outlet import Outlet
from flux.spark.processor import stateful_processor
from flux.spark.session import register
from flux.spark.static import Frame, to_dataframe
from flux.spark.stream import Stream

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
