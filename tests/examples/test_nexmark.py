"""NEXMark's queries, exact against DuckDB, though a process of each kind dies."""

from __future__ import annotations

import inspect
from typing import Any

import duckdb
import pyarrow as pa
import pytest

from experiments.examples import nexmark
from experiments.examples.nexmark import GAP_MS, OF_ALL_ROWS, OF_WINDOWS, SIDE_ROWS, SIZE_MS, SLIDE_MS
from tests.runtime.waiting import wait_until

VALID = """(SELECT bids.*, category FROM bids JOIN auctions ON auction = id
           WHERE bids.ts BETWEEN auctions.ts AND expires)"""
SQL = {
    "q3": """SELECT name, state, a.id FROM auctions a JOIN people p ON seller = p.id
             WHERE category = 10 AND state IN ('OR', 'ID', 'CA')""",
    "q4": f"""SELECT category, avg(final) FROM (SELECT auction, category, max(price) AS final FROM {VALID}
              GROUP BY ALL) GROUP BY ALL""",
    "q5": f"""WITH counts AS (SELECT auction, unnest(range(floor((ts - {SIZE_MS}) / {SLIDE_MS})::BIGINT + 1,
                              ts // {SLIDE_MS} + 1)) * {SLIDE_MS} AS start FROM bids),
              n AS (SELECT start, auction, count(*) AS n FROM counts GROUP BY ALL)
              SELECT start, auction, n FROM n QUALIFY rank() OVER (PARTITION BY start ORDER BY n DESC) = 1""",
    "q7": f"""SELECT auction, price, bidder, ts FROM bids
              QUALIFY rank() OVER (PARTITION BY ts // {SIZE_MS} ORDER BY price DESC) = 1""",
    "q9": f"""SELECT auction, bidder, price, ts FROM {VALID}
              QUALIFY row_number() OVER (PARTITION BY auction ORDER BY price DESC, ts) = 1""",
    "q11": f"""WITH begun AS (SELECT bidder, ts, coalesce(ts - lag(ts) OVER (PARTITION BY bidder ORDER BY ts)
                              >= {GAP_MS}, TRUE)::INT AS begins FROM bids),
               numbered AS (SELECT *, sum(begins) OVER (PARTITION BY bidder ORDER BY ts) AS session FROM begun)
               SELECT bidder, min(ts), max(ts) + {GAP_MS}, count(*) FROM numbered GROUP BY bidder, session""",
    "q13": f"""SELECT auction, bidder, price, 'side ' || (auction % {2 * SIDE_ROWS}) FROM bids
               WHERE auction % {2 * SIDE_ROWS} < {SIDE_ROWS}""",
    "q18": """SELECT bidder, auction, price, ts FROM bids
              QUALIFY row_number() OVER (PARTITION BY bidder, auction ORDER BY ts DESC) = 1""",
    "q19": """SELECT auction, price, ts, row_number() OVER own AS rank FROM bids
              WINDOW own AS (PARTITION BY auction ORDER BY price DESC, ts) QUALIFY rank <= 10""",
}
QUERIES = {"windows": OF_WINDOWS, "all rows": OF_ALL_ROWS}


def in_duckdb(data: dict[str, pa.Table], query: str) -> list[tuple[Any, ...]]:
    with duckdb.connect() as db:
        for name, table in data.items():
            db.register(name, table)
        return sorted(db.execute(SQL[query]).fetchall())


@pytest.mark.parametrize("which", QUERIES)
def test_every_query_is_exact_though_a_process_of_each_kind_dies(which: str) -> None:
    data, queries = nexmark.tables(4_000), QUERIES[which]
    killed = ["site-2", "ingress", "egress", "controller"]
    with nexmark.flow(data, queries, last_s=3.0).start(sites=3, standby=1) as running:
        for number, name in enumerate(killed, start=1):
            wait_until(lambda: running.status().inputs >= 500 * number, "the next rows have come in")  # noqa: B023
            running.kill(name)
        report = running.wait(timeout=120)
    assert [failure.site for failure in report.failures] == killed
    assert report.late == 0
    for name, table in zip(queries, report.tables, strict=True):
        found = sorted(tuple(row.values()) for row in table.to_pylist())
        expected = in_duckdb(data, name)
        assert found == expected, name
        assert expected, f"{name} finds nothing, so it shows nothing"


@pytest.mark.parametrize("query", [*OF_WINDOWS, *OF_ALL_ROWS])
def test_a_query_takes_ten_lines_at_most(query: str) -> None:
    lines = inspect.getsource((OF_WINDOWS | OF_ALL_ROWS)[query]).splitlines()
    assert len(lines) - 2 <= 10, "without its signature and its docstring"


def test_the_streams_are_the_same_for_the_same_seed() -> None:
    assert nexmark.tables(500, seed=3) == nexmark.tables(500, seed=3)
    assert nexmark.tables(500, seed=3) != nexmark.tables(500, seed=4)
