"""Columns as Spark's operators get them: times in the session's time zone, and types that Spark has.

Spark shows times in the time zone of its session: to rows as aware times, to pandas as naive ones, and naive times that
come back are of that zone too. Sites have no session; so the zone is asked for when the plan is made, and goes with it.

What Arrow has and Spark has not, whole numbers without a sign for example, becomes the next type that holds it, where
Spark's own conversions are used: those to pandas.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from pyspark import SparkContext
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import from_arrow_type

from ...types.errors import PlanError
from ..sink.reader import WIDER

__all__ = ["AsSpark", "check_key", "spark_type", "zone_of"]

_SESSION_ZONE = "spark.sql.session.timeZone"
_NO_SESSION = "UTC"


def zone_of(given: Any, whose: str) -> str:
    """The time zone that was given, else that of the Spark session of this program, else UTC."""
    zone = given if given is not None else _session_zone()
    try:
        pa.lib.string_to_tzinfo(zone)
    except (LookupError, AttributeError, TypeError, ValueError, pa.ArrowException) as error:
        raise PlanError(f'{whose}: time_zone is a text such as "Europe/Berlin" or "+02:00"; it is {zone!r}') from error
    return str(zone)


def _session_zone() -> str:
    if SparkContext._active_spark_context is None:
        return _NO_SESSION
    # Which session is the active one is known in the thread that made it; the other is that of all threads.
    session = SparkSession.getActiveSession() or SparkSession._instantiatedSession
    return _NO_SESSION if session is None else str(session.conf.get(_SESSION_ZONE))


def check_key(key_columns: tuple[str, ...], rows: pa.Schema, whose: str) -> None:
    """A `PlanError` if there is no key in front of an operator of Spark's, or it has been left out of the rows."""
    if not key_columns:
        raise PlanError(
            f'{whose}: it works by key: exchange on the columns of Spark\'s groupBy in front of it, not by="any"'
        )
    gone = [name for name in key_columns if name not in rows.names]
    if gone:
        raise PlanError(
            f"{whose}: it works by the key ({', '.join(key_columns)}), and a step between the exchange and it has left "
            f"out {', '.join(gone)}: keep the column, or put the step behind it"
        )


def spark_type(kind: pa.DataType) -> Any:
    """The type that Spark has for a column, wide enough; None if there is none."""
    try:
        return from_arrow_type(_wider(kind))
    except PySparkException:
        return None


def _wider(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_date64(kind):
        return pa.date32()
    if pa.types.is_time32(kind):
        return pa.time64("us")
    return WIDER.get(kind, kind)


class AsSpark:
    """What Flux's rows become on their way to an operator; with `widens`, also types that Spark has not."""

    def __init__(self, zone: str, widens: bool) -> None:
        self._zone = zone
        self._widens = widens
        self._known: tuple[pa.Schema, pa.Schema] | None = None

    def schema(self, given: pa.Schema) -> pa.Schema:
        """The schema of what rows of `given` become."""
        return pa.schema([field.with_type(self._type(field.type)) for field in given])

    def _type(self, kind: pa.DataType) -> pa.DataType:
        if pa.types.is_timestamp(kind) and kind.tz is not None:
            return pa.timestamp(kind.unit, self._zone)
        return _wider(kind) if self._widens else kind

    def check(self, given: pa.Schema, whose: str) -> pa.Schema:
        """The same, and a `PlanError` if Spark has no type for a column."""
        unknown = [field for field in given if self._widens and spark_type(field.type) is None]
        if unknown:
            raise PlanError(
                f"{whose}: it takes DataFrames as Spark makes them, and Spark has no type for the column "
                f"{unknown[0].name!r}, {unknown[0].type}. Cast it, or leave it out, in a step before"
            )
        return self.schema(given)

    def __call__(self, rows: Any) -> Any:
        """The rows of a record batch, or of a table."""
        if self._known is None or self._known[0] != rows.schema:
            self._known = rows.schema, self.schema(rows.schema)
        wanted = self._known[1]
        return rows if wanted == rows.schema else rows.cast(wanted)
