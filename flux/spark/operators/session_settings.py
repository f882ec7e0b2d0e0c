"""The settings of a Spark session on which its pandas forms depend.

Sites have no session, so the settings are read when the plan is made, and are part of the plan. Where the program that
makes the plan has no session, they are Spark's defaults.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from pyspark import SparkContext
from pyspark.sql import SparkSession

__all__ = ["PandasSettings", "session_conf"]

_UNLIMITED = 2**31 - 1
_BYTES = re.compile(r"(\d+)\s*([bkmgtp]?)b?", re.IGNORECASE)


def session_conf() -> Any:
    """Return the settings of the Spark session of this program; None if there is none."""
    # The active session is known only in the thread that created it; the other one in all threads.
    session = SparkSession.getActiveSession()
    if session is None and SparkContext._active_spark_context is not None:
        session = SparkSession._instantiatedSession
    return None if session is None else session.conf


@dataclass(frozen=True, slots=True)
class PandasSettings:
    """The time zone in which times are shown; the size of DataFrames; how those of user code are converted."""

    zone: str
    max_rows: int = 10_000
    max_bytes: int = 64 << 20
    checks_safely: bool = True
    assigns_by_name: bool = True
    coerces_int_to_decimal: bool = False
    prefers_int_extension: bool = False

    @classmethod
    def of_session(cls, zone: str) -> PandasSettings:
        """Return the settings of the Spark session of this program, else Spark's defaults."""
        conf = session_conf()
        if conf is None:
            return cls(zone)

        def is_set(name: str) -> bool:
            return str(conf.get(f"spark.sql.{name}")).lower() == "true"

        max_rows = int(conf.get("spark.sql.execution.arrow.maxRecordsPerBatch"))
        return cls(
            zone,
            max_rows if max_rows > 0 else _UNLIMITED,
            _byte_count(conf.get("spark.sql.execution.arrow.maxBytesPerBatch")),
            is_set("execution.pandas.convertToArrowArraySafely"),
            is_set("legacy.execution.pandas.groupedMap.assignColumnsByName"),
            is_set("execution.pythonUDF.pandas.intToDecimalCoercionEnabled"),
            is_set("execution.pythonUDF.pandas.preferIntExtensionDtype"),
        )


def _byte_count(text: str) -> int:
    """Return a size as Spark writes it, in bytes.

    >>> _byte_count("67108864b"), _byte_count("64m"), _byte_count("2147483647")
    (67108864, 67108864, 2147483647)
    """
    found = _BYTES.fullmatch(text.strip())
    if found is None:
        return _UNLIMITED
    return int(found[1]) << 10 * "bkmgtp".index((found[2] or "b").lower())
