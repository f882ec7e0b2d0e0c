"""Real processes, balanced: partitions move while rows flow, and the output is exact whatever the policy does.

It takes a quarter of a minute: each test is a run of real processes.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

import flux
import flux.balance
from flux.balance import Move
from flux.driver.run_state import RunState
from flux.site.recording import SUFFIX, replay

from .waiting import wait_until

PARTITIONS = 8
ROWS = [{"k": index * 7919 % 97, "v": index} for index in range(6_000)]
ROWS_PER_S = 3_000
STATE_BYTES = 8 << 20  # So that a move takes many times what clocks of two cores may differ by.


class Counts(flux.Operator):
    """Counts each key, beside state that takes a while to move."""

    output: ClassVar = {"k": "int64", "n": "int64"}

    def open(self, context: flux.Context) -> None:
        self._counts: Counter[int] = Counter()
        self._ballast = np.zeros(STATE_BYTES // 8, np.int64)

    def process(self, batch: flux.Batch) -> Any:
        counts = []
        for key in batch["k"].tolist():
            self._counts[key] += 1
            counts.append(self._counts[key])
        return batch.emit({"k": batch["k"], "n": counts})

    def get_state(self) -> Any:
        return {"counts": dict(self._counts), "ballast": self._ballast}

    def install_state(self, state: Any) -> None:
        self._counts, self._ballast = Counter(state["counts"]), state["ballast"]


def counted() -> list[dict[str, int]]:
    """What `Counts` must give: the same in a plain loop."""
    seen: Counter[int] = Counter()
    result = []
    for row in ROWS:
        seen[row["k"]] += 1
        result.append({"k": row["k"], "n": seen[row["k"]]})
    return result


def flow() -> flux.Dataflow:
    made = flux.Dataflow("balanced")
    rows = made.source(flux.sources.Table(ROWS, rate=ROWS_PER_S))
    rows.exchange("k", partitions=PARTITIONS).apply(Counts).sink(flux.sinks.Collect())
    return made


class AfterRows:
    """A policy of the user's own: it makes these moves once, when the sites have consumed so many rows."""

    def __init__(self, rows: int, moves: Sequence[Move]) -> None:
        self._rows = rows
        self._moves = moves

    def plan(self, statistics: Any) -> Sequence[Move]:
        consumed = sum(rows for each in statistics.reports for stage in each.work.stages for _, rows in stage.rows)
        return self._moves if consumed >= self._rows and not statistics.rounds else ()


def test_a_policy_of_the_users_own_moves_a_partition_and_the_output_is_exact(tmp_path: Path) -> None:
    policy = AfterRows(500, [Move(stage=1, partition=0, slot=0, to="site-3")])
    report = flow().run(sites=3, balance=policy, record=tmp_path)

    assert report.table.to_pylist() == counted()
    [move] = report.moves
    assert (move["step"], move["partition"], move["to"], move["round"]) == ("Counts", 0, "site-3", 1)
    [only] = report.rounds
    assert move["why"] == only["why"] == "AfterRows planned it"
    assert (only["moves"], only["failed"], only["bytes"]) == (1, 0, move["bytes"])
    assert only["took_s"] > 0 and 0 < only["when_s"] < report.duration_s
    assert move["bytes"] > STATE_BYTES
    for recording in tmp_path.glob(f"*{SUFFIX}"):
        assert replay(recording) > 0, "decisions of the policy are recorded as messages"


def test_a_policy_that_raises_is_said_once_and_the_run_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    class Broken:
        def plan(self, statistics: Any) -> Any:
            return 1 / (len(statistics.rounds) - len(statistics.rounds))

    line = Broken.plan.__code__.co_firstlineno + 1
    with caplog.at_level(logging.ERROR, "flux"), flow().start(sites=2, balance=Broken()) as run:
        report = run.wait(timeout=60)
        balance = run.status().balance

    assert report.table.to_pylist() == counted()
    [said] = [record.getMessage() for record in caplog.records if "balance" in record.getMessage()]
    assert "ZeroDivisionError" in said and f"{__file__}:{line}" in said
    assert balance == "off: the policy does not work"
    assert report.moves == report.rounds == []


@pytest.mark.parametrize("victim", ["site-1", "site-4", "controller"])
def test_whatever_is_killed_during_a_round_the_output_is_exact(victim: str) -> None:
    every = [Move(stage=1, partition=partition, slot=0, to="site-4") for partition in (0, 1, 4, 5)]
    with flow().start(sites=4, balance=AfterRows(500, every)) as run:
        wait_until(lambda: has_begun(run._run_state), "no round began")
        run.kill(victim)
        report = run.wait(timeout=60)

    assert report.table.to_pylist() == counted()
    assert [failure.site for failure in report.failures] == [victim]
    assert report.rounds[0]["moves"] == len(every)


def has_begun(run_state: RunState) -> bool:
    return bool(run_state.balance.rounds)


def test_the_load_of_sites_is_in_the_status() -> None:
    with flow().start(sites=2, standby=1, balance=AfterRows(500, [])) as run:

        def load() -> dict[str, Any]:
            return {process.name: process.utilisation for process in run.status().processes}

        wait_until(lambda: load()["site-1"] is not None and load()["site-2"] is not None, "no load is known")
        status = run.status()
        assert run.wait(timeout=60).table.to_pylist() == counted()
    assert status.balance == "collecting statistics"
    assert {process.name: process.lag for process in status.processes}["site-1"] is not None
    assert {process.name: process.lag for process in status.processes}["egress"] is None


def test_a_run_that_is_not_balanced_measures_nothing() -> None:
    with flow().start(sites=2, balance="off") as run:
        run.wait_for_output(3_000)
        status = run.status()
    assert status.balance == "off"
    assert all(process.utilisation is None for process in status.processes)
