"""Stateful Python dataflows that do not stop."""

from . import operators, sinks, sources
from .batch import Batch
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

__all__ = [
    "AuthError",
    "Batch",
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
    "Stream",
    "operators",
    "sinks",
    "sources",
]
