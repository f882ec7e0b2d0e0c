"""What arrives of a copy on its way, and how it is installed."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from flux.exchange.channel_mask import ChannelMask
from flux.exchange.edge_bodies import EdgeBodies
from flux.exchange.rows import Rows
from flux.model.punctuation import Punctuation
from flux.protocols.messages import Block, Consume, Install, OutputRun, State
from flux.site.state_transfer.partition_copy import CopyInstaller, CopyReceiver, copy_values, read_copy
from flux.wire.frames import BadFrame
from flux.wire.state_codec import Parcel
from flux.wire.state_types import PLAIN, StateTypes
from flux.wire.transfer import Arrival, items


class Step:
    """An operator that notes what is installed."""

    def __init__(self, states: dict[int, Any] | None = None) -> None:
        self.installed: list[tuple[int, Any]] = []
        self._states = states or {}

    def get_partition_state(self, partition: int) -> Any:
        return self._states[partition]

    def words_of(self, partition: int) -> StateTypes:
        return PLAIN

    def init_trans(self, partition: int) -> None:
        self.installed.append((partition, "begins"))

    def install_partition_state(self, partition: int, piece: Any) -> None:
        self.installed.append((partition, piece))

    def end_trans(self, partition: int) -> None:
        self.installed.append((partition, "is done"))


def arrival_of(values: Any) -> Arrival:
    arrival = Arrival()
    for parts in items(values, "a test"):
        for part in parts:
            arrival.take(pa.py_buffer(part))
    return arrival


def state(runs: tuple[OutputRun, ...] = ()) -> State:
    return State(sender="site-1", view=3, stage=1, version=5, position=40, runs=runs, body=None)


EDGES = [(0,), (1,), ()]  # Out of the ingress, stage 1 and the sink.
COPY = next(iter(copy_values(state(), 0, {1: ChannelMask((), 1, 1)}, [], [0, []], 0)))
WITH_A_RUN = next(
    iter(
        copy_values(
            state((OutputRun(after=1, upto=2, rows=0, body=Rows(None, (Punctuation(2, "clock"),))),)),
            0,
            {1: ChannelMask((), 1, 1)},
            [],
            [0, []],
            0,
        )
    )
)


def test_a_copy_arrives_with_its_own_rows_and_the_state_of_each_step() -> None:
    producer, partition = np.array([0, 1, 0], np.uint16), np.zeros(3, np.uint16)
    rows = Rows.of(pa.record_batch({"n": [1, 2, 3]}), np.array([11, 12, 13]), None, producer, partition)
    runs = (
        OutputRun(after=10, upto=20, rows=3, body=rows),
        OutputRun(after=20, upto=30, rows=3, without=frozenset({0}), body=rows),
    )
    pieces = (piece for piece in ["first", np.arange(100_000)])
    steps: list[Any] = [Step({0: {"n": 1}}), Step({0: pieces})]
    own = ChannelMask((Block(producers=(0,), consumers=(0,)),), 2, 1)

    message = read_copy(arrival_of(copy_values(state(runs), 0, {1: own}, steps, [77, []], 1_000)), EDGES)

    assert (message.sender, message.version, message.position) == ("site-1", 5, 40)
    [run] = message.runs
    assert (run.after, run.upto, run.rows) == (10, 20, 2)
    assert run.body.user.column(0).to_pylist() == [1, 3]
    assert (message.body.digest, message.body.beyond, message.body.rows) == (77, [], 1_000)
    assert message.body.states[:2] == [(0, {"n": 1}), (1, "first")]
    assert message.body.states[2][1][-1] == 99_999


@pytest.mark.parametrize(
    "values",
    [
        [],
        [7],
        [[{"$": "State"}, [], [0, []], 0]],
        [[{"$": "Connected"}, [], [0, []], 0]],
        [[None, [[1, 2]], [0, []], 0]],
        [COPY, "no piece"],
        [COPY, ["no number", 1]],
        [[COPY[0], [], 0, 0]],
        [[COPY[0], [], [-1, []], 0]],
        [[COPY[0], [], [0, [[1]]], 0]],
        [[COPY[0], [], [0, [[1, -1]]], 0]],
        [[COPY[0], [], [0, []]]],
        [[COPY[0], [], [0, []], -1]],
        [[COPY[0], [], [0, []], "many"]],
        [[{**COPY[0], "stage": 2}, [], [0, []], 0]],
        [[{**COPY[0], "stage": -1}, [], [0, []], 0]],
        [[*WITH_A_RUN[:1], [[[None, []], [None, []]]], [0, []], 0]],
    ],
    ids=str,
)
def test_what_is_no_copy_is_refused(values: list[Any]) -> None:
    with pytest.raises(BadFrame):
        read_copy(arrival_of(values), EDGES)


def test_the_output_of_a_stage_with_several_edges_arrives_edge_by_edge() -> None:
    sn, producer = np.array([11, 12]), np.array([0, 1], np.uint16)
    one, two = (
        Rows.of(
            pa.record_batch({"n": [k, k + 1]}), sn, None, producer, np.zeros(2, np.uint16), (Punctuation(14, "clock"),)
        )
        for k in (1, 5)
    )
    runs = (OutputRun(after=10, upto=20, rows=4, body=EdgeBodies({1: one, 4: two})),)
    own = ChannelMask((Block(producers=(0,), consumers=(0,)),), 2, 1)
    message = read_copy(
        arrival_of(copy_values(state(runs), 0, {1: own, 4: own}, [], [7, [[65_536, 3]]], 0)), [(0,), (1, 4)]
    )
    [run] = message.runs
    assert run.rows == 2
    assert [run.body.on(edge).user.column(0).to_pylist() for edge in (1, 4)] == [[1], [5]]
    assert [mark.sn for mark in run.body.on(4).punctuations] == [14]
    assert message.body.beyond == [[65_536, 3]]


def _run(first: int, count: int, producer: int, marks: tuple[Punctuation, ...] = ()) -> OutputRun:
    """A run of `count` rows of a producer, numbered from `first`, up to ten positions after them."""
    sn = np.arange(first, first + count)
    body = Rows.of(
        pa.record_batch({"n": sn}), sn, None, np.full(count, producer, np.uint16), np.zeros(count, np.uint16), marks
    )
    return OutputRun(after=first - 1, upto=first + count + 9, rows=count, body=body)


def test_neighbouring_runs_of_a_copy_arrive_as_one() -> None:
    clock = Punctuation(25, "clock")
    runs = (_run(1, 5, 0), _run(11, 3, 1), _run(21, 2, 1, (clock,)), _run(31, 4, 0), _run(41, 250, 0))
    own = ChannelMask((Block(producers=(0,), consumers=(0,)),), 2, 1)
    message = read_copy(arrival_of(copy_values(state(runs), 0, {1: own}, [], [0, []], 0)), EDGES)
    assert [(run.after, run.upto, run.rows) for run in message.runs] == [(0, 44, 9), (40, 300, 250)]
    assert message.runs[0].body.user.column(0).to_pylist() == [1, 2, 3, 4, 5, 31, 32, 33, 34]
    assert [run.body.punctuations for run in message.runs] == [(clock,), ()]


def test_a_copy_given_on_has_no_more_runs_than_rows() -> None:
    runs = tuple(_run(10 * k + 1, 3, k % 7) for k in range(700))
    own = ChannelMask((Block(producers=(3,), consumers=(0,)),), 7, 1)
    message = read_copy(arrival_of(copy_values(state(runs), 3, {1: own}, [], [0, []], 0)), EDGES)
    assert [run.rows for run in message.runs] == [255, 45]


def test_runs_of_before_and_after_a_change_of_columns_are_not_joined() -> None:
    runs = [_run(10 * k + 1, 3, 0) for k in range(4)]
    for place in (2, 3):
        wide = runs[place].body.wide
        runs[place] = replace(runs[place], body=Rows(wide.add_column(0, "more", pa.array([1] * wide.num_rows))))
    own = ChannelMask((Block(producers=(0,), consumers=(0,)),), 7, 1)
    message = read_copy(arrival_of(copy_values(state(tuple(runs)), 0, {1: own}, [], [0, []], 0)), EDGES)
    assert [(run.after, run.upto, run.rows) for run in message.runs] == [
        (runs[0].after, runs[1].upto, 6),
        (runs[2].after, runs[3].upto, 6),
    ]


def job(stage: int, *partitions: int) -> Consume:
    return Consume(stage=stage, cohort=0, partitions=frozenset(partitions), after=0, upto=1, frames=())


def begun(installing: CopyInstaller, step: Any, pieces: list[Any], took: list[float], partition: int = 0) -> None:
    effect = Install(stage=1, partition=partition, body=Parcel([(0, piece) for piece in pieces], 0))
    installing.begin(effect, [step], took.append)


def test_a_job_waits_until_each_piece_has_had_its_turn_and_others_do_not() -> None:
    installing, step, took = CopyInstaller(), Step(), list[float]()
    begun(installing, step, ["a", "b"], took)
    assert not installing.install_one(job(1, 1, 2)), "another partition"
    assert not installing.install_one(job(2, 0)), "another stage"
    assert step.installed == [(0, "begins")]
    assert installing.install_one(job(1, 0, 1)) and step.installed == [(0, "begins"), (0, "a")]
    assert not took
    assert installing.install_one(job(1, 0)) and step.installed[2:] == [(0, "b"), (0, "is done")]
    assert len(took) == 1
    assert not installing.install_one(job(1, 0))


def test_what_is_left_of_a_copy_can_be_installed_at_once() -> None:
    installing, step, took = CopyInstaller(), Step(), list[float]()
    begun(installing, step, ["a", "b"], took)
    begun(installing, step, ["c"], took, partition=1)
    installing.finish(1, 0)
    assert step.installed == [(0, "begins"), (1, "begins"), (0, "a"), (0, "b"), (0, "is done")]
    installing.finish(1, 0)
    assert installing.install_one(job(1, 1)) and step.installed[-2:] == [(1, "c"), (1, "is done")]


def test_state_for_a_step_that_is_not_there_is_refused() -> None:
    effect = SimpleNamespace(stage=1, partition=0, body=Parcel([(1, "piece")], 0))
    with pytest.raises(BadFrame, match="step 1 of stage 1, which has 1"):
        CopyInstaller().begin(effect, [Step()], print)  # type: ignore[arg-type, list-item]


def test_chunks_are_kept_by_donor_and_copy_and_forgotten_together() -> None:
    receiving = CopyReceiver()
    one, other = receiving.take("site-1", 1, None), receiving.take("site-1", 2, None)
    third = receiving.take("site-2", 1, None)
    assert receiving.take("site-1", 1, None) is one
    assert receiving.take("site-2", 1, None) is third
    receiving.forget_all("site-1")
    assert receiving.take("site-1", 1, None) is not one
    assert receiving.take("site-1", 2, None) is not other
    receiving.forget("site-2", 1)
    assert receiving.take("site-2", 1, None) is not third
