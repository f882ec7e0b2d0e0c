"""Streams in from Spark, streams out to Spark, and sites on its executors."""

from flux.spark.cluster import Cluster
from flux.spark.outlet import Outlet
from flux.spark.session import register
from flux.spark.stream import Stream

__all__ = ["Cluster", "Outlet", "Stream", "register"]
