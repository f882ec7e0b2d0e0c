"""Two sources at one ingress, with steps before the first exchange, over any number of its lives.

Every copy gets the same rows under the same numbers: how sources interleave is decided once, when rows are numbered.
"""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import trio
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st

import flux
from flux.plan import Plan, Policy
from flux.protocols.messages import Ack, Attach, Block, Data, HighestPosition, View
from flux.site.config import ProcessConfig
from flux.site.ingress.ingress_process import IngressProcess
from flux.sources import Source, SourceBatch, SourceContext, Table
from flux.types.errors import FluxError
from flux.wire.secret import new_secret
from tests.runtime.live import Live
from tests.runtime.waiting import DEADLINE_S

SITES = ("site-1", "site-2")
EVERYBODY = "everybody"
EDGES = 3
EVERY_CHANNEL = (Block(producers=(0,), consumers=(0, 1, 2)),)


class Same(flux.Operator):
    output = flux.sources.Table(pa.table({"n": [1]})).schema

    def process(self, batch: Any) -> Any:
        return batch


def plan_of(sources: list[Source], policy: Policy) -> Plan:
    """The first source goes on filtered, and doubled on an edge of its own; the second as it is."""
    flow = flux.Dataflow("two")
    one, two = (flow.source(source) for source in sources)
    one = one.filter(lambda row: row.n % 5)
    for stream in (one, one.map(lambda row: {"n": 2 * row.n}, output=Same.output), two):
        stream.exchange("n", partitions=3).apply(Same).sink(flux.sinks.Null())
    plan = flow._logical.plan(2, 0, "pairs", 40, policy)
    assert len(plan.outputs(0)) == EDGES
    return plan


@dataclass
class Copy:
    """A site: what it received on each edge under which number, and what it has acknowledged."""

    received: dict[tuple[int, int], Any] = field(default_factory=dict)
    upto: dict[int, int] = field(default_factory=lambda: dict.fromkeys(range(EDGES), 0))
    acked: dict[int, int] = field(default_factory=lambda: dict.fromkeys(range(EDGES), 0))

    def take(self, message: Data) -> None:
        assert message.after == self.upto[message.edge], f"behind {self.upto} came ({message.after}, {message.upto}]"
        for body in message.bodies:
            part = body.on(message.edge).between(message.after, message.upto)
            if part.wide is not None:
                places = [(message.edge, sn) for sn in part.hidden("__sn").tolist()]
                self.received |= dict(zip(places, part.user["n"].to_pylist(), strict=True))
            self.received |= {(message.edge, mark.sn): mark.kind for mark in part.punctuations}
        self.upto[message.edge] = message.upto


class Played(IngressProcess):
    """The ingress process with the test at the other end of its links."""

    def __init__(
        self, plan: Plan, directory: Path, sources: list[Source], copies: dict[str, Copy], incarnation: int
    ) -> None:
        config = ProcessConfig(plan=plan, directory=directory, run="two", secret=new_secret())
        super().__init__(config, sources, incarnation)
        self.copies = copies
        self.shell._send_rows = self._send_rows  # type: ignore[method-assign]
        self.shell.fail = self._fail  # type: ignore[method-assign]
        self.errors: list[BaseException] = []

    def _send_rows(self, to: str, message: Data, channels: Any) -> None:
        self.copies[to].take(message)

    def _fail(self, error: BaseException) -> None:
        self.errors.append(error)

    def begin(self) -> None:
        first = self.shell.plan.view()
        dead = ["ingress", *(f"ingress.{n}" for n in range(2, self._incarnation))][: self._incarnation - 1]
        nodes = tuple(dict.fromkeys((*first.nodes, *dead, self.shell.name)))
        copies = (((self.shell.name,),), *first.copies[1:])
        number = self._incarnation
        self.shell.enqueue(View(number=number, nodes=nodes, dead=frozenset(dead), copies=copies, edges=first.edges))
        for site, copy in self.copies.items():
            for edge in range(EDGES):
                self.acknowledge(site, edge, copy.acked[edge])
                at = {"sender": site, "view": self._incarnation, "edge": edge, "position": copy.upto[edge]}
                self.shell.enqueue(Attach(**at, lane_id=EDGES * self._incarnation + edge, channels=EVERY_CHANNEL))
        if self._incarnation > 1:
            for node in first.nodes[1:]:
                upto = max(self.copies[node].upto.values()) if node in self.copies else 0
                self.shell.enqueue(HighestPosition(sender=node, view=self._incarnation, position=upto))

    def acknowledge(self, site: str, edge: int, position: int) -> None:
        self.copies[site].acked[edge] = position
        self.shell.enqueue(Ack(sender=site, view=self._incarnation, edge=edge, position=position))


async def live(process: Played, acks: list[tuple[str, int, int]], *, crash: bool) -> None:
    """One life: the copies acknowledge a few rows more at each turn; at the end it dies or is through."""
    with trio.fail_after(DEADLINE_S):
        async with trio.open_nursery() as nursery:
            process.begin()
            nursery.start_soon(process.shell._guarded_loop)
            process.shell.nursery = nursery
            await trio.testing.wait_all_tasks_blocked()
            for who, which, rows in acks:
                everyone = who == EVERYBODY  # Only what all have acknowledged on all edges is released.
                for site, edge in product(SITES if everyone else [who], range(EDGES) if everyone else [which]):
                    copy = process.copies[site]
                    process.acknowledge(site, edge, min(copy.acked[edge] + rows, copy.upto[edge]))
                await trio.testing.wait_all_tasks_blocked()
            while not crash and not process.errors and not process._machine.ended:
                for site, copy in process.copies.items():
                    for edge in range(EDGES):
                        process.acknowledge(site, edge, copy.upto[edge])
                await trio.testing.wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
    assert process._journal is not None
    process._journal.close()


LIVES = st.lists(
    st.lists(
        st.tuples(st.sampled_from([*SITES, EVERYBODY]), st.integers(0, EDGES - 1), st.integers(0, 30)), max_size=8
    ),
    min_size=1,
    max_size=4,
)


def played(make: Any, lives: list[list[tuple[str, int, int]]], policy: Policy) -> tuple[list[Played], list[Copy]]:
    copies = {site: Copy() for site in SITES}
    found = []
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr("flux.site.ingress.ingress_process._ROOM_TIMEOUT_S", 0.001)
        for incarnation, acks in enumerate(lives, 1):
            sources = make()
            found.append(Played(plan_of(sources, policy), Path(folder), sources, copies, incarnation))
            trio.run(lambda acks=acks: live(found[-1], acks, crash=found[-1]._incarnation < len(lives)))
    assert not [error for life in found for error in life.errors]
    return found, list(copies.values())


def check(copies: list[Copy]) -> tuple[list[int], list[int]]:
    """Both copies have the same, and the edges agree with each other; the rows of each source, in order."""
    assert copies[0].received == copies[1].received
    edges: list[dict[int, Any]] = [{}, {}, {}]
    for (edge, sn), value in sorted(copies[0].received.items()):
        edges[edge][sn] = value
    ends = [{sn for sn, value in rows.items() if value == "end"} for rows in edges]
    assert ends == [{copies[0].upto[0]}] * EDGES
    rows = [{sn: value for sn, value in rows.items() if value != "end"} for rows in edges]
    assert rows[1] == {sn: 2 * value for sn, value in rows[0].items()}
    assert not rows[0].keys() & rows[2].keys()
    return list(rows[0].values()), list(rows[2].values())


@settings(max_examples=50)
@given(st.integers(0, 120), st.integers(0, 120), st.lists(st.integers(1, 40), min_size=2, max_size=2), LIVES)
def test_sources_interleave_the_same_for_every_copy_whenever_the_ingress_dies(
    one: int, two: int, sizes: list[int], lives: list[list[tuple[str, int, int]]]
) -> None:
    def tables() -> list[Source]:
        return [
            Table(pa.table({"n": pa.array(range(one), pa.int64())}), batch_rows=sizes[0]),
            Table(pa.table({"n": pa.array(range(1_000, 1_000 + two), pa.int64())}), batch_rows=sizes[1]),
        ]

    _, copies = played(tables, lives, Policy())
    assert check(copies) == ([n for n in range(one) if n % 5], list(range(1_000, 1_000 + two)))


@settings(max_examples=30)
@given(st.integers(0, 120), st.lists(st.integers(1, 15), max_size=12), LIVES)
def test_a_source_that_replays_and_one_that_does_not_go_together(
    one: int, sizes: list[int], lives: list[list[tuple[str, int, int]]]
) -> None:
    batches = [list(range(sum(sizes[:i]), sum(sizes[: i + 1]))) for i in range(len(sizes))]
    coming = Live(list(batches))

    def sources() -> list[Source]:
        return [Table(pa.table({"n": pa.array(range(one), pa.int64())}), batch_rows=7), coming]

    _, copies = played(sources, lives, Policy())
    rows, others = check(copies)
    assert rows == [n for n in range(one) if n % 5]
    # A life that ends may take the batch with it that it had asked for and not numbered.
    assert others == sorted(set(others))
    lost = set(range(sum(sizes))) - set(others)
    assert sum(bool(lost & set(batch)) for batch in batches) <= len(lives) - 1


@settings(max_examples=20)
@given(st.integers(1, 120), st.integers(1, 120), LIVES)
def test_what_is_shed_of_either_source_is_shed_for_every_copy(
    one: int, two: int, lives: list[list[tuple[str, int, int]]]
) -> None:
    def tables() -> list[Source]:
        return [Table(pa.table({"n": pa.array(range(1, n + 1), pa.int64())}), batch_rows=9) for n in (one, two)]

    found, copies = played(tables, lives, Policy(on_overload="shed"))
    rows, others = check(copies)
    assert rows == sorted(set(rows)) and others == sorted(set(others))
    numbering = found[-1]._journal
    assert numbering is not None
    numbered = copies[0].upto[0] - 1  # The last is the end of the stream.
    assert numbered + numbering.shed == one + two


def test_what_a_source_raises_names_that_source(tmp_path: Path) -> None:
    class Broken(Live):
        async def batches(self, context: SourceContext, after: Any = None) -> AsyncIterator[SourceBatch]:
            yield SourceBatch(pa.record_batch({"n": [1]}))
            raise ZeroDivisionError("the source's own words")

    sources: list[Source] = [Table(pa.table({"n": [1, 2]})), Broken([])]
    process = Played(plan_of(sources, Policy()), tmp_path, sources, {site: Copy() for site in SITES}, 1)
    trio.run(lambda: live(process, [], crash=False))
    [error] = process.errors
    assert isinstance(error, FluxError)
    assert isinstance(error, flux.SourceError)
    assert ") raised ZeroDivisionError: the source's own words when it was read after row" in str(error)
