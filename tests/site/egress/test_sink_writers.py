"""Several sinks at one egress, in order or not, over any number of its lives: each row is at each sink once."""

from __future__ import annotations

import json
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
from flux.plan import Edge, Plan, Route, Segment
from flux.plan.plan import INPUT
from flux.protocols.messages import Ack, Attach, Data, Send, View
from flux.sinks import Callback, Jsonl, Null, Parquet, Sink
from flux.site.config import ProcessConfig
from flux.site.egress.egress_process import EgressProcess
from flux.wire.secret import new_secret

SEGMENT = Segment(columns=("n",), partitions=2, availability="none", steps=())


def plan_of(sinks: int, unordered: frozenset[int]) -> Plan:
    """Two partitions, on two sites, feed all sinks."""
    first = Edge(producer=0, tap=INPUT, consumer=1, route=Route(columns=("n",), partitions=2))
    last = [Edge(producer=1, tap=INPUT, consumer=2 + sink, route=Route()) for sink in range(sinks)]
    return Plan(
        name="outlets",
        segments=(SEGMENT,),
        sites=2,
        standby=0,
        pool_rows=100,
        edges=(first, *last),
        sinks=sinks,
        unordered_sinks=unordered,
    )


class Producers:
    """The last stage: number sn brings the row sn, of partition sn % 2. It keeps what was not acknowledged."""

    def __init__(self, last: int) -> None:
        self.last = last
        self.acked: dict[tuple[str, int], int] = {}

    def data(self, attach: Attach, sender: str, upto: int, sent: int) -> Data:
        producers = {p for block in attach.channels for p in block.producers}
        sn = np.array([sn for sn in range(sent + 1, upto + 1) if sn % 2 in producers], dtype=np.int64)
        zeros = np.zeros(len(sn), dtype=np.uint16)
        punctuations = (Punctuation(upto, "end"),) if upto == self.last else ()
        rows = Rows.of(pa.record_batch({"n": pa.array(sn)}), sn, None, (sn % 2).astype(np.uint16), zeros, punctuations)
        return Data(
            sender=sender,
            view=attach.view,
            edge=attach.edge,
            lane_id=attach.lane_id,
            after=sent,
            upto=upto,
            bodies=(rows,),
        )


class Played(EgressProcess):
    """The egress process with the test at the other end of its links."""

    def __init__(self, plan: Plan, directory: Path, sinks: list[Sink], producers: Producers, incarnation: int) -> None:
        config = ProcessConfig(plan=plan, directory=directory, run="outlets", secret=new_secret())
        super().__init__(config, sinks, incarnation)
        self.producers = producers
        self.attached: list[tuple[str, Attach]] = []
        self.errors: list[BaseException] = []
        self.shell.reports.send_report = lambda report, rows=None: None  # type: ignore[method-assign]
        self.shell._send = self._send  # type: ignore[method-assign]
        self.shell.fail = self._fail  # type: ignore[method-assign]

    def _send(self, effect: Send) -> None:
        message = effect.message
        if isinstance(message, Attach):
            assert message.position >= self.producers.acked.get((effect.to, message.edge), 0), "that is gone"
            self.attached.append((effect.to, message))
        elif isinstance(message, Ack):
            self.producers.acked[effect.to, message.edge] = message.position

    def _fail(self, error: BaseException) -> None:
        self.errors.append(error)

    def begin(self) -> None:
        first = self.shell.plan.view()
        dead = ["egress", *(f"egress.{n}" for n in range(2, self._incarnation))][: self._incarnation - 1]
        ends = [((self.shell.name,),)] * self.shell.plan.sinks
        self.shell.enqueue(
            View(
                number=self._incarnation,
                nodes=tuple(dict.fromkeys((*first.nodes, *dead, self.shell.name))),
                dead=frozenset(dead),
                copies=(*first.copies[:2], *ends),
                edges=first.edges,
                unordered=first.unordered,
            )
        )


async def live(process: Played, steps: list[tuple[int, int]], *, crash: bool) -> None:
    """One life: step (i, n) brings n numbers more on lane i; at the end it dies, or gets the rest and is through."""
    async with trio.open_nursery() as nursery:
        process.shell.nursery = nursery
        process.shell.node = await process.prepare()
        nursery.start_soon(process.shell._guarded_loop)
        process.begin()
        await trio.testing.wait_all_tasks_blocked()
        sent = {lane: attach.position for lane, (_, attach) in enumerate(process.attached)}
        last = process.producers.last
        rest = [] if crash else [(lane, last) for lane in sent]
        for lane, count in [(lane % max(len(sent), 1), count) for lane, count in steps] + rest:
            if lane in sent and sent[lane] < last:
                sender, attach = process.attached[lane]
                upto = min(last, sent[lane] + count)
                process.shell.enqueue(process.producers.data(attach, sender, upto, sent[lane]))
                sent[lane] = upto
                await trio.testing.wait_all_tasks_blocked()
        # A sink that blocks works in a thread, which is not a task: a crash comes before or after its answer.
        with trio.fail_after(60):
            while not crash and not process.errors and not all(o.progress.ended for o in process._writers):  # type: ignore
                await trio.sleep(0.001)
        nursery.cancel_scope.cancel()
    for outlet in process._writers:
        if outlet.progress is not None:
            outlet.progress.close()


def numbers_at(out: Path, kind: str) -> list[int]:
    if kind == "Jsonl":
        return [json.loads(line)["n"] for line in out.read_text().splitlines()] if out.exists() else []
    return [n for path in sorted(out.glob("part-*")) for n in pa.parquet.read_table(path)["n"].to_pylist()]


LIVES = st.lists(st.lists(st.tuples(st.integers(0, 7), st.integers(1, 9)), max_size=8), min_size=1, max_size=4)


@pytest.mark.parametrize("unordered", [frozenset({0, 1}), frozenset({1}), frozenset()], ids=str)
@settings(max_examples=20)
@given(last=st.integers(1, 40), lives=LIVES, kinds=st.permutations(["Jsonl", "Parquet", "Callback"]))
def test_every_sink_has_each_row_once(
    unordered: frozenset[int], last: int, lives: list[list[tuple[int, int]]], kinds: list[str]
) -> None:
    called: list[int] = []
    producers = Producers(last)
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr("os.fsync", lambda fd: None)

        def sink_of(number: int, kind: str) -> Sink:
            out = Path(folder, f"out-{number}")
            if kind == "Callback":
                return Callback(lambda rows: called.extend(rows["n"].to_pylist()))
            return Jsonl(out) if kind == "Jsonl" else Parquet(out)

        for incarnation, steps in enumerate(lives, 1):
            sinks = [sink_of(number, kind) for number, kind in enumerate(kinds[:2])]
            process = Played(plan_of(2, unordered), Path(folder), sinks, producers, incarnation)
            trio.run(lambda process=process, steps=steps: live(process, steps, crash=process._incarnation < len(lives)))
            assert not process.errors
            for sink in sinks:
                if isinstance(sink, Parquet) and sink._journal is not None:
                    sink._journal.close()
                if isinstance(sink, Jsonl) and sink._fd >= 0:
                    os.close(sink._fd)
        for number, kind in enumerate(kinds[:2]):
            found = called if kind == "Callback" else numbers_at(Path(folder, f"out-{number}"), kind)
            assert (sorted(found) if number in unordered else found) == list(range(1, last + 1))


def test_a_sink_that_takes_rows_as_they_come_does_not_wait_for_the_other_producer(tmp_path: Path) -> None:
    called: list[Any] = []
    sinks: list[Sink] = [Callback(lambda rows: called.extend(rows["n"].to_pylist())), Null()]
    process = Played(plan_of(2, frozenset({0})), tmp_path, sinks, Producers(20), 1)
    trio.run(lambda: live(process, [(0, 10)], crash=True))
    [producer] = {n % 2 for n in called}
    assert called == [n for n in range(1, 11) if n % 2 == producer], "nothing of the other one has come"
    assert not any(process.producers.acked.values()), "what is ahead is not acknowledged"
