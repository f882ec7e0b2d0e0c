"""The journal of Spark's staging area loses its end, alone or with that of the ingress: exact, or a clear error.

Spark is played by a thread that stages and commits as its tasks do; everything else is real.
"""

from __future__ import annotations

import itertools
import os
import random
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import trio
from scripted_query import QUERY, ScriptedStream

import flux
from flux.sources import SourceContext
from flux.spark.source.staging_store import Published, StagingStore
from tests.runtime.lost_tails import KEYS, Counts, assert_nothing_lost_or_repeated, cut_and_kill, rows_of_lines

ROWS, BATCHES_MAX = 30_000, 60
STAGING, INGRESS, BOTH = ["staging"], ["ingress"], ["ingress", "staging"]
SYNCED = ("done", "end")  # Records that are on the disk before Spark gets an answer.
PATIENCE_S = 10.0
LOST = "has lost its end"


def micro_batches(rng: random.Random) -> list[pa.RecordBatch]:
    """The same rows as ever, in micro-batches of random sizes, so that a later one does not fit the earlier's place."""
    cuts = [0, *sorted(rng.sample(range(1, ROWS), rng.randrange(10, BATCHES_MAX))), ROWS]
    spans = [range(start, stop) for start, stop in itertools.pairwise(cuts)]
    return [pa.record_batch({"id": ids, "key": [i % KEYS for i in ids]}) for ids in spans]


def run_and_cut(journals: list[str], path: Path, seed: int) -> str | None:
    """Run a flow over a scripted query, and cut journals of its ingress; return the error that ended the run."""
    rng = random.Random(f"{journals} {seed}")
    flow = flux.Dataflow("staged")
    source = flow.source(ScriptedStream(micro_batches(rng), pause_s=rng.choice((0.0, 0.05))))
    source.exchange("key", partitions=4).apply(Counts).sink(flux.sinks.Jsonl(path / "out.jsonl"))
    error = None
    try:
        with flow.start(sites=2) as run:
            run.wait_for_output(rng.randrange(1, 4 * ROWS // 5))
            # Alone it may lose more than a loss of power takes.
            cut_and_kill(run, journals, rng, synced=("end",) if journals == STAGING else SYNCED)
            run.wait(timeout=60)
    except flux.FluxError as raised:
        error = str(raised)
    assert_nothing_lost_or_repeated(rows_of_lines(path / "out.jsonl"), ROWS if error is None else None)
    assert error is None or (LOST in error and "run the flow again" in error), error
    return error


def test_rows_after_a_micro_batch_that_the_ingress_has_forgotten_are_refused(tmp_path: Path) -> None:
    store = StagingStore(tmp_path)
    store.publish(Published(QUERY, 3, ()))
    store.finish(Published(QUERY, 3, ()))
    stream = ScriptedStream(micro_batches(random.Random(0)))
    stream.bind(tmp_path)

    async def first_after(offset: Any) -> Any:
        with trio.move_on_after(0.1):
            return await anext(stream.batches(SourceContext(tmp_path), offset))

    try:
        for offset in (None, [2, 10, 1, None], [3, 10, 0, None]):
            with pytest.raises(flux.FluxError, match=r"lost its end.*micro-batch 3.*run the flow again"):
                trio.run(first_after, offset)
        assert trio.run(first_after, [3, 10, 1, None]) is None  # It waits for what Spark commits next.
    finally:
        stream.stop()


def test_what_spark_gets_an_answer_to_is_on_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal, synced = tmp_path / "staging.journal", []
    store = StagingStore(tmp_path)
    monkeypatch.setattr(os, "fsync", lambda fd: synced.append(os.fstat(fd).st_size))
    store.publish(Published(QUERY, 0, ()))
    assert synced == []  # Spark repeats a commit that got no answer.
    store.finish(Published(QUERY, 0, ()))
    assert synced == [journal.stat().st_size]
    store.end("run", None)
    assert synced[1:] == [journal.stat().st_size]


def test_a_run_that_has_failed_does_not_wait_for_an_ingress_that_does_not_answer(tmp_path: Path) -> None:
    stream = ScriptedStream(micro_batches(random.Random(0)))
    stream.bind(tmp_path)
    held = stream._listener.dup()  # As a process of the run holds it, which accepts no connection.
    stream._watcher = threading.Thread(target=stream._report_end, args=(None,))
    stream._watcher.start()
    began = time.monotonic()
    stream.stop()
    held.close()
    assert time.monotonic() - began < PATIENCE_S


@pytest.mark.parametrize("seed", range(1))
def test_a_micro_batch_that_the_staging_journal_has_lost_is_committed_again(tmp_path: Path, seed: int) -> None:
    assert run_and_cut(STAGING, tmp_path, seed) is None


# With both journals cut 2,084 rows were lost, and the run ended well: a later micro-batch got the numbers of one that
# Spark had committed.
@pytest.mark.long
@pytest.mark.parametrize("seed", range(25))
@pytest.mark.parametrize("journals", [STAGING, INGRESS, BOTH], ids="+".join)
def test_staging_that_is_cut_anywhere_costs_no_row(
    tmp_path: Path, journals: list[str], seed: int, record_property: Callable[[str, object], None]
) -> None:
    error = run_and_cut(journals, tmp_path, seed)
    record_property("outcome", "exact" if error is None else "clear error")
