"""Real processes, real SIGKILL: the output equals a plain run's, nothing is left behind.

It takes half a minute: each test is a run of real processes that die and are replaced.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

import flux
from experiments import dmz
from flux.driver.run_state import RunState
from flux.plan import Plan
from flux.site.recording import SUFFIX, replay

from .waiting import is_gone, wait_until

PACED_ROWS_PER_S = 50_000  # So that rows flow while copies are rebuilt.
RECOVERY_S = 30.0


@pytest.mark.parametrize(
    ("sites", "victim", "part"),
    [(2, 1, 0.0), (2, 2, 0.5), (3, 1, 0.2), (3, 3, 0.9), (4, 2, 0.4), (4, 4, 0.7), (5, 3, 0.1)],
)
def test_the_output_is_exact_whichever_site_is_killed_whenever(
    packets: list[pa.RecordBatch], expected: pa.Table, sites: int, victim: int, part: float
) -> None:
    with dmz.flow(packets, partitions=12).start(sites=sites) as run:
        run.wait_for_output(int(part * expected.num_rows))
        run.kill(f"site-{victim}")
        report = run.wait(timeout=60)
    assert report.table.equals(expected)
    assert [failure.site for failure in report.failures] == [f"site-{victim}"]


def test_pools_of_a_few_rows_do_not_deadlock_a_run_that_loses_a_site(
    packets: list[pa.RecordBatch], expected: pa.Table
) -> None:
    smaller = pa.Table.from_batches(packets).to_batches(max_chunksize=1_024)
    with dmz.flow(smaller, partitions=5).start(sites=3, pool_rows=100) as run:
        run.wait_for_output(1_000)
        run.kill("site-2")
        report = run.wait(timeout=60)
    assert report.table.equals(expected)


def test_one_partition_on_many_sites_leaves_some_idle(packets: list[pa.RecordBatch], expected: pa.Table) -> None:
    with dmz.flow(packets, partitions=1).start(sites=4, standby=1) as run:
        run.wait_for_output(1_000)
        run.kill("site-3")
        report = run.wait(timeout=60)
    assert report.table.equals(expected)


def test_two_sites_that_share_no_partition_may_both_die(packets: list[pa.RecordBatch], expected: pa.Table) -> None:
    with dmz.flow(packets, partitions=8).start(sites=4) as run:
        run.wait_for_output(1_000)
        run.kill("site-1")
        run.kill("site-3")
        report = run.wait(timeout=60)
    assert report.table.equals(expected)


def gated(packets: list[pa.RecordBatch], gate: Path) -> Iterator[pa.RecordBatch]:
    """The packets; the second half waits until the file `gate` is there."""
    half = len(packets) // 2
    yield from packets[:half]
    while not gate.exists():
        time.sleep(0.01)
    yield from packets[half:]


def rebuilt(run: flux.run.Run, site: str) -> None:
    """Wait until every partition has all its copies again after the death of `site`."""

    def is_whole(run_state: RunState) -> bool:
        return site in run_state.closed_at and any(whole.at > run_state.closed_at[site] for whole in run_state.wholes)

    assert run._driver.wait(
        lambda run_state: is_whole(run_state) or run_state.ended or run_state.error is not None, RECOVERY_S
    )
    assert is_whole(run._driver.run_state), f"the run ended before the copies of {site} were rebuilt"


@pytest.mark.parametrize(
    "second", ["site-2", *(pytest.param(site, marks=pytest.mark.long) for site in ("site-3", "site-4"))]
)
def test_when_lost_copies_are_rebuilt_another_site_may_die(
    packets: list[pa.RecordBatch], expected: pa.Table, second: str, tmp_path: Path
) -> None:
    # site-2 and site-3 shared partitions with site-1; site-4 is the standby that got its copies.
    gate = tmp_path / "gate"
    flow = dmz.flow(gated(packets, gate), partitions=6, rate=PACED_ROWS_PER_S)
    with flow.start(sites=3, standby=1) as run:
        run.wait_for_output(1_000)
        run.kill("site-1")
        rebuilt(run, "site-1")
        gate.touch()
        run.kill(second)
        report = run.wait(timeout=60)
    assert report.table.equals(expected)
    first = report.failures[0]
    assert first.site == "site-1"
    assert first.recovered_after_s is not None and first.bytes_moved > 0
    assert [failure.site for failure in report.failures] == ["site-1", second]


def test_without_a_standby_lost_copies_are_rebuilt_on_the_sites_left(
    packets: list[pa.RecordBatch], expected: pa.Table, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    with dmz.flow(gated(packets, gate), partitions=6, rate=PACED_ROWS_PER_S).start(sites=3) as run:
        run.wait_for_output(1_000)
        run.kill("site-1")
        rebuilt(run, "site-1")
        gate.touch()
        run.kill("site-2")
        report = run.wait(timeout=60)
    assert report.table.equals(expected)
    assert report.failures[0].recovered_after_s is not None
    assert report.failures[1].recovered_after_s is None, "one site cannot hold two copies"


def test_both_copies_lost_is_data_lost_that_names_the_partitions(
    packets: list[pa.RecordBatch], expected: pa.Table
) -> None:
    flow = dmz.flow(packets, partitions=4, rate=100_000)
    collected = flow._logical.sinks[0]
    with flow.start(sites=4) as run:
        run.wait_for_output(1_000)
        run.kill("site-1")
        run.kill("site-2")
        with pytest.raises(flux.DataLost, match="CountWindow") as caught:
            run.wait(timeout=60)
    assert ("CountWindow", 0) in caught.value.partitions, "the last stage is rebuilt last"
    assert isinstance(collected, flux.sinks.Collect)
    got = collected.table()
    assert got.equals(expected.slice(0, got.num_rows)), "the output before the loss is right"


def test_without_redundancy_the_output_is_the_same(packets: list[pa.RecordBatch], expected: pa.Table) -> None:
    assert dmz.flow(packets).run(sites=3, availability="none").table.equals(expected)


def test_a_replayed_recording_gives_the_same_effects(
    packets: list[pa.RecordBatch], expected: pa.Table, tmp_path: Path
) -> None:
    with dmz.flow(packets).start(sites=3, record=tmp_path) as run:
        run.wait_for_output(10_000)
        run.kill("site-2")
        assert run.wait(timeout=60).table.equals(expected)
    steps = {path.name.removesuffix(SUFFIX): replay(path) for path in tmp_path.glob(f"*{SUFFIX}")}
    assert set(steps) == {"controller", "ingress", "egress", "site-1", "site-2", "site-3"}
    assert all(count > 4 for count in steps.values()), steps


def test_a_stopped_run_leaves_no_process_and_no_file(packets: list[pa.RecordBatch]) -> None:
    with dmz.flow(packets, rate=10_000).start(sites=2) as run:
        run.wait_for_output(1)
        pids = [process.pid for process in run._driver.processes]
    assert not run.directory.exists()
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_processes_end_when_their_program_is_killed(packets: list[pa.RecordBatch], tmp_path: Path) -> None:
    listed = tmp_path / "pids"
    program = os.fork()
    if program == 0:
        try:
            run = dmz.flow(packets, rate=1_000).start(sites=2)
            listed.write_text(" ".join(str(process.pid) for process in run._driver.processes))
            time.sleep(60)
        finally:
            os._exit(1)
    wait_until(lambda: listed.exists() and bool(listed.read_text()), "the run has not started")
    pids = [int(pid) for pid in listed.read_text().split()]
    os.kill(program, 9)
    os.waitpid(program, 0)
    wait_until(lambda: all(map(is_gone, pids)), "processes outlived their program")


def test_chained_declustering_never_puts_two_copies_on_one_site() -> None:
    segment = flux.plan.Segment(columns=("a",), partitions=7, availability="pairs", steps=())
    for sites in range(2, 6):
        view = Plan(name="p", segments=(segment,), sites=sites, standby=0, pool_rows=1).view()
        assert all(len(set(copies)) == 2 for copies in view.copies[1])
