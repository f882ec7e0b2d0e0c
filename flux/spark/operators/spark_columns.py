"""Columns as Spark's operators get them: times in the session's time zone, and types that Spark has.

Spark shows times in the time zone of its session: in rows as aware times, in pandas as naive ones. Naive times in the
output are in that zone too. Sites have no session, so the zone is read when the plan is made, and is part of the plan.

Arrow types that Spark lacks, unsigned integers for example, become the next wider type. This is needed only for Spark's
own conversions: those to pandas.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql.pandas.types import from_arrow_type

from ...types.errors import PlanError
from ..sink.reader import WIDER
from .session_settings import session_conf

__all__ = ["AsSpark", "check_key", "spark_type", "zone_of"]

_SESSION_ZONE = "spark.sql.session.timeZone"
_NO_SESSION = "UTC"


def zone_of(given: Any, owner: str) -> str:
    """Return the given time zone, else that of the Spark session of this program, else UTC."""
    zone = given if given is not None else _session_zone()
    try:
        pa.lib.string_to_tzinfo(zone)
    except (LookupError, AttributeError, TypeError, ValueError, pa.ArrowException) as error:
        raise PlanError(f'{owner}: time_zone is a text such as "Europe/Berlin" or "+02:00"; got {zone!r}') from error
    return str(zone)


def _session_zone() -> str:
    conf = session_conf()
    return _NO_SESSION if conf is None else str(conf.get(_SESSION_ZONE))


def check_key(key_columns: tuple[str, ...], rows: pa.Schema, owner: str) -> None:
    """Raise `PlanError` if the operator has no exchange by key before it, or a step has dropped a key column."""
    if not key_columns:
        raise PlanError(
            f'{owner}: it works by key: exchange on the columns of Spark\'s groupBy before it, not by="any"'
        )
    missing = [name for name in key_columns if name not in rows.names]
    if missing:
        raise PlanError(
            f"{owner}: it works by the key ({', '.join(key_columns)}), and a step between the exchange and it "
            f"drops {', '.join(missing)}: keep the column, or move the step after the operator"
        )


def spark_type(kind: pa.DataType) -> Any:
    """Return Spark's type for a column, wide enough; None if there is none."""
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
    """The conversion of Flux's rows for an operator; with `widens`, also of types that Spark lacks."""

    def __init__(self, zone: str, widens: bool) -> None:
        self._zone = zone
        self._widens = widens
        self._known: tuple[pa.Schema, pa.Schema] | None = None

    def schema(self, given: pa.Schema) -> pa.Schema:
        """Return the schema of converted rows of schema `given`."""
        return pa.schema([field.with_type(self._type(field.type)) for field in given])

    def _type(self, kind: pa.DataType) -> pa.DataType:
        if pa.types.is_timestamp(kind) and kind.tz is not None:
            return pa.timestamp(kind.unit, self._zone)
        return _wider(kind) if self._widens else kind

    def check(self, given: pa.Schema, owner: str) -> pa.Schema:
        """Return the same schema; raise `PlanError` if Spark has no type for a column."""
        unknown = [field for field in given if self._widens and spark_type(field.type) is None]
        if unknown:
            raise PlanError(
                f"{owner}: it takes DataFrames as Spark makes them, and Spark has no type for the column "
                f"{unknown[0].name!r}, {unknown[0].type}. Cast it, or drop it, in a step before"
            )
        return self.schema(given)

    def __call__(self, rows: Any) -> Any:
        """Return the converted rows of a record batch or a table."""
        if self._known is None or self._known[0] != rows.schema:
            self._known = rows.schema, self.schema(rows.schema)
        wanted = self._known[1]
        return rows if wanted == rows.schema else rows.cast(wanted)
