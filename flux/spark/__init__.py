"""Streams in from Spark: a streaming DataFrame as the source of a dataflow."""

from flux.spark.stream import Stream

__all__ = ["Stream"]
