"""Stateful Python dataflows that do not stop."""

import importlib
import logging
from typing import TYPE_CHECKING, Any

from . import operators, sinks, sources
from .batch import Batch
from .cluster import Cluster, open_cluster
from .dataflow import Dataflow, Stream
from .errors import (
    AuthError,
    DataLost,
    FluxError,
    NoSites,
    OperatorError,
    PlanError,
    SourceEnded,
    StateError,
)
from .operator import Context, KeyedOperator, Operator, PooledOperator
from .punctuation import Punctuation
from .report import Report
from .run import Run
from .status import Status
from .wrapping import wrap
from .wrapping_bytewax import stream_time, wrap_bytewax

if TYPE_CHECKING:
    from . import spark

__all__ = [
    "AuthError",
    "Batch",
    "Cluster",
    "Context",
    "DataLost",
    "Dataflow",
    "FluxError",
    "KeyedOperator",
    "NoSites",
    "Operator",
    "OperatorError",
    "PlanError",
    "PooledOperator",
    "Punctuation",
    "Report",
    "Run",
    "SourceEnded",
    "StateError",
    "Status",
    "Stream",
    "open_cluster",
    "operators",
    "sinks",
    "sources",
    "spark",
    "stream_time",
    "wrap",
    "wrap_bytewax",
]

# Nothing is written unless the program, or the command line, sets logging up.
logging.getLogger("flux").addHandler(logging.NullHandler())


def __getattr__(name: str) -> Any:
    """`flux.spark` is imported when it is first used: PySpark is an extra."""
    if name == "spark":
        return importlib.import_module("flux.spark")
    raise AttributeError(f"module 'flux' has no attribute {name!r}")
