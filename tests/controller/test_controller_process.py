"""The controller's process without others around it: what it takes, sends, and reports."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from flux.controller import controller_process
from flux.controller.controller_process import GONE_S, RETURN_S, ControllerProcess
from flux.controller.divergence import Difference
from flux.controller.link_suspicions import UNREACHABLE_AFTER_S
from flux.plan import Plan, Segment
from flux.plan.plan import CONTROLLER
from flux.plan.policy import Policy
from flux.protocols.balance_messages import Work
from flux.protocols.messages import Closed, CopyReady, Hello, LinkDown, Suspected, View
from flux.site.config import ProcessConfig
from flux.types.errors import OperatorError
from flux.wire import membership, reports
from flux.wire.frames import BadFrame

SEGMENT = Segment(columns=("n",), partitions=2, availability="pairs", steps=())
PLAN = Plan(name="three", segments=(SEGMENT,), sites=3, standby=0, pool_rows=100)
NODES = ("ingress", "site-1", "site-2", "site-3", "egress")


class _Link:
    """Notes what is sent to a node."""

    def __init__(self, peer: str) -> None:
        self.peer = peer
        self.sent: list[dict[str, Any]] = []
        self.is_closed = False

    def send(self, header: dict[str, Any], body: Any = None) -> None:
        self.sent.append(header)

    async def drain(self) -> None:
        return None

    async def write(self) -> None:
        return None

    def close(self) -> None:
        self.is_closed = True

    async def receive(self) -> None:
        return None


class _Nursery:
    """Notes what is started."""

    def __init__(self) -> None:
        self.started: list[tuple[Callable[..., Any], tuple[Any, ...]]] = []

    def start_soon(self, call: Callable[..., Any], *given: Any) -> None:
        self.started.append((call, given))

    def finish(self) -> None:
        """Run what was started, one after another."""
        while self.started:
            call, given = self.started.pop(0)
            trio.run(call, *given)


class Controlled:
    """A controller with its machine, links that note what is sent, and the reports that it made."""

    def __init__(self, directory: Path, plan: Plan = PLAN, is_first: bool = True, **settings: Any) -> None:
        self.config = ProcessConfig(plan=plan, directory=directory, run="", secret=b"", **settings)
        self.process = ControllerProcess(self.config, None)  # type: ignore[arg-type] - nothing is accepted.
        self.reports: list[reports.Report] = []
        self.nursery = _Nursery()
        self.links = {node: _Link(node) for node in NODES}
        self.process._nursery = self.nursery  # type: ignore[assignment]
        self.process._report = self.reports.append  # type: ignore[method-assign]
        self.process._links = dict(self.links)  # type: ignore[arg-type]
        for node in NODES if is_first else ():
            ends = tuple(stage for stage in (0, 2) if self.view.copies[stage] == ((node,),))
            self.process._step(Hello(node=node, view=0, ends=ends))
        assert self.view.number == 1

    @property
    def view(self) -> View:
        return self.process.machine.view

    def reported(self, kind: type[reports.Report]) -> list[Any]:
        return [report for report in self.reports if isinstance(report, kind)]

    def take(self, node: str, message: membership.FromNode) -> None:
        self.process._take(self.links[node], message)  # type: ignore[arg-type]

    def build(self) -> None:
        """Have every copy built that is wanted."""
        while self.view.standby:
            first = self.view.standby[0]
            self.process._step(CopyReady(node=first.node, version=first.version))


@pytest.fixture
def controlled(tmp_path: Path) -> Controlled:
    return Controlled(tmp_path)


# Drains.


def test_a_drained_site_is_reported_once_when_it_holds_nothing(controlled: Controlled) -> None:
    held = len(controlled.view.held(1, "site-1"))
    controlled.process.drain("site-1")
    assert controlled.reported(reports.SiteDrained) == [] and held > 0
    controlled.build()
    assert controlled.reported(reports.SiteDrained) == [reports.SiteDrained(site="site-1")]
    begun = controlled.reported(reports.CopiesBegun)
    assert [each.why for each in begun] == ["drain of site-1"] * held
    assert sorted(version for each in begun for version in each.versions) == list(range(1, held + 1))
    assert not controlled.view.held(1, "site-1")


def test_a_drain_that_is_stopped_moves_no_more_copies(controlled: Controlled) -> None:
    controlled.process.drain("site-1")
    controlled.process.stop_draining("site-1")
    controlled.build()
    assert controlled.reported(reports.SiteDrained) == []
    assert controlled.process.sites_without("site-2") == ["site-1", "site-3"]
    controlled.process._draining.add("site-3")
    assert controlled.process.sites_without("site-2") == ["site-1"]


def test_a_site_that_dies_while_it_is_drained_is_reported_as_dead_and_not_as_drained(controlled: Controlled) -> None:
    controlled.process.drain("site-1")
    controlled.process._step(Closed(node="site-1"))
    controlled.build()
    assert controlled.reported(reports.SiteDrained) == []
    assert {each.node for each in controlled.reported(reports.NodeDead)} == {"site-1"}
    assert controlled.process._connected_sites() == ["site-2", "site-3"]


class _Balance:
    """Notes what a balance of the run is given."""

    def __init__(self) -> None:
        self.works: list[Work] = []
        self.views: list[int] = []
        self.roles: list[tuple[set[str], set[str]]] = []

    def take(self, work: Work) -> None:
        self.works.append(work)

    def on_view(self, view: View) -> None:
        self.views.append(view.number)

    def set_roles(self, spares: Any, draining: Any) -> None:
        self.roles.append((set(spares), set(draining)))


def work(node: str) -> Work:
    return Work(node=node, number=1, view=1, elapsed_s=1.0, busy_s=0.5, stages=())


def test_the_balance_is_given_work_views_and_which_sites_are_drained(controlled: Controlled) -> None:
    controlled.process._balance = balance = _Balance()  # type: ignore[assignment]
    controlled.take("site-1", membership.WorkDone(work=work("site-1")))
    assert balance.works == [work("site-1")]
    with pytest.raises(BadFrame, match="expected the work of site-2, got that of 'site-1'"):
        controlled.take("site-2", membership.WorkDone(work=work("site-1")))
    controlled.process.drain("site-3")
    controlled.process.stop_draining("site-3")
    assert balance.roles == [(set(), {"site-3"}), (set(), set())]
    seen = list(balance.views)
    assert seen[-1] == controlled.view.number
    controlled.process._step(Closed(node="nobody"))
    assert balance.views == seen, "the view is the same"


def test_a_run_with_a_policy_of_balance_has_one_and_others_have_none(tmp_path: Path) -> None:
    for name, has in (("level", True), ("off", False)):
        (tmp_path / name).mkdir()
        plan = replace(PLAN, policy=Policy(balance=name))
        assert (Controlled(tmp_path / name, plan).process._balance is not None) == has


# Nodes that are declared dead.


def test_a_node_that_is_declared_dead_is_dismissed_and_its_last_sign_reported(controlled: Controlled) -> None:
    at = time.monotonic()
    for node in ("site-1", "site-2"):
        controlled.process._detector.beat(node, at, None)
        controlled.process._views.addresses[node] = "unix:there"
    controlled.process._step(Suspected(node="site-1"))
    [dead] = controlled.reported(reports.NodeDead)
    assert (dead.node, dead.seen_at) == ("site-1", at)
    link = controlled.links["site-1"]
    dismissed = membership.read_from_controller(link.sent[-1])
    assert isinstance(dismissed, membership.Dismissed) and dismissed.why.startswith("it was declared dead in view 2")
    assert [each.text for each in controlled.reported(reports.LogLine)][-1].startswith("site-1 is dismissed: it was")
    controlled.nursery.finish()
    assert link.is_closed
    assert controlled.process._detector.last("site-1") is None and "site-1" not in controlled.process._views.addresses
    assert controlled.process._connected_sites() == ["site-2", "site-3"]
    assert controlled.process._living() == ["ingress", "site-2", "site-3", "egress"]


def test_the_last_sign_of_a_node_is_its_beat_or_when_another_could_not_reach_it(controlled: Controlled) -> None:
    process = controlled.process
    assert process._last_sign_of("site-1") is None
    process._detector.beat("site-1", 8.0)
    assert process._last_sign_of("site-1") == 8.0
    for a, b in (("site-1", "site-2"), ("site-2", "site-1")):
        process._suspicions.add(a, b, 8.1, 0.1)
    assert process._last_sign_of("site-1") == process._suspicions.since("site-1") == 8.1 - UNREACHABLE_AFTER_S


def test_two_nodes_that_cannot_reach_each_other_are_heard_only_if_both_are_connected(
    controlled: Controlled, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[Any] = []
    monkeypatch.setattr(controlled.process, "_step", steps.append)
    for a, b in (("site-1", "site-2"), ("site-2", "site-1")):
        controlled.take(a, membership.PeerUnreachable(peer=b))
    assert steps == [LinkDown(a="site-2", b="site-1")]
    del controlled.process._links["site-3"]
    for a, b in (("site-1", "site-3"), ("site-3", "site-1"), ("site-1", "site-9"), ("site-9", "site-1")):
        controlled.process._suspect_link(a, b)
    assert len(steps) == 1


def test_a_connection_that_ends_is_closed_and_forgotten(
    controlled: Controlled, monkeypatch: pytest.MonkeyPatch
) -> None:
    process, link = controlled.process, _Link("site-2")

    async def let_in(*_: Any) -> tuple[str, None]:
        return "site-2", None

    monkeypatch.setattr(controller_process, "let_in", let_in)
    monkeypatch.setattr(controller_process, "Link", lambda *_: link)
    monkeypatch.setattr(controller_process, "pid_of", lambda _: None)
    process._links["site-2"] = link  # type: ignore[assignment]
    process._detector.beat("site-2", 1.0)
    process._views.addresses |= {"site-1": "unix:1", "site-2": "unix:2"}
    trio.run(process._serve, None)
    assert link.is_closed and "site-2" not in process._links
    assert process._detector.last("site-2") is None
    assert process._views.addresses.keys() == {"site-1"}
    assert not controlled.view.alive("site-2") and [d.node for d in controlled.reported(reports.NodeDead)] == ["site-2"]


def test_a_restarted_controller_gives_missing_nodes_up_after_a_while(
    controlled: Controlled,
) -> None:
    process = controlled.process
    del process._links["site-2"], process._links["egress"]
    process._detector.beat("egress", time.monotonic())  # It beats, and connects when its job is done.

    async def wait() -> list[tuple[float, bool, bool]]:
        seen = []
        async with trio.open_nursery() as nursery:
            nursery.start_soon(process._time_out_missing_nodes)
            for until in (RETURN_S - 0.1, RETURN_S + 0.1, GONE_S + 0.1):
                await trio.sleep_until(until)
                seen.append((until, controlled.view.alive("site-2"), controlled.view.alive("egress")))
        return seen

    seen = trio.run(wait, clock=MockClock(autojump_threshold=0))
    assert [alive for _, *alive in seen] == [[True, True], [False, True], [False, True]]


# Errors that end the run.


def test_copies_that_differ_are_an_error_of_the_run(controlled: Controlled, monkeypatch: pytest.MonkeyPatch) -> None:
    difference = Difference(1, 0, 3, 5, "site-1", "site-2")

    async def error_of(found: Difference) -> OperatorError:
        assert found == difference
        return OperatorError("they differ")

    comparison = controlled.process._comparison
    monkeypatch.setattr(comparison, "error_of", error_of)
    found: list[Difference | None] = [None, difference]
    monkeypatch.setattr(comparison, "compare", lambda *_: found.pop(0))
    for _ in range(2):
        controlled.take("site-1", membership.EmittedDigests(stage=1, position=5, partitions=(), digests=()))
        controlled.nursery.finish()
    [failed] = controlled.reported(reports.ProcessFailed)
    assert failed.node == CONTROLLER and failed.error["message"] == "they differ"


def test_a_journal_that_lost_a_view_ends_the_run_once(tmp_path: Path) -> None:
    Controlled(tmp_path).process._views._journal.close()
    again = Controlled(tmp_path, is_first=False)
    for node in ("site-1", "site-2"):
        again.process._step(Hello(node=node, view=2))
    [failed] = again.reported(reports.ProcessFailed)
    assert "has lost its end" in failed.error["message"] and "site-1 has seen view 2" in failed.error["message"]
    again.process._step(Closed(node="site-3"))
    assert again.view.alive("site-3"), "no view follows"


def test_a_controller_that_records_has_its_messages_in_a_file(tmp_path: Path) -> None:
    (tmp_path / "recorded").mkdir()
    controlled = Controlled(tmp_path, record=tmp_path / "recorded")
    [file] = (tmp_path / "recorded").iterdir()
    before = file.stat().st_size
    controlled.process._step(Closed(node="site-3"))
    assert file.stat().st_size > before > 0
    assert controlled.process._recorder is not None
    controlled.process._recorder._file.close()
