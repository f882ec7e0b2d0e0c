"""What the driver knows of balance, and what the report and the status say of it."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from flux.driver.balance_log import COPY_LOST, ROUNDS_MAX
from flux.driver.report import Interval
from flux.driver.report_builder import load_of, make_report, status_of
from flux.driver.run_state import RunState
from flux.plan import Plan, Segment
from flux.wire import reports
from flux.wire.frames import BadFrame

START = 100.0


def state() -> RunState:
    segment = Segment(columns=("n",), partitions=4, availability="pairs", steps=())
    plan = Plan(name="even", segments=(segment,), sites=2, standby=1, pool_rows=100)
    return RunState(plan, started_at=START)


def round_of(number: int, controller: int = 1, **given: Any) -> reports.RoundChanged:
    fields: dict[str, Any] = {
        "age_s": 0.0,
        "why": "site-1 has the most to do",
        "moves": 2,
        "dropped": 0,
        "failed": 0,
        "ended": "",
        "took_s": None,
        "gain_expected": 0.25,
        "gain_measured": None,
    }
    return reports.RoundChanged(round=reports.RoundId(controller=controller, number=number), **(fields | given))


def sent(version: int, size_bytes: int) -> reports.StateSent:
    return reports.StateSent(
        version=version, stage=1, partition=version, to="site-3", size_bytes=size_bytes, snapshot_s=0.0, send_s=0.1
    )


def loads(**slow: bool) -> reports.SiteLoads:
    sites = tuple(
        reports.SiteLoad(site=name.replace("_", "-"), utilisation=0.5, lag=0.1, speed=1.0, slow=is_slow)
        for name, is_slow in slow.items()
    )
    return reports.SiteLoads(sites=sites, phase="collecting statistics")


def test_a_round_is_reported_with_its_moves_bytes_and_gains() -> None:
    run = state()
    first = reports.RoundId(controller=1, number=1)
    run.apply(round_of(1, age_s=0.5), "controller", START + 2.0)
    run.apply(reports.CopiesBegun(versions=(1, 2), why="skew", round=first), "controller", START + 2.0)
    for version, size_bytes in ((1, 10), (2, 30), (3, 500)):
        run.apply(sent(version, size_bytes), "site-1", START + 2.5)
    run.apply(round_of(1, ended="done", took_s=0.75, failed=1, gain_measured=0.2), "controller", START + 9.0)

    report = make_report("even", run, [])

    [only] = report.rounds
    assert (only["when_s"], only["took_s"]) == pytest.approx((1.5, 0.75)), "later reports do not move its beginning"
    assert (only["round"], only["moves"], only["failed"], only["bytes"]) == (1, 2, 1, 40)
    assert (only["gain_expected"], only["gain_measured"]) == (0.25, 0.2)
    assert only["why"] == "site-1 has the most to do"
    assert [(move["why"], move["round"]) for move in report.moves] == [("skew", 1), ("skew", 1), (COPY_LOST, None)]
    events = [event for interval in report.timeline for event in interval.events]
    assert "balance round 1 begins, moves: 2" in events
    assert json.loads(json.dumps(report.to_dict()))["rounds"] == report.rounds


def test_rounds_of_a_controller_that_was_started_again_are_counted_on() -> None:
    run = state()
    for controller, number in ((1, 1), (1, 2), (2, 1), (2, 1)):
        run.apply(round_of(number, controller), "controller", START + 1.0)
    assert [each["round"] for each in make_report("even", run, []).rounds] == [1, 2, 3]


def test_a_drain_says_so() -> None:
    run = state()
    run.apply(reports.CopiesBegun(versions=(1,), why="drain of site-1", round=None), "controller", START)
    run.apply(sent(1, 10), "site-1", START)
    [move] = make_report("even", run, []).moves
    assert (move["why"], move["round"]) == ("drain of site-1", None)


def test_very_many_rounds_are_kept_in_bounded_memory() -> None:
    run = state()
    for number in range(ROUNDS_MAX + 5):
        run.apply(round_of(number + 1), "controller", START)
    rounds = make_report("even", run, []).rounds
    assert (len(rounds), rounds[0]["round"], rounds[-1]["round"]) == (ROUNDS_MAX, 6, ROUNDS_MAX + 5)
    assert len(run.balance._by_id) == ROUNDS_MAX


def test_the_times_in_which_a_site_was_slow_are_reported() -> None:
    run = state()
    for at, is_slow in ((1.0, False), (2.0, True), (3.0, True), (4.0, False), (5.0, True)):
        run.apply(loads(site_1=False, site_2=is_slow), "controller", START + at)
    report = make_report("even", run, [])
    none = {"kept_rows": 0, "waits": [], "given_up": 0}
    assert report.slow == [
        {"site": "site-2", "when_s": 2.0, "until_s": 4.0} | none,
        {"site": "site-2", "when_s": 5.0, "until_s": None} | none,
    ]
    assert json.loads(json.dumps(report.to_dict()))["slow"] == report.slow
    status = status_of("even", run, [], True, START + 6.0)
    assert status["balance"] == status.balance == "collecting statistics"


def kept(rows: int, time_left_s: float | None = None, slow: bool = True) -> reports.SiteLoads:
    [load] = loads(site_2=slow).sites
    load = dataclasses.replace(load, kept_rows=rows, kept_rows_max=400, time_left_s=time_left_s)
    return reports.SiteLoads(sites=(load,), phase="")


def test_what_was_kept_for_a_slow_site_and_when_the_source_waited_are_reported() -> None:
    run = state()
    told = ((1.0, kept(100)), (2.0, kept(300, 4.0)), (3.0, kept(410, 0.0)), (4.0, kept(405, 0.0)), (5.0, kept(200)))
    for at, report in (*told, (6.0, kept(400, 0.0)), (7.0, kept(50, slow=False))):
        run.apply(report, "controller", START + at)
    report = make_report("even", run, [])
    [span] = report.slow
    assert (span["kept_rows"], span["given_up"]) == (410, 0)
    assert span["waits"] == [{"when_s": 3.0, "until_s": 5.0}, {"when_s": 6.0, "until_s": 7.0}]
    events = [event for interval in report.timeline for event in interval.events]
    assert events == [
        "site-2 is slow",
        "the source waits for site-2",
        "the source does not wait for site-2 any more",
        "the source waits for site-2",
        "site-2 is not slow any more",
        "the source does not wait for site-2 any more",
    ]
    assert json.loads(json.dumps(report.to_dict()))["slow"] == report.slow


def test_copies_that_were_given_up_are_reported() -> None:
    run = state()
    run.apply(reports.CopiesRetired(site="site-2", copies=4), "controller", START + 1.0)  # Before any load.
    run.apply(kept(0), "controller", START + 1.5)
    run.apply(reports.CopiesRetired(site="site-2", copies=2), "controller", START + 9.0)
    report = make_report("even", run, [])
    assert [(span["when_s"], span["given_up"]) for span in report.slow] == [(1.0, 6)]
    events = [event for interval in report.timeline for event in interval.events]
    assert "site-2 is given up, copies: 4" in events and "site-2 is given up, copies: 2" in events


def test_the_status_says_what_is_kept_for_a_slow_site_and_how_long() -> None:
    run = state()
    run.apply(kept(300, 4.0), "controller", START + 1.0)
    shown = load_of(run, "site-2")
    assert (shown["kept_rows"], shown["kept_rows_max"], shown["time_left_s"], shown["slow"]) == (300, 400, 4.0, True)
    assert load_of(run, "site-1") == {}


def test_a_run_that_is_not_balanced_says_so() -> None:
    assert status_of("even", state(), [], True, START).balance == "off"
    assert make_report("even", state(), []).rounds == []


@pytest.mark.parametrize(
    "report",
    [
        loads(),
        round_of(1),
        reports.CopiesBegun(versions=(), why="", round=None),
        reports.CopiesRetired(site="site-1", copies=1),
    ],
)
def test_only_the_controller_reports_on_balance(report: reports.Report) -> None:
    with pytest.raises(BadFrame, match="which only the controller sends"):
        state().apply(report, "site-1", START)


def test_the_picture_shows_rounds_and_slow_sites(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    run = state()
    run.apply(round_of(1, ended="done", took_s=0.75), "controller", START + 2.0)
    run.apply(round_of(2), "controller", START + 3.0)
    run.apply(loads(site_2=True), "controller", START + 2.0)
    report = make_report("even", run, [])
    report.timeline = [Interval(t_s=float(t), input_rate=1.0, output_rate=1.0) for t in range(6)]
    report.plot(tmp_path / "run.svg")
    text = (tmp_path / "run.svg").read_text()
    assert "balance round" in text and "slow site" in text
