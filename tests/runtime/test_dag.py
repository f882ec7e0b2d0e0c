"""Graphs of stages on real processes: branches, unions, joins, several sources and sinks, while anything is killed."""

# ruff: noqa: RUF012 - operators declare `output` as users do, without ClassVar.

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import flux

ORDERS = [{"k": n * 7 % 11, "v": n, "ts": n} for n in range(900)]
CLICKS = [{"k": n * 5 % 13, "w": n % 17, "ts": n} for n in range(900)]
NEAR = 4


class Counts(flux.KeyedOperator):
    output = {"k": "int64", "n": "int64"}

    def on_tuple(self, key: Any, row: Any, state: Any) -> Any:
        count = (state or 0) + 1
        return count, [{"k": key[0], "n": count}]


def kept(row: Any) -> bool:
    return bool(row.v % 3)


def shop(path: Path, rate: float) -> tuple[flux.Dataflow, flux.sinks.Collect, flux.sinks.Collect]:
    """Two sources; one is filtered and feeds a count and a join with the other; results are united; three sinks."""
    flow = flux.Dataflow("shop")
    orders = flow.source(flux.sources.Table(ORDERS, rate=rate, batch_rows=20)).filter(kept)
    clicks = flow.source(flux.sources.Table(CLICKS, rate=rate, batch_rows=30))
    counts = orders.exchange("k", partitions=6).apply(Counts)
    pairs = orders.join(clicks, on="k", within={"ts": NEAR}, partitions=5)
    by_click = pairs.exchange("w", partitions=4).apply(Counts)
    united, counted = flux.sinks.Collect(), flux.sinks.Collect()
    counts.union(by_click).sink(united)
    pairs.select("v", "w").sink(flux.sinks.Jsonl(path))
    counts.sink(counted)
    return flow, united, counted


def expected() -> tuple[Counter[Any], list[dict[str, int]], Counter[Any]]:
    """Pairs, the counts of orders in order, and what is united; how the sources interleave decides none of them."""
    orders = [row for row in ORDERS if row["v"] % 3]
    seen: Counter[int] = Counter()
    counts = []
    for row in orders:
        seen[row["k"]] += 1
        counts.append({"k": row["k"], "n": seen[row["k"]]})
    pairs = [(a["v"], b["w"]) for a in orders for b in CLICKS if a["k"] == b["k"] and abs(a["ts"] - b["ts"]) <= NEAR]
    clicks = Counter(w for _, w in pairs)
    united = Counter((row["k"], row["n"]) for row in counts)
    united += Counter((w, n) for w, most in clicks.items() for n in range(1, most + 1))
    return Counter(pairs), counts, united


def check(report: flux.Report, path: Path, united: flux.sinks.Collect, counted: flux.sinks.Collect) -> None:
    pairs, counts, both = expected()
    assert Counter((row["v"], row["w"]) for row in map(json.loads, path.read_text().splitlines())) == pairs
    assert counted.table().to_pylist() == counts
    assert Counter((row["k"], row["n"]) for row in united.table().to_pylist()) == both
    assert report.tables == [united.table(), counted.table()]
    assert report.table is None
    assert report.outputs == sum(pairs.values()) + len(counts) + sum(both.values())
    assert report.inputs == len(ORDERS) + len(CLICKS)


@pytest.mark.parametrize(
    "victim", ["site-2", "egress", *(pytest.param(end, marks=pytest.mark.long) for end in ("ingress", "controller"))]
)
def test_whatever_dies_every_sink_of_a_graph_has_each_row_once(victim: str, tmp_path: Path) -> None:
    flow, united, counted = shop(tmp_path / "pairs.jsonl", rate=600)
    with flow.start(sites=3, standby=1) as run:
        run.wait_for_output(300)
        run.kill(victim)
        report = run.wait()
    check(report, tmp_path / "pairs.jsonl", united, counted)
    assert [failure.site for failure in report.failures] == [victim]


def test_a_graph_outlives_one_after_the_other(tmp_path: Path) -> None:
    flow, united, counted = shop(tmp_path / "pairs.jsonl", rate=400)
    with flow.start(sites=3) as run:
        for count, victim in ((200, "ingress"), (400, "site-1"), (600, "egress"), (800, "ingress")):
            run.wait_for_output(count)
            run.kill(victim)
        report = run.wait()
    check(report, tmp_path / "pairs.jsonl", united, counted)


def test_a_graph_moves_off_a_site_that_is_drained(tmp_path: Path) -> None:
    flow, united, counted = shop(tmp_path / "pairs.jsonl", rate=500)
    with flow.start(sites=2, standby=1) as run:
        run.wait_for_output(200)
        run.drain("site-1")
        report = run.wait()
    check(report, tmp_path / "pairs.jsonl", united, counted)
    assert not report.failures


def test_one_copy_of_each_gives_the_same(tmp_path: Path) -> None:
    flow, united, counted = shop(tmp_path / "pairs.jsonl", rate=50_000)
    report = flow.run(sites=2, availability="none")
    check(report, tmp_path / "pairs.jsonl", united, counted)
