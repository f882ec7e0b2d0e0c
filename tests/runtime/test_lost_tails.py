"""Journals that lose their ends with the power of a machine: exact, or a clear error and nothing lost or repeated.

It takes about 20 s: each case is a run with real processes, one of which is killed in the middle of its work.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

import flux

from .lost_tails import KEYS, Counts, assert_nothing_lost_or_repeated, cut_and_kill

ROWS, RATE = 30_000, 10_000
LOST = ("has lost its end", "has lost views")


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


SOURCES = [one_source, with_event_time, two_sources]


def run_and_cut(
    source: Callable[[flux.Dataflow], flux.Stream], process: str, path: Path, seed: int, cuts: int = 1
) -> str | None:
    """Run a flow and cut the journal of a process; return the error that ended the run, if one did."""
    rng = random.Random(seed)
    flow = flux.Dataflow("power")
    source(flow).exchange("key", partitions=4).apply(Counts).sink(flux.sinks.Jsonl(path))
    error = None
    try:
        with flow.start(sites=2, standby=1) as run:
            for nth in range(cuts):
                run.wait_for_output((nth + 1) * ROWS // (cuts + 2) + rng.randrange(ROWS // 20))
                if process == "controller":
                    run.kill(f"site-{nth + 1}")  # So that there is a view to lose.
                cut_and_kill(run, process, rng, 1 if process == "controller" else 6)
            run.wait(timeout=60)
    except flux.FluxError as raised:
        error = str(raised)
    assert_nothing_lost_or_repeated(path, ROWS if error is None else None)
    assert error is None or (any(text in error for text in LOST) and "run the flow again" in error)
    return error


@pytest.mark.parametrize("seed", range(2))
def test_numbers_that_can_be_given_again_are_given_to_the_same_rows(tmp_path: Path, seed: int) -> None:
    assert run_and_cut(one_source, "ingress", tmp_path / "out.jsonl", seed) is None


@pytest.mark.parametrize(("source", "seed"), [(with_event_time, 1), (two_sources, 3), (two_sources, 4)])
def test_numbers_that_cannot_be_given_again_end_the_run_or_were_seen_by_no_node(
    tmp_path: Path, source: Callable[[flux.Dataflow], flux.Stream], seed: int
) -> None:
    error = run_and_cut(source, "ingress", tmp_path / "out.jsonl", seed)
    assert error is None or "the ingress's journal" in error


def test_a_view_that_the_controllers_journal_has_lost_ends_the_run(tmp_path: Path) -> None:
    error = run_and_cut(one_source, "controller", tmp_path / "out.jsonl", 0)
    assert error is not None


@pytest.mark.parametrize("seed", range(2))
def test_a_sink_is_not_given_what_it_has_though_its_journal_has_lost_it(tmp_path: Path, seed: int) -> None:
    run_and_cut(one_source, "egress", tmp_path / "out.jsonl", seed)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(200))
def test_a_journal_that_is_cut_anywhere_costs_no_row(tmp_path: Path, seed: int) -> None:
    rng = random.Random(f"cut {seed}")
    process = rng.choice(("ingress", "ingress", "controller", "egress"))
    run_and_cut(rng.choice(SOURCES), process, tmp_path / "out.jsonl", seed)
