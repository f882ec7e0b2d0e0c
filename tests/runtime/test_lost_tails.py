"""Journals that lose their ends with the power of a machine: exact, or a clear error and nothing lost or repeated.

It takes about 20 s: each case is a run with real processes, one of which is killed in the middle of its work. The
journal of Spark's staging area is cut in tests/spark/test_lost_staging.py.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import flux

from .lost_tails import KEYS, Counts, assert_nothing_lost_or_repeated, cut_and_kill, rows_of_lines
from .waiting import wait_until

ROWS, RATE = 30_000, 10_000
LOST = ("has lost its end", "has lost views")

Source = Callable[[flux.Dataflow], flux.Stream]


def rows_from(start: int, count: int) -> pa.RecordBatch:
    ids = range(start, start + count)
    return pa.record_batch({"id": ids, "key": [i % KEYS for i in ids], "ts": [i * 10 for i in ids]})


def table() -> flux.sources.Source:
    return flux.sources.Table(rows_from(0, ROWS), rate=RATE, batch_rows=100)


def one_source(flow: flux.Dataflow) -> flux.Stream:
    return flow.source(table())


def with_event_time(flow: flux.Dataflow) -> flux.Stream:
    return flow.source(table(), event_time="ts", lateness_ms=0)


def two_sources(flow: flux.Dataflow) -> flux.Stream:
    half = ROWS // 2
    # Keys of the second source are its own: the order of rows of two sources is not fixed.
    first = flux.sources.Table(rows_from(0, half), rate=RATE // 2, batch_rows=100)
    other = rows_from(half, half).set_column(1, "key", pa.array([KEYS + i % KEYS for i in range(half)]))
    return flow.source(first).union(flow.source(flux.sources.Table(other, rate=RATE // 2, batch_rows=100)))


def long_source(flow: flux.Dataflow) -> flux.Stream:
    """A source that outlasts what is awaited, however busy the machine; the run is expected to end before it."""
    return flow.source(flux.sources.Table(rows_from(0, 60 * RATE), rate=RATE, batch_rows=100))


SOURCES: list[Source] = [one_source, with_event_time, two_sources]


def to_lines(rows: flux.Stream, path: Path) -> Callable[[], list[dict[str, Any]]]:
    rows.sink(flux.sinks.Jsonl(path / "out.jsonl"))
    return lambda: rows_of_lines(path / "out.jsonl")


def to_lines_in_any_order(rows: flux.Stream, path: Path) -> Callable[[], list[dict[str, Any]]]:
    rows.sink(flux.sinks.Jsonl(path / "out.jsonl"), order="any")
    return lambda: rows_of_lines(path / "out.jsonl")


def to_parquet(rows: flux.Stream, path: Path) -> Callable[[], list[dict[str, Any]]]:
    rows.sink(flux.sinks.Parquet(path / "out", file_rows=4_000, flush_every_s=0.2))
    return lambda: [row for part in sorted((path / "out").glob("part-*")) for row in pq.read_table(part).to_pylist()]


def is_up(run: flux.Run, process: str) -> bool:
    status = run.status()  # One that has just connected may not have been given its pid.
    return any(each.name == process and each.state == "up" and each.pid is not None for each in status.processes)


SINKS = [to_lines, to_lines_in_any_order, to_parquet]


def run_and_cut(
    source: Source,
    journal: str,
    path: Path,
    seed: int,
    to_sink: Callable[[flux.Stream, Path], Callable[[], list[dict[str, Any]]]] = to_lines,
    cuts: int = 1,
    settled: bool = False,
) -> str | None:
    """Run a flow and cut a journal of it, again as soon as it can be; return the error that ended the run, if any.

    If `settled`, the controller's journal is cut when the sites have its last view.
    """
    rng = random.Random(seed)
    flow = flux.Dataflow("power")
    output = to_sink(source(flow).exchange("key", partitions=4).apply(Counts), path)
    error = None
    try:
        with flow.start(sites=2, standby=1) as run:
            run.wait_for_output(rng.randrange(ROWS // 20, 2 * ROWS // 3))
            if journal == "controller":
                run.kill("site-1")  # So that there is a view to lose.
                if settled:
                    _wait_for_last_view(run)
            for _ in range(cuts):
                wait_until(lambda: is_up(run, journal), f"the {journal} was not started again")
                cut_and_kill(run, [journal], rng, 1 if journal == "controller" else 6)
            run.wait(timeout=60)
    except flux.FluxError as raised:
        error = str(raised)
    assert_nothing_lost_or_repeated(output(), ROWS if error is None else None)
    assert error is None or (any(text in error for text in LOST) and "run the flow again" in error), error
    return error


def _wait_for_last_view(run: flux.Run) -> None:
    """Wait until the lost copies are rebuilt, which takes several views, and some rows have come out since the last."""
    wait_until(lambda: run.status().whole and bool(run.status().failures), "the lost copies were not rebuilt")
    run.wait_for_output(run.status().outputs + RATE // 10)


@pytest.mark.parametrize("seed", range(2))
def test_numbers_that_can_be_given_again_are_given_to_the_same_rows(tmp_path: Path, seed: int) -> None:
    assert run_and_cut(one_source, "ingress", tmp_path, seed) is None


@pytest.mark.parametrize("seed", range(1))
def test_numbers_are_given_to_the_same_rows_by_the_third_ingress_too(tmp_path: Path, seed: int) -> None:
    assert run_and_cut(one_source, "ingress", tmp_path, seed, cuts=4) is None


@pytest.mark.parametrize(("source", "seed"), [(with_event_time, 1), (two_sources, 3), (two_sources, 4)])
def test_numbers_that_cannot_be_given_again_end_the_run_or_were_seen_by_no_node(
    tmp_path: Path, source: Source, seed: int
) -> None:
    error = run_and_cut(source, "ingress", tmp_path, seed)
    assert error is None or "the ingress's journal" in error


def test_a_view_that_the_controllers_journal_has_lost_ends_the_run(tmp_path: Path) -> None:
    error = run_and_cut(long_source, "controller", tmp_path, 0, settled=True)
    assert error is not None


@pytest.mark.parametrize("to_sink", SINKS)
def test_a_sink_is_not_given_what_it_has_though_its_journal_has_lost_it(tmp_path: Path, to_sink: Any) -> None:
    run_and_cut(one_source, "egress", tmp_path, 1, to_sink)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(50))
@pytest.mark.parametrize("journal", ["ingress", "controller", "egress"])
def test_a_journal_that_is_cut_anywhere_costs_no_row(
    tmp_path: Path, journal: str, seed: int, record_property: Callable[[str, object], None]
) -> None:
    rng = random.Random(f"cut {journal} {seed}")
    to_sink = rng.choice(SINKS) if journal == "egress" else to_lines
    cuts = rng.choice((1, 1, 3)) if journal == "ingress" else 1
    error = run_and_cut(rng.choice(SOURCES), journal, tmp_path, seed, to_sink, cuts)
    record_property("outcome", "exact" if error is None else "clear error")  # Counted in the file of --junitxml.
