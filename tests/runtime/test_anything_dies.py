"""Any process may die, or seem to, at any moment: the output is exact, and the next death is survived too.

It takes half a minute: each test is a run of real processes that die and are replaced.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

import flux
from experiments import dmz
from flux.site.peers import UNREACHABLE_AFTER_S
from flux.site.shell import FENCED
from flux.wire.tls import Tls

from .relay import Relay, relayed

ROWS_PER_S = 60_000
SLOW_ROWS_PER_S = 20_000  # So that rows still flow when it is decided that two sites cannot reach each other.
PATIENCE_S = 60.0
FILES = Path(__file__).parent.parent / "wire" / "certificates"
OURS = Tls(certificate=str(FILES / "ours.pem"), key=str(FILES / "ours.key"), ca=str(FILES / "ours-ca.pem"))


Fault = Callable[[flux.run.Run], None]


def kill(*names: str) -> Fault:
    def fault(run: flux.run.Run) -> None:
        for name in names:
            run.kill(name)

    return fault


def each(*names: str) -> Fault:
    """One after the other, each when some output has come since the last."""

    def fault(run: flux.run.Run) -> None:
        for name in names:
            run.wait_for_output(run.status().outputs + 500)
            run.kill(name)

    return fault


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(kill("controller"), marks=pytest.mark.long),
        pytest.param(kill("ingress"), marks=pytest.mark.long),
        pytest.param(kill("egress"), marks=pytest.mark.long),
        kill("ingress", "egress", "controller"),
        kill("site-1", "controller"),
        pytest.param(kill("controller", "site-1"), marks=pytest.mark.long),
        kill("site-1", "ingress"),
        pytest.param(kill("egress", "site-2"), marks=pytest.mark.long),
        each("controller", "controller", "controller"),
        each("ingress", "egress", "ingress", "egress"),
        each("site-1", "controller", "ingress"),
    ],
    ids=[
        "controller",
        "ingress",
        "egress",
        "all three",
        "a site, then the controller",
        "the controller, then a site",
        "a site and the ingress",
        "the egress and a site",
        "the controller thrice",
        "ends in turn",
        "a site, and those who see to it",
    ],
)
def test_the_output_is_exact(packets: list[pa.RecordBatch], expected: pa.Table, fault: Fault) -> None:
    with dmz.flow(packets, partitions=6, rate=ROWS_PER_S).start(sites=3, standby=1) as run:
        run.wait_for_output(2_000)
        fault(run)
        report = run.wait(timeout=PATIENCE_S)
    assert report.table.equals(expected)
    assert report.inputs == sum(batch.num_rows for batch in packets)


def test_a_site_that_was_stopped_too_long_ends_when_it_wakes(packets: list[pa.RecordBatch], expected: pa.Table) -> None:
    with dmz.flow(packets, partitions=6, rate=ROWS_PER_S).start(sites=3) as run:
        run.wait_for_output(2_000)
        site = run._driver.processes.live("site-2")
        os.kill(site.pid, signal.SIGSTOP)
        assert run._driver.wait(
            lambda run_state: "site-2" in run_state.closed_at or run_state.error is not None, PATIENCE_S
        )
        os.kill(site.pid, signal.SIGCONT)
        assert run._driver.wait(lambda run_state: site.gone, PATIENCE_S)
        report = run.wait(timeout=PATIENCE_S)
    assert site.exited == FENCED
    assert report.table.equals(expected)
    assert [failure.site for failure in report.failures] == ["site-2"]


def test_a_site_that_comes_later_takes_the_lost_copies(packets: list[pa.RecordBatch], expected: pa.Table) -> None:
    with dmz.flow(packets, partitions=6, rate=ROWS_PER_S).start(sites=2) as run:
        run.wait_for_output(2_000)
        run.kill("site-1")
        assert run.add_site() == "site-3"
        whole = run._driver.wait(lambda run_state: run_state.whole and "site-1" in run_state.closed_at, PATIENCE_S)
        assert whole
        run.kill("site-2")
        report = run.wait(timeout=PATIENCE_S)
    assert report.table.equals(expected)


@pytest.mark.parametrize("tls", [None, OURS], ids=["plain", "tls"])
@pytest.mark.parametrize("breaks", [Relay.cut, Relay.half_open], ids=["cut", "half-open"])
def test_a_connection_that_breaks_between_the_living_goes_on_where_it_broke(
    packets: list[pa.RecordBatch],
    expected: pa.Table,
    monkeypatch: pytest.MonkeyPatch,
    breaks: Callable[[Relay], None],
    tls: Tls | None,
) -> None:
    flow = dmz.flow(packets, partitions=6, rate=ROWS_PER_S)
    with relayed(monkeypatch, "site-1", "site-2", tls=tls) as relay, flow.start(sites=2) as run:
        relay.start()
        for _ in range(3):
            run.wait_for_output(run.status().outputs + 500)
            relay.break_by(breaks)
        report = run.wait(timeout=PATIENCE_S)
    assert report.table.equals(expected)
    assert report.failures == []


@pytest.mark.parametrize("breaks", [Relay.cut_for_good, Relay.swallow], ids=["cut", "black hole"])
def test_of_two_sites_that_cannot_reach_each_other_one_is_removed(
    packets: list[pa.RecordBatch],
    expected: pa.Table,
    monkeypatch: pytest.MonkeyPatch,
    breaks: Callable[[Relay], None],
) -> None:
    flow = dmz.flow(packets, partitions=6, rate=SLOW_ROWS_PER_S)
    with relayed(monkeypatch, "site-1", "site-2") as relay, flow.start(sites=3) as run:
        relay.start()
        run.wait_for_output(2_000)
        breaks(relay)
        report = run.wait(timeout=PATIENCE_S)
    assert report.table.equals(expected)
    assert [failure.site for failure in report.failures] in (["site-1"], ["site-2"])
    # Both had tried for a while before it was decided.
    assert report.failures[0].detected_after_s > UNREACHABLE_AFTER_S
