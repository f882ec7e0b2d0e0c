"""What each operator of the library must tell, computed anew by DuckDB from all rows at once; shared by the tests here.

DuckDB knows null from NaN, and NaN as a key. What it does not know is Flux's order of output, which is put on in
`in_order`: rows that one mark causes go by their place in their partition, and then by partition.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import duckdb
import pyarrow as pa

from flux.types.hashing import partition_of

PARTITIONS = 4

Row = tuple[Any, ...]

_NAN = "'nan'::DOUBLE"


def _unless_nan(x: str, told: str) -> str:
    return f"CASE WHEN bool_or(isnan({x})){{over}} THEN {_NAN} ELSE {told} END"


# By the names that they have in the tests; `{over}` is nothing, or the rows of a key so far; `{at}` is the order in
# which rows are first and last.
_NUMBERS = "FILTER (WHERE NOT isnan(x)){over}"
AGGREGATES = {
    "rows": "count(*){over}",
    "n": "count(x){over}",
    "total": "sum(x){over}",
    "least": _unless_nan("x", "min(x){over}"),
    "most": _unless_nan("x", "max(x){over}"),
    "mean": "sum(x){over} / nullif(count(x){over}, 0)",
    "var": f"CASE WHEN count(x){{over}} > 1 AND bool_or(isnan(x)){{over}} THEN {_NAN} ELSE var_samp(x) {_NUMBERS} END",
    "whole": "sum(i){over}::BIGINT",
    "whole_mean": "sum(i){over}::DOUBLE / nullif(count(i){over}, 0)",
    "whole_var": "var_samp(i){over}",
    "whole_least": "min(i){over}",
    "first_text": "arg_min(s, {at}){over}",
    "last_float": "arg_max(x, {at}){over}",
    "most_text": "max(s){over}",
    "least_decimal": "min(d){over}",
    "decimals": "sum(d){over}",
    "decimal_mean": "sum(d){over}::DOUBLE / nullif(count(d){over}, 0)",
    "texts": "count(DISTINCT s){over}",
    "floats": "count(DISTINCT x){over}",
}
_BY_TIME, _BY_ROW = "t * 1000000 + number", "number"
VALUES_KEPT = {
    "median": _unless_nan("x", f"quantile_cont(x, 0.5) {_NUMBERS}"),
    "p90": _unless_nan("x", f"quantile_cont(x, 0.9) {_NUMBERS}"),
    "spread": f"coalesce({_unless_nan('x', 'max(x){over} - min(x){over}')}, -1.0)",
}


class Batch:
    """All rows of a stream as a table, with the watermark that each of them finds."""

    def __init__(self, rows: pa.Table, lateness_ms: int, every_ms: int) -> None:
        self._db = duckdb.connect()
        self._db.execute("SET threads TO 1")
        self._db.register("arrived", rows)
        self._key = rows.schema.field("k").type
        before = "OVER (ORDER BY number ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)"
        self._db.execute(f"""
            CREATE TABLE events AS
            WITH timed AS (SELECT *, floor((t - {lateness_ms}) / {every_ms}) * {every_ms} AS reached FROM arrived),
            marked AS (SELECT *, coalesce(max(reached) {before}, -1e18) AS watermark FROM timed)
            SELECT *, coalesce(sum((reached > watermark)::INT) {before}, 0) AS mark FROM marked""")
        self._db.execute("CREATE TABLE marks AS SELECT reached AS value FROM events WHERE reached > watermark")

    def _found(self, query: str) -> list[Row]:
        return self._db.execute(query).fetchall()

    def in_order(self, rows: list[Row], place: Callable[[Row], Any]) -> list[Row]:
        """Rows (mark, key, ...) as they come out, without the mark; `place` orders those of a mark and partition."""
        if not rows:
            return []
        partition = partition_of([pa.array([row[1] for row in rows], self._key)], PARTITIONS).tolist()
        by_partition: dict[Any, list[Row]] = defaultdict(list)
        for row, pid in zip(rows, partition, strict=True):
            by_partition[row[0], pid].append(row)
        placed = []
        for (mark, pid), own in by_partition.items():
            placed += [(mark, n, pid, row[1:]) for n, row in enumerate(sorted(own, key=place))]
        return [row for *_, row in sorted(placed, key=lambda each: each[:3])]

    # Windows.

    def _windowed(self, size: int, slide: int) -> str:
        """Each row in each of its windows that is still open when it comes."""
        first, last = f"floor((t - {size}) / {slide})::BIGINT + 1", f"floor(t / {slide})::BIGINT"
        return f"""(SELECT * FROM (SELECT *, {slide} * unnest(range({first}, {last} + 1)) AS start
                    FROM events WHERE t IS NOT NULL) WHERE start + {size} > watermark)"""

    def windows(self, size: int, slide: int) -> list[Row]:
        told = ", ".join(each.format(over="", at=_BY_TIME) for each in (AGGREGATES | VALUES_KEPT).values())
        closed = f"(SELECT count(*) FROM marks WHERE value < start + {size})"
        rows = self._found(
            f"SELECT {closed}, k, start, start + {size}, {told} FROM {self._windowed(size, slide)} GROUP BY k, start"
        )
        return self.in_order(rows, lambda row: (row[2], key_order(row[1])))

    def windows_over_all(self, size: int, offset: int) -> list[Row]:
        """Of all rows in windows that begin at `offset`: how many, and the greatest integer."""
        start = f"floor((t - {offset}) / {size})::BIGINT * {size} + {offset}"
        return self._found(
            f"""SELECT start, start + {size}, count(*), max(i) FROM (SELECT *, {start} AS start FROM events)
                WHERE start + {size} > watermark GROUP BY start ORDER BY start"""
        )

    def late_over_all(self, size: int, offset: int) -> int:
        end = f"floor((t - {offset}) / {size}) * {size} + {offset + size}"
        return int(self._found(f"SELECT count(*) FROM events WHERE t IS NULL OR {end} <= watermark")[0][0])

    def late(self, size: int, slide: int) -> int:
        """Rows without a time, or whose last window was closed."""
        is_late = f"t IS NULL OR floor(t / {slide}) * {slide} + {size} <= watermark"
        return int(self._found(f"SELECT count(*) FROM events WHERE {is_late}")[0][0])

    # Sessions by event time.

    def session_windows(self, gap: int) -> list[Row]:
        """Islands of the rows present at each mark; the mark removes those that it closes."""
        self._db.execute("CREATE OR REPLACE TABLE closed (number BIGINT, closed_by BIGINT, start BIGINT, stop BIGINT)")
        marks = [value for (value,) in self._found("SELECT value FROM marks ORDER BY value")]
        for n, value in enumerate([*marks, 1e18]):
            self._db.execute(
                f"""INSERT INTO closed
                    WITH present AS (SELECT number, k, t FROM events ANTI JOIN closed USING (number)
                                   WHERE mark <= {n} AND t + {gap} > watermark),
                    begun AS (SELECT *, coalesce(t - lag(t) OVER own >= {gap}, TRUE)::INT AS begins FROM present
                              WINDOW own AS (PARTITION BY k ORDER BY t, number)),
                    islands AS (SELECT *, sum(begins) OVER (PARTITION BY k ORDER BY t, number) AS island FROM begun),
                    sessions AS (SELECT number, min(t) OVER own AS start, max(t) OVER own + {gap} AS stop FROM islands
                                 WINDOW own AS (PARTITION BY k, island))
                    SELECT number, {n}, start, stop FROM sessions WHERE stop <= {value}"""
            )
        results = ", ".join(each.format(over="", at=_BY_TIME) for each in (AGGREGATES | VALUES_KEPT).values())
        rows = self._found(
            f"""SELECT closed_by, k, start, stop, {results} FROM events JOIN closed USING (number)
                GROUP BY closed_by, k, start, stop"""
        )
        return self.in_order(rows, lambda row: (row[3], key_order(row[1])))

    def late_for_sessions(self, gap: int) -> int:
        """Rows without a time, or for which a session of their own would be closed."""
        return int(self._found(f"SELECT count(*) FROM events WHERE t IS NULL OR t + {gap} <= watermark")[0][0])

    def below_watermark(self) -> int:
        """Rows that are late for a join, which needs no windows."""
        return int(self._found("SELECT count(*) FROM events WHERE t < watermark")[0][0])

    def top_of_windows(self, count: int, size: int) -> list[Row]:
        ranked = "row_number() OVER (PARTITION BY k, start ORDER BY x DESC, number)"
        closed = f"(SELECT count(*) FROM marks WHERE value < start + {size})"
        rows = self._found(
            f"""SELECT {closed}, k, number, rank, start FROM (SELECT *, {ranked} AS rank FROM
                {self._windowed(size, size)} WHERE NOT isnan(x)) WHERE rank <= {count}"""
        )
        return [row[:-1] for row in self.in_order(rows, lambda row: (row[4], key_order(row[1]), row[3]))]

    def ties_of_windows(self, count: int, size: int) -> list[Row]:
        ranked = "rank() OVER (PARTITION BY k, start ORDER BY w, host DESC)"
        closed = f"(SELECT count(*) FROM marks WHERE value < start + {size})"
        rows = self._found(
            f"""SELECT {closed}, k, number, rank, start FROM (SELECT *, {ranked} AS rank FROM
                {self._windowed(size, size)} WHERE NOT isnan(w) AND host IS NOT NULL) WHERE rank <= {count}"""
        )
        return [row[:-1] for row in self.in_order(rows, lambda row: (row[4], key_order(row[1]), row[3], row[2]))]

    # Without windows.

    def running(self) -> list[Row]:
        """The aggregates of each key up to each row."""
        return self._found(f"SELECT k, {_so_far(AGGREGATES)} FROM events ORDER BY number")

    def running_at_marks(self) -> list[Row]:
        """Those of the last row of each key before each mark."""
        last = "row_number() OVER (PARTITION BY k, mark ORDER BY number DESC)"
        rows = self._found(
            f"""SELECT * EXCLUDE (place) FROM
                (SELECT mark, k, {_so_far(AGGREGATES | VALUES_KEPT)}, {last} AS place FROM events) WHERE place = 1"""
        )
        return self.in_order(rows, lambda row: key_order(row[1]))

    def top_at_marks(self, count: int) -> list[Row]:
        """The first rows at each mark of the keys of which one is new among them."""
        ranked = "row_number() OVER (PARTITION BY k, now ORDER BY x DESC, number)"
        rows = self._found(
            f"""WITH ranked AS (SELECT now, k, number, {ranked} AS rank, mark FROM events,
                                (SELECT unnest(range((SELECT count(*) FROM marks) + 1)) AS now)
                                WHERE mark <= now AND NOT isnan(x)),
                first AS (SELECT *, bool_or(mark = now) OVER (PARTITION BY k, now) AS news FROM ranked
                          WHERE rank <= {count})
                SELECT now, k, number, rank FROM first WHERE news"""
        )
        return self.in_order(rows, lambda row: (key_order(row[1]), row[3]))

    def distinct(self, columns: str, size: int | None = None) -> list[Row]:
        rows = "events" if size is None else self._windowed(size, size)
        by = columns if size is None else f"{columns}, start"
        return self._found(f"SELECT min(number) FROM {rows} GROUP BY {by} ORDER BY 1")

    def count_windows(self, history: int, slide: int) -> list[Row]:
        over = f" OVER (PARTITION BY host ORDER BY number ROWS {history - 1} PRECEDING)"
        most = _unless_nan("w", "max(w){over}").format(over=over)
        return self._found(
            f"""SELECT * EXCLUDE (number, count) FROM
                (SELECT host, {most}, avg(w){over}, number,
                        row_number() OVER (PARTITION BY host ORDER BY number) AS count FROM events)
                WHERE count >= {history} AND (count - {history}) % {slide} = 0 ORDER BY number"""
        )

    def count_window_aggregates(self, history: int, slide: int) -> list[Row]:
        over = f" OVER (PARTITION BY k ORDER BY number ROWS {history - 1} PRECEDING)"
        return self._found(
            f"""SELECT * EXCLUDE (number, count) FROM
                (SELECT k, {_so_far(AGGREGATES | VALUES_KEPT, over)}, number,
                        row_number() OVER (PARTITION BY k ORDER BY number) AS count FROM events)
                WHERE count >= {history} AND (count - {history}) % {slide} = 0 ORDER BY number"""
        )

    def sessions(self) -> list[Row]:
        """An end right behind a start of the same hosts, whatever else is between them."""
        before = "OVER (PARTITION BY src, dst ORDER BY number)"
        return self._found(
            f"""WITH packets AS (SELECT *, decode(data)[1] AS kind, ord(decode(data)[2]) AS app FROM events)
                SELECT app_before, src, ts - since FROM
                (SELECT src, number, ts, kind, lag(kind) {before} AS kind_before, lag(app) {before} AS app_before,
                        lag(ts) {before} AS since FROM packets WHERE kind IN ('S', 'E'))
                WHERE kind = 'E' AND kind_before = 'S' ORDER BY number"""
        )

    def pairs(self, near: str) -> list[Row]:
        """Rows with and without a number that three divides, near each other, as (left, right), in any order.

        What a later row may still find are rows that no watermark has passed by more than the bound.
        """
        return self._found(
            f"""WITH pairs AS (SELECT l.number AS l, r.number AS r, l.t AS l_t, r.t AS r_t,
                       l.number + l.mark AS l_sn, r.number + r.mark AS r_sn,
                       CASE WHEN l.number < r.number THEN l.t ELSE r.t END AS earlier_t,
                       CASE WHEN l.number < r.number THEN r.watermark ELSE l.watermark END AS later_watermark
                FROM events l JOIN events r ON l.k = r.k WHERE l.number % 3 = 0 AND r.number % 3 <> 0)
                SELECT l, r FROM pairs WHERE {near} ORDER BY greatest(l, r), least(l, r)"""
        )

    def pairs_and_others(self, near: str) -> list[Row]:
        """The same, and each row that is in no pair with a null."""
        pairs = self.pairs(near)
        numbers = [number for (number,) in self._found("SELECT number FROM events")]
        left, right = ({pair[side] for pair in pairs} for side in (0, 1))
        alone: list[Row] = [(n, None) for n in numbers if n % 3 == 0 and n not in left]
        return pairs + alone + [(None, n) for n in numbers if n % 3 and n not in right]


def _so_far(aggregates: dict[str, str], over: str = " OVER (PARTITION BY k ORDER BY number)") -> str:
    return ", ".join(f"{each.format(over=over, at=_BY_ROW)} AS {name}" for name, each in aggregates.items())


def key_order(key: Any) -> Any:
    """Ascending, NaN behind all others and null behind everything."""
    return (key is None, isinstance(key, float) and math.isnan(key), 0 if key is None or key != key else key)


def differ(found: list[Row], expected: list[Row]) -> str:
    """The first difference, in words; empty if there is none. Only what is not exact may differ in its last digits."""
    for n, (got, wanted) in enumerate(zip(found, expected, strict=False)):
        if len(got) != len(wanted) or not all(map(_alike, got, wanted)):
            return f"row {n}: {got} came, {wanted} was expected"
    return "" if len(found) == len(expected) else f"{len(found)} rows came, {len(expected)} were expected"


def _alike(got: Any, wanted: Any) -> bool:
    if isinstance(got, float) and isinstance(wanted, float):
        return math.isclose(got, wanted, rel_tol=1e-10) or (math.isnan(got) and math.isnan(wanted))
    return type(got) is type(wanted) and bool(got == wanted)
