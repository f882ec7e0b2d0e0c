"""A site's process, without its loop."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import ClassVar

import pyarrow as pa
import pytest

from flux.plan import Plan, Segment
from flux.protocols.messages import Block, Standby, State
from flux.site.config import ProcessConfig
from flux.site.crash_note import shared_note
from flux.site.report_link import ReportLink
from flux.site.shell import OUT_OF_MEMORY
from flux.site.worker import Worker
from flux.system import process_control
from flux.wire.frames import BadFrame
from flux.wire.link import Link
from flux.wire.reports import Load, LogLine, Report, RowsLate, RowsNumbered, RowsSkipped
from flux.wire.transfer import StateChunk, read_chunk

CHUNK = StateChunk(version=1, last=False)


def worker(name: str) -> Worker:
    """A site, while a copy of the only partition is on its way from site-1 to site-3."""
    segment = Segment(columns=("n",), partitions=1, availability="pairs", steps=())
    plan = Plan(name="late", segments=(segment,), sites=2, standby=1, pool_rows=1)
    config = ProcessConfig(plan=plan, directory=Path(tempfile.gettempdir()), run="", secret=b"")
    made = Worker(config, name, shared_note())
    made._segments[1] = []
    standby = Standby(version=1, stage=1, partition=0, slot=1, node="site-3", donor="site-1")
    made.shell.node.view = replace(plan.view(), number=1, standby=(standby,), versions=1)
    return made


def test_state_for_a_site_that_has_died_meanwhile_goes_nowhere() -> None:
    """The link goes when a view is read, and the machine steps that view later: until then it may send to the dead."""
    donor = worker("site-1")
    assert not donor.shell.peers.links, "no view has been read, so nobody is linked"

    donor.send_state("site-3", State(sender="site-1", view=1, stage=1, version=1, position=0, runs=(), body=None))

    assert not donor.shell.peers.links


def test_chunks_of_a_copy_that_a_view_takes_back_are_forgotten() -> None:
    site = worker("site-3")
    chunk = pa.py_buffer(b"x" * 5)
    site.take_chunk(Link("site-1"), CHUNK, chunk)
    assert site._transfer._receiver.take("site-1", 1, None).size_bytes == 5
    assert site.shell.node.view is not None
    site.shell.node.view = replace(site.shell.node.view, number=2, standby=())
    site.take_chunk(Link("site-1"), CHUNK, chunk)
    assert site._transfer._receiver.take("site-1", 1, None).size_bytes == 0
    site.take_chunk(Link("site-1"), replace(CHUNK, last=True), None)
    assert not site.shell.inbox, "nothing is said to the machine"


def test_chunks_are_taken_from_the_donor_alone() -> None:
    site = worker("site-3")
    site.take_chunk(Link("site-2"), CHUNK, pa.py_buffer(b"x" * 5))
    assert site._transfer._receiver.take("site-2", 1, None).size_bytes == 0


def test_chunks_from_a_donor_that_is_gone_are_forgotten() -> None:
    site = worker("site-3")
    site.take_chunk(Link("site-1"), CHUNK, pa.py_buffer(b"x" * 5))
    site.forget_chunks("site-1")
    assert site._transfer._receiver.take("site-1", 1, None).size_bytes == 0


def test_a_chunk_of_no_copy_is_refused() -> None:
    with pytest.raises(BadFrame, match=r"StateChunk has the fields version, last, failed; got"):
        read_chunk({"kind": "chunk", "m": {"$": "StateChunk", "version": 1}})


def test_all_late_and_skipped_rows_are_reported_again_to_a_driver_that_is_new() -> None:
    class Step:
        step = SimpleNamespace(name="Window")
        late: ClassVar = [{0: 2, 3: 1}, {0: 5}, {}]

        def take_late(self) -> dict[int, int]:
            return self.late.pop(0)

    class Steps:
        hosted: ClassVar = [Step()]
        skipped = RowsSkipped(step="Window", stage=1, number=0, totals=((3, 7),), rows=())

        def __iter__(self) -> Iterator[Step]:
            return iter(self.hosted)

        def skipped_totals(self) -> Iterator[RowsSkipped]:
            yield self.skipped

    site, reported = worker("site-1"), list[Report]()
    site._segments[1] = Steps()  # type: ignore[assignment]
    site.shell.report = reported.append  # type: ignore[method-assign]
    for _ in range(3):
        site._report_late(1)
    assert [report.totals for report in reported if isinstance(report, RowsLate)] == [((0, 2), (3, 1)), ((0, 5),)]

    reported.clear()
    site.repeat_reports()
    late = RowsLate(step="Window", stage=1, number=0, totals=((0, 5), (3, 1)))
    assert reported == [Steps.skipped, late]


def test_tables_of_lanes_that_are_no_more_are_not_kept() -> None:
    site = worker("site-1")
    lanes = [(Block(producers=(0,) * n, consumers=(0,)),) for n in range(1, 3_000)]
    made = [site.shell.lanes.mask(lane, 0) for lane in lanes]
    assert len(site.shell.lanes._masks) <= 256
    assert site.shell.lanes.mask(lanes[-1], 0) is made[-1], "what is in use is made once"


def test_reports_that_nobody_hears_are_kept_if_they_say_more_than_the_next_one_does() -> None:
    reports = ReportLink(again=True)
    for n in range(1_000):
        reports.send_report(RowsNumbered(log=(), total=n, upto=n))
        reports.send_report(Load(buffered_rows=n))
    waiting = len(reports._waiting)
    reports.send_report(LogLine(node="site-1", level=30, text="closed the connection"))
    assert waiting == 1 and len(reports._waiting) == 2, "that it is there, and what it has to say"


def test_a_site_without_memory_ends_wherever_it_lacks_it_if_others_have_all_that_it_has(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def end(status: int) -> None:
        raise SystemExit(status)

    monkeypatch.setattr(process_control, "exit_now", end)
    site = worker("site-1")
    view = site.shell.node.view
    assert view is not None and not view.needs("site-1")
    with pytest.raises(SystemExit) as ended:
        site.shell.fail(MemoryError("no room to encode a state"))
    assert ended.value.code == OUT_OF_MEMORY and site.shell._failed is None

    site.shell.node.view = replace(view, dead=frozenset({"site-2"}))
    site.shell.fail(MemoryError("no room to encode a state"))
    assert site.shell._failed is not None, "with the last copy it reports the error, and lives"
