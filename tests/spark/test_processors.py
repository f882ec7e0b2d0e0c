"""Spark's own operators, unchanged, under Flux: what they emit is what Spark emits for the same micro-batches.

`recorded/` has Spark's micro-batches and outputs; `cases.py` says how they were made. Here Flux gets the same rows,
clocks and watermarks. `test_spark_does_what_was_recorded` lets Spark itself do it again.

It takes half a minute: each of sixty recordings is played again, batch by batch.
"""

from __future__ import annotations

import ast
import random
from pathlib import Path
from typing import Any

import more_processors as q
import numpy as np
import processors as p
import pytest
from cases import CASES, CHAINED, Case, recorded, start
from replaying import Replayed, outputs, rows_of
from traces import INPUT, MicroBatch, comparable

import flux
from flux.hosting import Hosted, host
from flux.model.batch import Batch
from flux.model.operator import OperatorStep, Punctuation, output_of
from flux.spark import stateful_processor
from flux.types.hashing import partition_of
from flux.wire.state_codec import decode, encode

PARTITIONS = 4
# Real Spark runs these in the tests, one of each kind of time and one zone; the others are compared with recordings.
RUN_IN_SPARK = ("event_timers", "time_to_live", "group_state_event_time", "local_times")


def expected(trace: list[MicroBatch]) -> list[str]:
    return comparable([row for batch in trace for row in batch.output])


@pytest.mark.parametrize("name", CASES)
def test_flux_emits_what_spark_emits(name: str) -> None:
    trace = recorded(name)
    assert comparable(outputs([CASES[name].flux()], CASES[name].keys, trace)) == expected(trace)


def test_operators_in_a_chain_emit_what_they_emit_in_spark() -> None:
    """The second is on event time too: its timers fire, and its rows are late, by the watermark of the first."""
    first = stateful_processor(
        q.Relay, q.Relay.OUTPUT, "Append", "EventTime", eventTimeColumnName="ts", event_time="ts"
    )
    trace = recorded("chained")
    assert comparable(outputs([first, CHAINED.flux()], CHAINED.keys, trace)) == expected(trace)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("seed", range(3))
def test_it_does_not_depend_on_batches_nor_on_moves(name: str, seed: int) -> None:
    """In this process: two sites that share the partitions, which move about anywhere, also within a micro-batch."""
    trace = recorded(name)
    assert comparable(emitted(CASES[name], trace, random.Random(seed))) == expected(trace)


@pytest.mark.parametrize("name", CASES)
def test_each_micro_batch_emits_its_own_rows(name: str) -> None:
    trace = recorded(name)
    by_batch: list[list[Any]] = []
    emitted(CASES[name], trace, random.Random(1), by_batch)
    assert [comparable(rows) for rows in by_batch[: len(trace)]] == [comparable(batch.output) for batch in trace]


def test_what_was_recorded_of_time_to_live_has_what_lives_what_ends_and_what_ends_in_part() -> None:
    """Else nothing would be compared: the clock of a recording is what it was on the day."""
    put: dict[str, list[list[int]]] = {}
    found: dict[int, set[str]] = {life: set() for life in p.Forgetful.LIVES_MS}
    for batch in recorded("time_to_live"):
        for key, life, value, listed, mapped, _ in batch.output:
            # What was put into the list before this micro-batch, by the micro-batches that did it.
            before = [each for each in put.get(key, []) if each]
            entries = {each for some in before for each in some}
            held = ast.literal_eval(listed)
            alive = before[len(before) - _suffix_of(held, before) :]
            assert value == (before[-1][-1] if alive else None)
            assert [k for k, _ in ast.literal_eval(mapped)] == sorted({each for some in alive for each in some})
            found[life].add("all" if alive == before else "part" if held else "nothing")
            if 0 < len({each for some in alive for each in some}) < len(entries):
                found[life].add("part of a map")
        for key in {key for key, _, _ in batch.rows}:
            put.setdefault(key, []).append([value for of, value, _ in batch.rows if of == key and value >= 0])
    short, middle, long = (found[life] for life in p.Forgetful.LIVES_MS)
    assert "nothing" in short and not short & {"part", "part of a map"}
    assert long == {"all"}
    assert middle >= {"part", "part of a map"}


def test_what_was_recorded_of_time_to_live_in_pandas_has_what_lives_and_what_ends() -> None:
    rows = [row for batch in recorded("pandas_time_to_live") for row in batch.output]
    short, middle, long = ([row for row in rows if row[1] == life] for life in q.PandasForgetful.LIVES_MS)
    assert all(row[2:5] == (None, "[]", "[]") for row in short)
    assert any(row[2] is not None for row in middle)
    assert max(len(ast.literal_eval(row[3])) for row in long) > max(len(ast.literal_eval(row[3])) for row in middle)


def _suffix_of(held: list[int], before: list[list[int]]) -> int:
    """How many of the last micro-batches are what a list holds; elements end in the order in which they came."""
    for count in range(len(before) + 1):
        if held == [each for some in before[len(before) - count :] for each in some]:
            return count
    raise AssertionError(f"{held} is not the end of {before}")


def test_a_kill_in_the_middle_changes_nothing() -> None:
    trace = recorded("processing_timers")
    flow = flux.Dataflow("killed")
    operator = CASES["processing_timers"].flux()
    source = flow.source(Replayed(trace, pause_s=0.3))
    source.exchange("id", partitions=PARTITIONS).apply(operator).sink(flux.sinks.Collect())
    with flow.start(sites=2, standby=1) as run:
        run.wait_for_output(len(trace[0].output))
        run.kill("site-1")
        run.kill("ingress")
        report = run.wait()
    assert comparable([tuple(row.values()) for row in report.table.to_pylist()]) == expected(trace)
    assert {failure.site for failure in report.failures} == {"site-1", "ingress"}


@pytest.mark.long
@pytest.mark.parametrize("name", RUN_IN_SPARK)
def test_spark_does_what_was_recorded(spark: Any, queries: Any, name: str) -> None:
    """The clock is never the same, so what Spark does now is compared with what Flux makes of it now."""
    trace = queries[name].trace(CASES[name].batches)
    assert comparable(emitted(CASES[name], trace, random.Random(0))) == expected(trace)
    if not CASES[name].is_endless:
        assert expected(trace) == expected(recorded(name))


@pytest.fixture(scope="module")
def queries(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder: Path = tmp_path_factory.mktemp("queries")
    started = {name: start(spark, name, folder) for name in RUN_IN_SPARK}
    yield started
    for query in started.values():
        query.query.stop()  # One that failed must not keep Spark busy for the tests that follow.


def emitted(case: Case, trace: list[MicroBatch], rng: random.Random, by_batch: Any = None) -> list[tuple[Any, ...]]:
    """What the operator emits on two sites, with rows cut anyhow and partitions that move now and then."""
    operator, keys = case.flux(), case.keys
    step = OperatorStep(operator, {}, "step", keys, PARTITIONS, 0, output_of(operator, {}, keys, INPUT))
    sites = [opened(step, [0, 1]), opened(step, [2, 3])]
    at = {0: 0, 1: 0, 2: 1, 3: 1}
    found: list[tuple[Any, ...]] = []
    sn = 0

    def punctuate(kind: str, value: int | None) -> list[tuple[Any, ...]]:
        nonlocal sn
        sn += 1
        caused = []
        for number, site in enumerate(sites):
            held = frozenset(pid for pid, where in at.items() if where == number)
            out = site.punctuate(Punctuation(sn, kind, value, held))
            caused += [] if out is None else [tuple(row.values()) for row in out.arrow.to_pylist()]
        return caused

    for number, batch in enumerate(trace):
        rows = rows_of(batch)
        start = 0
        while start < rows.num_rows:
            stop = min(rows.num_rows, start + rng.randint(1, 3))
            feed(sites, at, rows.slice(start, stop - start), keys, sn + 1)
            sn, start = sn + stop - start, stop
            move(sites, at, rng)
        if number + 1 < len(trace):
            punctuate("watermark", trace[number + 1].watermark_ms)
        punctuate("clock", batch.clock_ms)
        move(sites, at, rng)
        caused = punctuate("batch", number)
        found += caused
        if by_batch is not None:
            by_batch.append(caused)
    return found + punctuate("end", None)


def opened(step: OperatorStep, held: list[int]) -> Hosted:
    hosted = host(step)
    hosted.open(held)
    return hosted


def feed(sites: list[Hosted], at: dict[int, int], rows: Any, keys: tuple[str, ...], first_sn: int) -> None:
    partition = partition_of([rows.column(name) for name in keys], PARTITIONS)
    sn = np.arange(first_sn, first_sn + rows.num_rows)
    for number, site in enumerate(sites):
        ours = np.flatnonzero([at[pid] == number for pid in partition.tolist()])
        if len(ours):
            assert site.process(Batch(rows.take(ours), sn[ours], None, partition[ours])) is None


def move(sites: list[Hosted], at: dict[int, int], rng: random.Random) -> None:
    """Now and then a partition moves to the other site, as bytes."""
    if rng.random() < 0.5:
        return
    pid = rng.randrange(PARTITIONS)
    donor, other = sites[at[pid]], sites[1 - at[pid]]
    packed = [encode(piece, "a test") for piece in donor.get_partition_state(pid)]
    donor.drop_partition(pid)
    for piece in packed:
        other.install_partition_state(pid, decode(piece))
    at[pid] = 1 - at[pid]
