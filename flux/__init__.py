"""Stateful Python dataflows that do not stop."""

import importlib
import importlib.metadata
from typing import TYPE_CHECKING, Any

from . import operators, sinks, sources
from .adapters.bytewax import stream_time, wrap_bytewax
from .adapters.wrap import wrap
from .async_run import AsyncRun, open_cluster
from .dataflow import Dataflow, Stream
from .driver.report import Report
from .driver.status import Status
from .model.batch import Batch
from .model.operator import Context, KeyedOperator, Operator, PooledOperator
from .model.punctuation import Punctuation
from .reconfigure import Change, change, filter, map, remove
from .run import Run
from .types.deprecated import find_old_modules, renamed_attributes
from .types.errors import (
    AuthError,
    ChangeError,
    DataLost,
    FluxError,
    NoSites,
    OperatorError,
    PlanError,
    SinkError,
    SourceEnded,
    SourceError,
    StateError,
)

if TYPE_CHECKING:
    from . import spark

__all__ = [
    "AsyncRun",
    "AuthError",
    "Batch",
    "Change",
    "ChangeError",
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
    "SinkError",
    "SourceEnded",
    "SourceError",
    "StateError",
    "Status",
    "Stream",
    "change",
    "filter",
    "map",
    "open_cluster",
    "operators",
    "remove",
    "sinks",
    "sources",
    "spark",
    "stream_time",
    "wrap",
    "wrap_bytewax",
]

find_old_modules()
_renamed = renamed_attributes("flux", {"Cluster": "flux.async_run.AsyncRun"})


def __getattr__(name: str) -> Any:
    """`flux.spark` is imported when it is first used: PySpark is an extra. So is the version looked up."""
    if name == "spark":
        return importlib.import_module("flux.spark")
    if name == "__version__":
        return _version()
    return _renamed(name)


def _version() -> str:
    """Return the version that the package was installed as; it is written in its metadata alone."""
    try:
        return importlib.metadata.version("flux-dataflow")
    except importlib.metadata.PackageNotFoundError:
        return "unknown"  # It was imported from an archive or a checkout that is not installed.
