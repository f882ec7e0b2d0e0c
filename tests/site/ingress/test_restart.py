"""An ingress that takes another's place: every copy gets the same rows under the same numbers, each once.

The process's own code, with its journal on disk, between a source and two copies that the test plays; a crash is
the end of its tasks at any point.
"""

from __future__ import annotations

import contextlib
import shutil
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import trio
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st

from flux.plan import Plan, Policy, Segment
from flux.protocols.messages import Ack, Attach, Block, Data, HighestPosition, View
from flux.site.config import ProcessConfig
from flux.site.ingress.ingress_process import JOURNAL, IngressProcess
from flux.site.ingress.sequence_journal import SequenceJournal
from flux.sources import Source, SourceBatch, SourceContext, Table
from flux.types.errors import FluxError, from_dict
from flux.wire.reports import Report, RowsNumbered
from flux.wire.secret import new_secret
from tests.runtime.live import Live
from tests.runtime.waiting import DEADLINE_S

PLAN = Plan(
    name="again",
    segments=(Segment(columns=("n",), partitions=4, availability="pairs", steps=()),),
    sites=2,
    standby=0,
    pool_rows=40,
)
SITES = ("site-1", "site-2")
EVERY_CHANNEL = (Block(producers=(0,), consumers=(0, 1, 2, 3)),)


@dataclass
class Copy:
    """A site's copy of the first stage: what it received under which number, and what it has acknowledged."""

    received: dict[int, Any] = field(default_factory=dict)
    upto: int = 0
    acked: int = 0
    ended_ms: int | None = None  # What the clock said at the end.

    def take(self, message: Data) -> None:
        assert message.after == self.upto, f"behind {self.upto} came ({message.after}, {message.upto}]"
        for body in message.bodies:
            part = body.between(message.after, message.upto)
            if part.wide is not None:
                self.received |= dict(zip(part.hidden("__sn").tolist(), part.user["n"].to_pylist(), strict=True))
            punctuations = {
                mark.sn: (mark.kind, mark.value) if mark.kind != "end" else "end" for mark in part.punctuations
            }
            self.ended_ms = next((mark.value for mark in part.punctuations if mark.kind == "end"), self.ended_ms)
            assert punctuations.keys().isdisjoint(self.received)
            self.received |= punctuations
        self.upto = message.upto


class Played(IngressProcess):
    """The ingress process with the test at the other end of its links."""

    def __init__(self, directory: Path, source: Source, copies: dict[str, Copy], incarnation: int) -> None:
        config = ProcessConfig(plan=PLAN, directory=directory, run="again", secret=new_secret())
        super().__init__(config, (source,), incarnation)
        self.copies = copies
        self.shell._send_rows = self._send_rows  # type: ignore[method-assign]
        self.shell.fail = self._fail  # type: ignore[method-assign]
        self.errors: list[FluxError] = []
        self.rows_reported = 0
        self._reports._send = self._take_report

    def _take_report(self, report: Report) -> None:
        if isinstance(report, RowsNumbered):
            self.rows_reported = report.total

    def _send_rows(self, to: str, message: Data, channels: Any) -> None:
        self.copies[to].take(message)

    def _fail(self, error: BaseException) -> None:
        assert isinstance(error, FluxError), error
        self.errors.append(from_dict(error.to_dict()))

    def begin(self) -> None:
        first = PLAN.view()
        dead = ["ingress", *(f"ingress.{n}" for n in range(2, self._incarnation))][: self._incarnation - 1]
        view = View(
            number=self._incarnation,
            nodes=tuple(dict.fromkeys((*first.nodes, *dead, self.shell.name))),
            dead=frozenset(dead),
            copies=(((self.shell.name,),), *first.copies[1:]),
        )
        self.shell.enqueue(view)
        for site, copy in self.copies.items():
            self.acknowledge(site, copy.acked)
            at = {"sender": site, "view": self._incarnation, "edge": 0}
            self.shell.enqueue(Attach(**at, lane_id=self._incarnation, position=copy.upto, channels=EVERY_CHANNEL))
        if self._incarnation > 1:
            for node in first.nodes[1:]:
                upto = self.copies[node].upto if node in self.copies else 0
                self.shell.enqueue(HighestPosition(sender=node, view=self._incarnation, position=upto))

    def acknowledge(self, site: str, position: int) -> None:
        self.copies[site].acked = position
        self.shell.enqueue(Ack(sender=site, view=self._incarnation, edge=0, position=position))


async def live(process: Played, acks: list[tuple[str, int]], *, crash: bool) -> None:
    """One life of an ingress: the copies acknowledge a few rows more at each turn; at the end it dies or is through."""
    with trio.fail_after(DEADLINE_S):
        await _live(process, acks, crash)
    if process._journal is not None:
        process._journal.close()


async def _live(process: Played, acks: list[tuple[str, int]], crash: bool) -> None:
    async with trio.open_nursery() as nursery:
        process.begin()
        nursery.start_soon(process.shell._guarded_loop)
        process.shell.nursery = nursery
        await trio.testing.wait_all_tasks_blocked()
        for site, rows in acks:
            copy = process.copies[site]
            process.acknowledge(site, min(copy.acked + rows, copy.upto))
            await trio.testing.wait_all_tasks_blocked()
        while not crash and not process.errors and not process.shell.node.machines[0].ended:  # type: ignore[union-attr]
            for site, copy in process.copies.items():
                process.acknowledge(site, copy.upto)
            await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()


def played(
    directory: Path, sources: list[Source], acks: list[list[tuple[str, int]]]
) -> tuple[list[Played], list[Copy]]:
    copies = {site: Copy() for site in SITES}
    lives = []
    for incarnation, (source, some) in enumerate(zip(sources, acks, strict=True), 1):
        lives.append(Played(directory, source, copies, incarnation))
        trio.run(lambda some=some: live(lives[-1], some, crash=lives[-1]._incarnation < len(sources)))
    return lives, list(copies.values())


@contextlib.contextmanager
def choosing(policy: Policy) -> Iterator[None]:
    """Ingresses have this policy; with a limit on latency, windows of a few rows, so that batches are cut."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys.modules[__name__], "PLAN", replace(PLAN, policy=policy))
        patch.setattr("flux.site.ingress.admission.WINDOW_MIN_ROWS", 4)
        patch.setattr("flux.site.ingress.admission._FIRST_ROWS", 14)
        patch.setattr("flux.site.ingress.ingress_process._ROOM_TIMEOUT_S", 0.001)
        yield


ACKS = st.lists(st.lists(st.tuples(st.sampled_from(SITES), st.integers(0, 30)), max_size=6), min_size=1, max_size=4)


@pytest.mark.parametrize("limit_ms", [None, 5.0])
@settings(max_examples=60)
@given(rows=st.integers(1, 200), acks=ACKS, data=st.data())
def test_every_copy_gets_the_same_rows_under_the_same_numbers(
    limit_ms: float | None, rows: int, acks: list[list[tuple[str, int]]], data: st.DataObject
) -> None:
    table = pa.table({"n": range(1, rows + 1)})
    sizes = data.draw(st.lists(st.integers(1, 50), min_size=len(acks), max_size=len(acks)), label="batch_rows")
    with tempfile.TemporaryDirectory() as folder, choosing(Policy(max_latency_ms=limit_ms)):
        lives, copies = played(Path(folder), [Table(table, batch_rows=size) for size in sizes], acks)
    assert not [error for life in lives for error in life.errors]
    expected = {**{n: n for n in range(1, rows + 1)}, rows + 1: "end"}
    assert [copy.received for copy in copies] == [expected, expected]
    assert copies[0].ended_ms is not None and copies[0].ended_ms == copies[1].ended_ms, "one clock for all"
    assert lives[-1].rows_reported == rows, "of all incarnations, whatever was reported before"


@settings(max_examples=25)
@given(rows=st.integers(1, 200), acks=ACKS, data=st.data())
def test_what_is_shed_is_shed_for_every_copy_and_counted(
    rows: int, acks: list[list[tuple[str, int]]], data: st.DataObject
) -> None:
    table = pa.table({"n": range(1, rows + 1)})
    sizes = data.draw(st.lists(st.integers(1, 50), min_size=len(acks), max_size=len(acks)), label="batch_rows")
    with tempfile.TemporaryDirectory() as folder, choosing(Policy(on_overload="shed")):
        lives, copies = played(Path(folder), [Table(table, batch_rows=size) for size in sizes], acks)
    assert not [error for life in lives for error in life.errors]
    assert copies[0].received == copies[1].received
    *found, end = [copies[0].received[sn] for sn in range(1, copies[0].upto + 1)]
    assert end == "end"
    assert found == sorted(set(found))
    assert lives[-1]._journal is not None
    assert len(found) + lives[-1]._journal.shed == rows


@settings(max_examples=60)
@given(sizes=st.lists(st.integers(1, 15), min_size=1, max_size=30), acks=ACKS)
def test_what_was_numbered_of_a_live_source_is_never_lost_and_alike_in_all_copies(
    sizes: list[int], acks: list[list[tuple[str, int]]]
) -> None:
    batches = [list(range(sum(sizes[:i]), sum(sizes[: i + 1]))) for i in range(len(sizes))]
    source = Live(list(batches))
    with tempfile.TemporaryDirectory() as folder:
        lives, copies = played(Path(folder), [source] * len(acks), acks)
    assert not [error for life in lives for error in life.errors]
    assert copies[0].received == copies[1].received
    *rows, end = [copies[0].received[sn] for sn in range(1, copies[0].upto + 1)]
    assert end == "end"
    # A life that ends may take the batch with it that it had asked for and not numbered.
    lost = set(range(sum(sizes))) - set(rows)
    assert rows == sorted(set(rows))
    assert sum(bool(lost & set(batch)) for batch in batches) <= len(acks) - 1


def failing_second(directory: Path, first: Source, second: Source) -> FluxError:
    lives, _ = played(directory, [first, second], [[], []])
    [error] = lives[-1].errors
    return error


def numbers(count: int) -> pa.Table:
    return pa.table({"n": range(count)})


def test_a_source_that_has_fewer_rows_the_second_time_is_an_error(tmp_path: Path) -> None:
    error = failing_second(tmp_path, Table(numbers(30), batch_rows=10), Table(numbers(25)))
    assert "source Table gave only 5 of the 10 rows that it had given before (rows 21 to 30)" in str(error)


def test_a_source_that_gives_other_rows_the_second_time_is_an_error(tmp_path: Path) -> None:
    other = pa.table({"n": range(1_000, 1_030)})
    error = failing_second(tmp_path, Table(numbers(30), batch_rows=10), Table(other))
    assert "source Table gave other rows than before for the numbers 1 to 10" in str(error)


def test_a_source_that_does_not_say_how_to_go_on_is_an_error_that_says_what_to_do(tmp_path: Path) -> None:
    class Own(Live):
        replays = None  # type: ignore[assignment]

    error = failing_second(tmp_path, Own([[1]]), Own([[1]]))
    assert "source Own does not say" in str(error) and "replays = True" in str(error)


def test_a_source_that_replays_without_offsets_is_an_error(tmp_path: Path) -> None:
    class Own(Live):
        replays = True

    [life], _ = played(tmp_path, [Own([[1]])], [[]])
    assert "gave a batch without an offset" in str(life.errors[0])


def test_a_damaged_journal_is_told_to_the_program(tmp_path: Path) -> None:
    (tmp_path / JOURNAL).write_text("no journal at all")
    [life], _ = played(tmp_path, [Table(numbers(1))], [[]])
    assert "is damaged at byte 0" in str(life.errors[0])


def test_received_is_called_once_all_copies_have_the_rows_also_when_they_said_so_before(tmp_path: Path) -> None:
    called = []

    class Told(Live):
        replays = True

        async def batches(self, context: SourceContext, after: Any = None) -> AsyncIterator[SourceBatch]:
            for n in range(after or 0, 6):
                rows = pa.record_batch({"n": [n]})
                yield SourceBatch(rows, received=lambda n=n: called.append(n), offset=n + 1)

    copies = {site: Copy() for site in SITES}
    first = Played(tmp_path, Told([]), copies, 1)
    trio.run(lambda: live(first, [("site-1", 6), ("site-2", 2)], crash=True))
    assert called == [0, 1]
    # The second copy is through as well before the next ingress begins: it states so.
    copies["site-2"].acked = 6
    second = Played(tmp_path, Told([]), copies, 2)
    trio.run(lambda: live(second, [], crash=False))
    assert called == [0, 1, 2, 3, 4, 5]


def test_a_source_is_told_to_forget_rows_only_when_the_journal_has_them_released(tmp_path: Path) -> None:
    journaled: list[tuple[int, int]] = []

    class Forgetting(Live):
        replays = True

        def __init__(self, size: int) -> None:
            self.size = size

        async def batches(self, context: SourceContext, after: Any = None) -> AsyncIterator[SourceBatch]:
            for first in range(after or 0, 12, self.size):
                rows = pa.record_batch({"n": range(first, first + self.size)})
                upto = first + self.size
                yield SourceBatch(rows, received=lambda upto=upto: self.forget(upto), offset=upto)

        def forget(self, upto: int) -> None:
            # As an ingress finds it that takes over at this very moment.
            shutil.copy(tmp_path / JOURNAL, tmp_path / "copy")
            found = SequenceJournal.open(tmp_path / "copy")
            journaled.append((upto, found.released))
            found.close()

    copies = {site: Copy() for site in SITES}
    trio.run(lambda: live(Played(tmp_path, Forgetting(6), copies, 1), [("site-1", 7), ("site-2", 7)], crash=True))
    # Ranges of 6 rows, which now come in batches of 2: some end within a range.
    steps = [(site, 2) for _ in range(3) for site in SITES]
    trio.run(lambda: live(Played(tmp_path, Forgetting(2), copies, 2), steps, crash=False))
    assert [upto for upto, _ in journaled] == [6, 8, 10, 12]
    assert all(released >= upto for upto, released in journaled), journaled


def test_names_follow_the_incarnation(tmp_path: Path) -> None:
    copies = {site: replace(Copy()) for site in SITES}
    assert Played(tmp_path / "none", Table(numbers(1)), copies, 1).shell.name == "ingress"
    assert Played(tmp_path / "none", Table(numbers(1)), copies, 3).shell.name == "ingress.3"
