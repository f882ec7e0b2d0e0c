"""Stages and sinks that take rows as they come, on real processes, while anything is killed: each row comes once."""

# ruff: noqa: RUF012 - operators declare `output` as users do, without ClassVar.

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import flux
from flux.exchange.channel_mask import ChannelMask
from flux.exchange.rows import Rows
from flux.exchange.stage_input import StageInput
from flux.plan import Policy
from flux.protocols.messages import Consume, PendingInput

ROWS = [{"k": n * 7 % 23, "v": n} for n in range(1_500)]


class Squares(flux.Operator):
    """What it makes of a row depends on nothing but the row, as an operator must that takes rows in any order."""

    output = {"k": "int64", "v": "int64", "square": "int64"}

    def process(self, batch: Any) -> Any:
        return batch.emit({"k": batch["k"], "v": batch["v"], "square": batch["v"] ** 2})


class Tally(flux.Operator):
    """How often each key came, told at the end: the order does not matter, but that all have come does."""

    output = {"k": "int64", "n": "int64"}

    def open(self, context: Any) -> None:
        self.seen: Counter[int] = Counter()

    def process(self, batch: Any) -> None:
        self.seen.update(batch["k"].tolist())

    def on_punctuation(self, p: Any) -> Any:
        keys = sorted(self.seen)
        return {"k": keys, "n": [self.seen[key] for key in keys]} if p.kind == "end" else None

    def get_state(self) -> Any:
        return [[key, count] for key, count in self.seen.items()]

    def install_state(self, state: Any) -> None:
        self.seen = Counter(dict(state))


def flow_of(path: Path, rate: float | None) -> tuple[flux.Dataflow, flux.sinks.Collect, flux.sinks.Collect]:
    flow = flux.Dataflow("any order")
    events = flow.source(flux.sources.Table(ROWS, rate=rate, batch_rows=25))
    squares = events.exchange("k", partitions=6, order="any").apply(Squares)
    tallies = squares.exchange(by="any", partitions=5, order="any").apply(Tally)
    collected, tallied = flux.sinks.Collect(), flux.sinks.Collect()
    squares.sink(collected, order="any")
    squares.sink(flux.sinks.Jsonl(path), order="any")
    tallies.sink(tallied)
    return flow, collected, tallied


def check(path: Path, collected: flux.sinks.Collect, tallied: flux.sinks.Collect) -> None:
    squares = sorted((row["v"], row["square"]) for row in collected.table().to_pylist())
    assert squares == [(row["v"], row["v"] ** 2) for row in ROWS]
    assert sorted(json.loads(line)["v"] for line in path.read_text().splitlines()) == [row["v"] for row in ROWS]
    counts: Counter[int] = Counter()
    for row in tallied.table().to_pylist():
        counts[row["k"]] += row["n"]
    assert counts == Counter(row["k"] for row in ROWS)


@pytest.mark.parametrize("victims", [["site-1"], ["ingress", "ingress"], ["egress", "egress"]], ids=str)
def test_each_row_comes_once_whatever_dies(victims: list[str], tmp_path: Path) -> None:
    flow, collected, tallied = flow_of(tmp_path / "out.jsonl", rate=800)
    with flow.start(sites=3) as run:
        for count, victim in zip((400, 1_200), victims, strict=False):
            run.wait_for_output(count)
            run.kill(victim)
        run.wait()
    check(tmp_path / "out.jsonl", collected, tallied)


def test_a_copy_of_a_stage_that_is_ahead_of_its_frontier_moves_with_all_it_has(tmp_path: Path) -> None:
    flow, collected, tallied = flow_of(tmp_path / "out.jsonl", rate=800)
    with flow.start(sites=2, standby=1) as run:
        run.wait_for_output(300)
        run.drain("site-2")
        run.wait()
    check(tmp_path / "out.jsonl", collected, tallied)


def test_recordings_of_such_a_run_replay(tmp_path: Path) -> None:
    from flux.site.recording import SUFFIX, replay

    flow, collected, tallied = flow_of(tmp_path / "out.jsonl", rate=1_500)
    with flow.start(sites=2, record=tmp_path / "recordings") as run:
        run.wait_for_output(500)
        run.kill("egress")
        run.wait()
    check(tmp_path / "out.jsonl", collected, tallied)
    recordings = sorted((tmp_path / "recordings").glob(f"*{SUFFIX}"))
    assert {path.name.partition(".")[0] for path in recordings} >= {"ingress", "egress", "site-1", "site-2"}
    assert all(replay(path) for path in recordings)


# What an ordered stage takes from one that keeps no order.


class Caused(Tally):
    """What came so far, by key, at each punctuation: the first row of each partition has one place with the others'."""

    def on_punctuation(self, p: Any) -> Any:
        keys = sorted(self.seen)
        return {"k": keys, "n": [self.seen[key] for key in keys]}


class Passing(flux.Operator):
    output = {"one": "int64", "k": "int64", "n": "int64"}

    def process(self, batch: Any) -> Any:
        return batch.emit({"one": [1] * len(batch), "k": batch["k"], "n": batch["n"]})


class Chained(flux.KeyedOperator):
    """Depends on the order of all that came before."""

    output = {"chain": "int64"}

    def on_tuple(self, key: Any, row: Any, state: Any) -> Any:
        chain = ((state or 1) * 31 + 7 * row.k + row.n) % 1_000_003
        return chain, [{"chain": chain}]


def chained() -> flux.Dataflow:
    flow = flux.Dataflow("chained")
    events = flow.source(flux.sources.Table(ROWS, batch_rows=25), event_time="v", watermark_every_ms=50)
    caused = events.exchange("k", partitions=6).apply(Caused)
    passed = caused.exchange(by="any", partitions=4, order="any").apply(Passing)
    passed.exchange("one", partitions=2).apply(Chained).sink(flux.sinks.Collect())
    return flow


def test_rows_of_one_place_are_in_one_order_in_every_copy_behind_a_stage_that_keeps_none() -> None:
    first, again = (chained().run(sites=3).table for _ in range(2))
    assert first.equals(again) and len(first) > 500


@pytest.mark.parametrize("first", [0, 1])
def test_which_frame_of_such_a_stage_came_first_means_nothing(first: int) -> None:
    plan = chained()._logical.plan(2, 0, "pairs", 1_000, Policy())
    one = pa.record_batch({"one": [1, 1, 1], "k": [5, 3, 9], "n": [1, 1, 1]})
    other = pa.record_batch({"one": [1, 1], "k": [4, 8], "n": [1, 1]})
    nobody = np.zeros(3, np.uint16)
    bodies = [
        Rows.of(one, np.array([2, 2, 7]), None, nobody, nobody),
        Rows.of(other, np.array([2, 2]), None, nobody[:2], nobody[:2]),
    ]
    frames = [
        PendingInput(edge=2, after=0, upto=9, channels=(), body=body) for body in (bodies[first], bodies[1 - first])
    ]
    inputs = StageInput(
        plan.inputs(3), plan.sides(3), plan.unsettled(3), lambda blocks, edge: ChannelMask(blocks, 4, 2)
    )
    job = Consume(stage=3, cohort=1, partitions=frozenset({0}), after=0, upto=9, frames=tuple(frames))
    assert inputs.merged(job).user.column("k").to_pylist() == [3, 4, 5, 8, 9]
