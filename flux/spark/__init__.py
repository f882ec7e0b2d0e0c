"""Streams in from Spark, and Spark's own stateful operators, unchanged, under Flux."""

from flux.spark.group_state import pandas_with_state
from flux.spark.java import check_java
from flux.spark.micro_batches import MicroBatches
from flux.spark.processor import stateful_processor
from flux.spark.static import Frame, to_dataframe
from flux.spark.stream import Stream

__all__ = [
    "Frame",
    "MicroBatches",
    "Stream",
    "check_java",
    "pandas_with_state",
    "stateful_processor",
    "to_dataframe",
]
