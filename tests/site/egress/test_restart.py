"""An egress that takes another's place goes on behind what its sink has; the program hears of every row.

The process's own code, between a producer that the test plays and a sink; a crash is the end of its tasks.
"""

from __future__ import annotations

import json
import logging
import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import trio
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st

from flux.exchange.rows import Rows
from flux.model.punctuation import Punctuation
from flux.plan import Plan, Segment
from flux.protocols.messages import Ack, Attach, Data, Send, View
from flux.sinks import Callback, Jsonl, Null, Parquet, Sink
from flux.site.config import ProcessConfig
from flux.site.egress.egress_process import EgressProcess
from flux.types.errors import FluxError, SinkError
from flux.wire.reports import LogLine, Report, RowsWritten
from flux.wire.secret import new_secret

PLAN = Plan(
    name="again",
    segments=(Segment(columns=("n",), partitions=1, availability="none", steps=()),),
    sites=1,
    standby=0,
    pool_rows=100,
)
EDGE = 1


class Producer:
    """The last stage: it keeps what was not acknowledged. Number sn brings the row sn, unless it is a multiple of 3."""

    def __init__(self, last: int) -> None:
        self.last = last
        self.acked = 0

    def data(self, attach: Attach, upto: int, sent: int) -> Data:
        sn = np.array([sn for sn in range(sent + 1, upto + 1) if sn % 3], dtype=np.int64)
        zeros = np.zeros(len(sn), dtype=np.uint16)
        punctuations = (Punctuation(upto, "end"),) if upto == self.last else ()
        rows = Rows.of(pa.record_batch({"n": pa.array(sn)}), sn, None, zeros, zeros, punctuations)
        return Data(
            sender="site-1", view=attach.view, edge=EDGE, lane_id=attach.lane_id, after=sent, upto=upto, bodies=(rows,)
        )


class Played(EgressProcess):
    """The egress process with the test at the other end of its links."""

    def __init__(self, directory: Path, sink: Sink, producer: Producer, incarnation: int) -> None:
        config = ProcessConfig(plan=PLAN, directory=directory, run="again", secret=new_secret())
        super().__init__(config, (sink,), incarnation)
        self.producer = producer
        self.attach: Attach | None = None
        self.errors: list[BaseException] = []
        self.reported: list[Report] = []
        self.shell.reports.send_report = lambda report, rows=None: self.reported.append(report)  # type: ignore
        self.shell._send = self._send  # type: ignore[method-assign]
        self.shell.fail = self._fail  # type: ignore[method-assign]

    def _send(self, effect: Send) -> None:
        if isinstance(effect.message, Attach):
            assert effect.message.position >= self.producer.acked, "what was acknowledged is gone"
            self.attach = effect.message
        else:
            assert isinstance(effect.message, Ack)
            self.producer.acked = effect.message.position

    def _fail(self, error: BaseException) -> None:
        self.errors.append(error)

    def view(self) -> View:
        first = PLAN.view()
        dead = ["egress", *(f"egress.{n}" for n in range(2, self._incarnation))][: self._incarnation - 1]
        return View(
            number=self._incarnation,
            nodes=tuple(dict.fromkeys((*first.nodes, *dead, self.shell.name))),
            dead=frozenset(dead),
            copies=(*first.copies[:-1], ((self.shell.name,),)),
        )


async def live(process: Played, steps: list[int], *, crash: bool) -> None:
    """One life: data comes in ranges of these lengths; at the end it dies, or gets all the rest and is through."""
    async with trio.open_nursery() as nursery:
        process.shell.nursery = nursery
        process.shell.node = await process.prepare()
        nursery.start_soon(process.shell._guarded_loop)
        process.shell.enqueue(process.view())
        await trio.testing.wait_all_tasks_blocked()
        last = process.producer.last
        if process.attach is not None and not process.errors:
            sent = process.attach.position
            for step in [*steps, *([] if crash else [last])]:
                upto = min(last, sent + step)
                if upto > sent:
                    process.shell.enqueue(process.producer.data(process.attach, upto, sent))
                    sent = upto
                    await trio.testing.wait_all_tasks_blocked()
            # A sink that blocks works in a thread, which is not a task: a crash comes before or after its answer.
            with trio.fail_after(60):
                while not crash and not process.errors and process.producer.acked < sent:
                    await trio.sleep(0.001)
        nursery.cancel_scope.cancel()
    for outlet in process._writers:
        if outlet.progress is not None:
            outlet.progress.close()


STEPS = st.lists(st.lists(st.integers(1, 9), max_size=5), min_size=1, max_size=4)


@pytest.mark.parametrize("kind", ["Jsonl", "Parquet", "Callback", "Null"])
@settings(max_examples=15)
@given(last=st.integers(1, 40), steps=STEPS)
def test_each_row_is_at_the_sink_once_and_heard_of(kind: str, last: int, steps: list[list[int]]) -> None:
    expected = [sn for sn in range(1, last + 1) if sn % 3]
    seen: list[int] = []
    producer = Producer(last)
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr("os.fsync", lambda fd: None)
        out = Path(folder, "out")
        for incarnation, some in enumerate(steps, 1):
            sink: Sink = {
                "Jsonl": lambda: Jsonl(out),
                "Parquet": lambda: Parquet(out),
                "Callback": lambda: Callback(lambda rows: seen.extend(rows["n"].to_pylist())),
                "Null": Null,
            }[kind]()
            process = Played(Path(folder), sink, producer, incarnation)
            trio.run(lambda process=process, some=some: live(process, some, crash=process._incarnation < len(steps)))
            assert not process.errors
            if isinstance(sink, Parquet) and sink._journal is not None:
                sink._journal.close()
            if isinstance(sink, Jsonl) and sink._fd >= 0:
                os.close(sink._fd)
        first, last = process.reported[0], process.reported[-1]
        assert isinstance(first, RowsWritten) and isinstance(last, RowsWritten)
        assert last.end and last.total == len(expected)
        assert first.after <= first.upto
        if kind == "Jsonl":
            seen = [json.loads(line)["n"] for line in out.read_text().splitlines()]
        elif kind == "Parquet":
            seen = [n for path in sorted(out.glob("part-*")) for n in pa.parquet.read_table(path)["n"].to_pylist()]
        assert kind == "Null" or seen == expected


def test_an_egress_that_begins_behind_the_end_says_that_it_was_reached(tmp_path: Path) -> None:
    producer = Producer(5)
    trio.run(lambda: live(Played(tmp_path, Null(), producer, 1), [], crash=False))
    second = Played(tmp_path, Null(), producer, 2)
    trio.run(lambda: live(second, [], crash=False))
    written = RowsWritten(sink=0, after=5, upto=5, rows=0, end=True, position=5, ahead=(), total=4)
    assert second.reported == [written]


def test_a_sink_that_cannot_be_opened_is_told_to_the_program(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("something else")
    process = Played(tmp_path, Jsonl(tmp_path / "out"), Producer(5), 1)
    trio.run(lambda: live(process, [], crash=True))
    [error] = process.errors
    assert isinstance(error, FluxError) and "overwrite=True" in str(error)


def test_what_a_sink_that_blocks_raises_is_told_to_the_program(tmp_path: Path) -> None:
    class Bad(Null):
        blocks = True

        def write(self, rows: pa.RecordBatch, after: int, upto: int) -> None:
            raise ZeroDivisionError("no")

    process = Played(tmp_path, Bad(), Producer(5), 1)
    trio.run(lambda: live(process, [2], crash=False))
    [error] = process.errors
    assert isinstance(error, SinkError)
    assert "test_restart.py:" in str(error)
    assert ") raised ZeroDivisionError: no when it took the output of the input 1 to 2. " in str(error)
    assert process.producer.acked == 0


def test_a_sink_whose_write_is_a_generator_has_written_nothing_and_acknowledges_nothing(tmp_path: Path) -> None:
    class Later(Null):
        blocks = True

        def write(self, rows: pa.RecordBatch, after: int, upto: int) -> Any:
            yield rows

    process = Played(tmp_path, Later(), Producer(5), 1)
    trio.run(lambda: live(process, [2], crash=False))
    [error] = process.errors
    assert isinstance(error, SinkError) and "which nothing runs, so it has done nothing" in str(error)
    assert process.producer.acked == 0


@pytest.mark.parametrize("blocking", [False, True])
def test_a_sink_is_flushed_as_often_as_it_asks_and_when_the_run_stops(tmp_path: Path, blocking: bool) -> None:
    flushed = trio.Event()

    class Flushing(Null):
        blocks = blocking
        flush_every_s = 0.01

        def flush(self) -> None:
            if is_stopping:
                stopped.append(True)
            elif blocking:
                trio.from_thread.run_sync(flushed.set)
            else:
                flushed.set()

    stopped: list[bool] = []
    is_stopping = False
    process = Played(tmp_path, Flushing(), Producer(5), 1)

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            process.shell.nursery = nursery
            process.shell.node = await process.prepare()
            nursery.start_soon(process.shell._guarded_loop)
            with trio.fail_after(60):
                await flushed.wait()
            nursery.cancel_scope.cancel()

    trio.run(main)
    is_stopping = True
    process.stop()
    assert stopped == [True]


@pytest.mark.parametrize("blocking", [False, True])
def test_what_a_sink_raises_as_it_is_flushed_ends_the_run_and_is_said_when_it_stops(
    tmp_path: Path, blocking: bool
) -> None:
    class Bad(Null):
        blocks = blocking
        flush_every_s = 0.01

        def flush(self) -> None:
            raise ZeroDivisionError("no")

    process = Played(tmp_path, Bad(), Producer(5), 1)

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            process.shell.nursery = nursery
            process.shell.node = await process.prepare()
            nursery.start_soon(process.shell._guarded_loop)
            with trio.fail_after(60):
                while not process.errors:
                    await trio.sleep(0.001)
            nursery.cancel_scope.cancel()

    trio.run(main)
    error = process.errors[0]
    assert isinstance(error, SinkError) and "raised ZeroDivisionError: no when it was flushed" in str(error)
    process.stop()
    [line] = [report for report in process.reported if isinstance(report, LogLine)]
    assert line.level == logging.WARNING and "when it was flushed" in line.text


def test_names_follow_the_incarnation(tmp_path: Path) -> None:
    assert Played(tmp_path / "none", Null(), Producer(1), 1).shell.name == "egress"
    assert Played(tmp_path / "none", Null(), Producer(1), 3).shell.name == "egress.3"
