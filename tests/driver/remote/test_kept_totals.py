"""The totals of a controller that is restarted: none of them falls."""

from __future__ import annotations

from pathlib import Path

import pytest

from flux.driver.metrics import Metrics
from flux.driver.remote.kept_totals import KeptTotals
from flux.driver.remote.remote_driver import RemoteDriver
from flux.wire import reports
from tests.driver.metrics_text import assert_nothing_fell, parsed
from tests.driver.test_metrics import NOW, PLAN, measures, of_stage


def driver_of(directory: Path) -> tuple[RemoteDriver, KeptTotals, list[str]]:
    """What a controller has after its start."""
    driver, warned = RemoteDriver(PLAN, None, lambda rows: None), list[str]()
    kept = KeptTotals(directory, driver.run_state, warned.append)
    kept.restore()
    return driver, kept, warned


def written(rows: int) -> reports.RowsWritten:
    return reports.RowsWritten(sink=0, after=0, upto=9, rows=rows, end=False, position=9, ahead=(), total=rows)


def fill(driver: RemoteDriver) -> None:
    """Report something of everything that is counted."""
    state = driver.run_state
    state.apply(measures(of_stage(1, {0: 10, 3: 4})), "site-1", NOW)
    state.apply(reports.RowsNumbered(log=(), total=20, upto=20), "ingress", NOW)
    state.apply(reports.RowsShed(total=3), "ingress", NOW)
    state.apply(written(7), "egress", NOW)
    state.apply(reports.RowsLate(step="Counts", stage=1, number=0, totals=((2, 5),)), "site-1", NOW)
    of_ingress = reports.RowsSkipped(step="f", stage=0, number=-1, totals=((0, 2),), rows=())
    state.apply(of_ingress, "ingress", NOW)
    sent = reports.StateSent(version=1, stage=2, partition=1, to="site-2", size_bytes=9, snapshot_s=0.0, send_s=0.0)
    state.apply(sent, "site-1", NOW)
    for action in state.apply(reports.NodeDead(node="site-1", at=NOW, seen_at=None), "controller", NOW):
        driver._carry_out(action, NOW)
    round_id = reports.RoundId(controller=1, number=1)
    changed = reports.RoundChanged(
        round=round_id,
        age_s=0.0,
        why="",
        moves=1,
        dropped=0,
        failed=0,
        ended="",
        took_s=None,
        gain_expected=0.0,
        gain_measured=None,
    )
    state.apply(changed, "controller", NOW)


def counters(metrics: Metrics) -> float:
    return sum(metrics.total(name) for name in metrics if name.endswith("_total"))


def test_no_total_falls_when_the_controller_is_restarted_and_nobody_reports_again(tmp_path: Path) -> None:
    driver, kept, _ = driver_of(tmp_path)
    fill(driver)
    kept.write()
    shown = driver.metrics()
    for name, family in shown.items():
        if family.kind == "counter" and family.samples and all("site" not in each.labels for each in family.samples):
            assert shown.total(name) > 0 or name == "flux_recoveries_total", f"the test shows nothing of {name}"

    again, kept_again, warned = driver_of(tmp_path)
    assert_nothing_fell(parsed(shown.to_text()), parsed(again.metrics().to_text()))
    assert warned == []
    kept_again.write()
    assert counters(driver_of(tmp_path)[0].metrics()) == counters(again.metrics()), "nothing is counted twice"


def test_totals_that_are_reported_again_are_not_counted_twice(tmp_path: Path) -> None:
    driver, kept, _ = driver_of(tmp_path)
    fill(driver)
    kept.write()
    again, _, _ = driver_of(tmp_path)
    state = again.run_state
    state.apply(measures(of_stage(1, {0: 8, 3: 5})), "site-2", NOW)  # Of the copies that are left, one was behind.
    state.apply(reports.RowsNumbered(log=(), total=25, upto=25), "ingress", NOW)
    state.apply(written(9), "egress", NOW)
    state.apply(reports.RowsLate(step="Counts", stage=1, number=0, totals=((2, 5), (1, 1))), "site-2", NOW)

    metrics = again.metrics()
    assert [metrics.total("flux_rows_total", step="Counts", partition=p) for p in "0123"] == [10, 0, 0, 5]
    assert metrics.total("flux_input_rows_total") == 25
    assert metrics.total("flux_output_rows_total") == 9
    assert metrics.total("flux_late_rows_total") == 6


def test_the_file_is_written_when_something_has_changed(tmp_path: Path) -> None:
    driver, kept, _ = driver_of(tmp_path)
    kept.write()
    [path] = tmp_path.iterdir()
    path.unlink()
    kept.write()
    assert not path.exists()
    fill(driver)
    kept.write()
    assert path.exists()


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"format": 1}', b'{"format": 1, "inputs": "x"}', b"\xff\xfe"])
def test_a_file_that_cannot_be_read_is_said_and_does_not_end_the_run(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "totals.json").write_bytes(content)
    driver, kept, warned = driver_of(tmp_path)
    assert len(warned) == 1 and "begin anew" in warned[0]
    fill(driver)
    kept.write()
    assert driver_of(tmp_path)[0].metrics().total("flux_rows_total") == 14


def test_a_full_disk_is_said_once(tmp_path: Path) -> None:
    driver, kept, warned = driver_of(tmp_path / "that is not there")
    for rows in (1, 2):
        driver.run_state.apply(measures(of_stage(1, {0: rows})), "site-1", NOW)
        kept.write()
    assert len(warned) == 1 and "may fall" in warned[0]
