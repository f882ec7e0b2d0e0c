"""Metrics: what is computed from reports, as Prometheus reads it; and what the page and the dashboard say of it."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import pytest

import flux
from flux.driver.failures import death_counts
from flux.driver.metric_families import make_metrics, stage_names, step_names
from flux.driver.metrics import Family, Metrics, Sample
from flux.driver.processes import Process
from flux.driver.report_builder import status_of
from flux.driver.run_state import Completeness, RunState, SinkProgress
from flux.driver.status import ProcessStatus
from flux.plan import Plan, Policy
from flux.wire import reports
from flux.wire.frames import BadFrame

from .metrics_text import kinds, parsed, total

ROOT = Path(__file__).parent.parent.parent
NOW = 1_000.0


class Counts(flux.KeyedOperator):
    output: ClassVar = {"n": "int64"}

    def on_tuple(self, key, row, state):  # type: ignore[no-untyped-def]
        return None, [{"n": row.n}]


def plan_of() -> Plan:
    """Two stages of the same operator, with four partitions each, and two sinks."""
    flow = flux.Dataflow("twice")
    first = flow.source(flux.sources.Table([{"n": 1}])).exchange("n", partitions=4).apply(Counts)
    first.exchange("n", partitions=4).apply(Counts).sink(flux.sinks.Null())
    first.sink(flux.sinks.Null())
    return flow._logical.plan(2, 0, "pairs", 1_000, Policy())


PLAN = plan_of()


def run_state_of() -> RunState:
    return RunState(PLAN, sinks=[SinkProgress(), SinkProgress()], started_at=NOW - 10)


def of_stage(
    stage: int,
    rows: dict[int, int],
    keys: tuple[int, ...] = (),
    pending_rows: int = 0,
    pool_rows: int = 0,
    watermark_ms: int | None = None,
) -> reports.StageMeasures:
    return reports.StageMeasures(
        stage=stage,
        partitions=tuple(rows),
        rows=tuple(rows.values()),
        keys=keys,
        busy_s=0.25,
        pending_rows=pending_rows,
        pool_rows=pool_rows,
        pool_rows_max=1_000,
        watermark_ms=watermark_ms,
    )


def measures(
    *stages: reports.StageMeasures,
    elapsed_s: float = 1.0,
    busy_s: float = 0.5,
    waits: tuple[tuple[int, int, float], ...] = (),
    kept: tuple[tuple[int, str, int, int], ...] = (),
) -> reports.Measures:
    return reports.Measures(elapsed_s=elapsed_s, busy_s=busy_s, moving_s=0.0, stages=stages, waits=waits, kept=kept)


def metrics_of(run_state: RunState, now: float = NOW) -> Metrics:
    processes = [ProcessStatus("site-1", None, "up", 1, 0.0)]
    return make_metrics(status_of("twice", run_state, processes, True, now), run_state, now)


def test_rows_are_those_of_the_copy_that_is_furthest_and_do_not_fall_when_it_dies() -> None:
    run_state = run_state_of()
    run_state.apply(measures(of_stage(1, {0: 10, 1: 7})), "site-1", NOW)
    run_state.apply(measures(of_stage(1, {0: 8, 1: 9, 2: 5})), "site-2", NOW)
    run_state.apply(reports.NodeDead(node="site-1", at=NOW, seen_at=None), "controller", NOW)

    values = parsed(metrics_of(run_state).to_text())
    rows = [total(values, "flux_rows_total", step="Counts", partition=str(p)) for p in range(4)]
    assert rows == [10, 9, 5, 0]
    assert total(values, "flux_rows_total", step="Counts#2") == 0
    sites = {dict(labels)["site"] for (name, labels) in values if name == "flux_busy_seconds_total"}
    assert sites == {"site-2"}, "what a dead site did alone ends with it"


def test_a_report_that_arrives_after_the_death_counts_its_rows_and_shows_no_site() -> None:
    run_state = run_state_of()
    run_state.apply(reports.NodeDead(node="site-1", at=NOW, seen_at=None), "controller", NOW)
    run_state.apply(measures(of_stage(1, {0: 10})), "site-1", NOW)

    metrics = metrics_of(run_state)
    assert metrics.total("flux_rows_total") == 10
    assert metrics["flux_busy_share"].samples == []


@pytest.mark.parametrize(
    "report",
    [
        measures(of_stage(5, {})),
        measures(of_stage(-1, {})),
        measures(of_stage(1, {4: 1})),
        measures(of_stage(1, {-1: 1})),
        measures(of_stage(0, {0: 1})),
        measures(of_stage(1, {0: 1}, keys=(1, 2))),
        measures(replace(of_stage(1, {0: 1}), rows=(1, 2))),
        measures(waits=((1, 9, 1.0),)),
        measures(waits=((9, 0, 1.0),)),
        measures(kept=((-1, "site-1", 1, 2),)),
    ],
    ids=str,
)
def test_measures_of_what_the_plan_does_not_have_are_refused(report: reports.Measures) -> None:
    run_state = run_state_of()
    with pytest.raises(BadFrame, match="expected"):
        run_state.apply(report, "site-1", NOW)
    assert not run_state.measured.nodes and not any(rows.any() for rows in run_state.measured.rows.values())


def test_the_busy_share_is_that_of_the_time_between_two_reports() -> None:
    run_state = run_state_of()
    for elapsed_s, busy_s in ((10.0, 2.0), (11.0, 2.75)):
        run_state.apply(measures(elapsed_s=elapsed_s, busy_s=busy_s), "site-1", NOW)
    assert metrics_of(run_state).total("flux_busy_share") == 0.75
    run_state.apply(measures(elapsed_s=11.0, busy_s=2.75), "site-1", NOW)
    assert metrics_of(run_state).total("flux_busy_share") == 0.75, "it was repeated, and says nothing new"


def test_rates_are_over_the_last_seconds() -> None:
    run_state = run_state_of()
    for second in range(20):
        run_state.apply(measures(of_stage(1, {2: 100 * second})), "site-1", NOW + second)
    metrics = metrics_of(run_state, NOW + 19)
    assert metrics.total("flux_rows_per_second", step="Counts", partition="2") == pytest.approx(100)
    assert metrics.total("flux_rows_per_second") == pytest.approx(100)


def test_waits_queues_pools_and_lags_have_the_names_of_their_edges() -> None:
    run_state = run_state_of()
    [to_second, to_sink] = PLAN.outputs(1)
    stage = of_stage(1, {0: 1}, pending_rows=7, pool_rows=900, watermark_ms=2_000)
    site = measures(
        stage, waits=((1, to_second, 1.5),), kept=((to_second, "site-2", 50, 100), (to_sink, "egress", 1, 100))
    )
    run_state.apply(site, "site-1", NOW)
    other = measures(of_stage(1, {}), kept=((to_second, "site-2", 20, 100),))
    run_state.apply(other, "site-2", NOW)
    run_state.apply(measures(of_stage(0, {}, watermark_ms=5_000)), "ingress", NOW)

    metrics = metrics_of(run_state)
    assert metrics.total("flux_backpressure_seconds_total", step="Counts", to="Counts#2", site="site-1") == 1.5
    assert metrics.total("flux_queue_rows", step="Counts", site="site-1") == 7
    assert metrics.total("flux_pool_rows", step="Counts", site="site-1") == 900
    kept = [(each.labels, each.value) for each in metrics["flux_kept_rows"].samples]
    names = {stage: name for stage, name in stage_names(PLAN).items() if name.startswith("sink")}
    sink = names[PLAN.edges[to_sink].consumer]
    assert kept == [({"step": "Counts#2", "site": "site-2"}, 50), ({"step": sink, "site": "egress"}, 1)]
    assert metrics.total("flux_watermark_timestamp_seconds", step="Counts") == 2.0
    assert metrics.total("flux_watermark_lag_seconds", step="Counts") == 3.0
    assert metrics.total("flux_watermark_lag_seconds", step="ingress") == 0.0


def test_a_site_has_recovered_only_once_it_was_declared_dead_and_all_was_rebuilt() -> None:
    run_state = run_state_of()
    dead = Process("site-1", 1)
    dead.ended(None)
    run_state.deaths.append(dead)
    assert dead.gone_at is not None
    run_state.wholes.append(Completeness(dead.gone_at + 0.1, 0))  # A view from before anything was missed.
    assert death_counts(run_state) == ({"site": 1}, {"site": 0})
    run_state.apply(reports.NodeDead(node="site-1", at=dead.gone_at + 0.2, seen_at=None), "controller", NOW)
    assert death_counts(run_state)[1]["site"] == 0
    run_state.wholes.append(Completeness(dead.gone_at + 0.3, 4))
    assert death_counts(run_state)[1]["site"] == 1


def test_moves_are_counted_beyond_those_that_a_report_lists() -> None:
    run_state = run_state_of()
    for version in range(3):
        sent = reports.StateSent(
            version=version, stage=2, partition=1, to="site-2", size_bytes=100 + version, snapshot_s=0.0, send_s=0.0
        )
        run_state.apply(sent, "site-1", NOW)
    metrics = metrics_of(run_state)
    assert metrics.total("flux_moves_total", step="Counts#2") == 3
    assert metrics.total("flux_moved_bytes_total", step="Counts#2") == 303
    assert metrics.total("flux_state_bytes", step="Counts#2", partition="1") == 102


def test_dropped_rows_have_the_names_of_their_steps() -> None:
    run_state = run_state_of()
    run_state.apply(reports.RowsLate(step="Counts", stage=2, number=0, totals=((3, 5),)), "site-1", NOW)
    for number, step in ((0, "Counts"), (-1, "source Table")):
        stage = 1 if number == 0 else 0
        skipped = reports.RowsSkipped(step=step, stage=stage, number=number, totals=((0, 2),), rows=())
        run_state.apply(skipped, "site-1" if stage else "ingress", NOW)
    metrics = metrics_of(run_state)
    assert metrics.total("flux_late_rows_total", step="Counts#2", partition="3") == 5
    assert metrics.total("flux_skipped_rows_total", step="Counts") == 2
    assert metrics.total("flux_skipped_rows_total", step="source 1") == 2


def test_each_step_and_stage_has_a_name_of_its_own() -> None:
    assert stage_names(PLAN) == {0: "ingress", 1: "Counts", 2: "Counts#2", 3: "sink 0", 4: "sink 1"}
    assert step_names(PLAN) == {0: [], 1: ["Counts"], 2: ["Counts#2"]}


def test_any_label_survives_the_text() -> None:
    odd = 'a "quoted" name\\ with\na line'
    metrics = Metrics([Family("flux_run_info", "gauge", odd, [Sample({"run": odd}, 1)])])
    assert parsed(metrics.to_text()) == {("flux_run_info", (("run", odd),)): 1.0}


def test_the_json_document_is_all_there_is() -> None:
    run_state = run_state_of()
    run_state.apply(measures(of_stage(1, {0: 3}, keys=(2,))), "site-1", NOW)
    metrics = metrics_of(run_state)
    assert Metrics.from_dict(json.loads(json.dumps(metrics.to_dict()))) == metrics


# The page, and the dashboard.


CELL = r"     - \S.*\n(?:       \S.*\n)*"


def full() -> Metrics:
    """The metrics of a run in which each of them has a series."""
    run_state = run_state_of()
    stage = of_stage(1, {0: 1}, keys=(1,), watermark_ms=1)
    run_state.apply(measures(stage, waits=((1, 1, 1.0),), kept=((1, "site-2", 1, 2),)), "site-1", NOW)
    run_state.apply(reports.RowsLate(step="Counts", stage=1, number=0, totals=((0, 1),)), "site-1", NOW)
    skipped = reports.RowsSkipped(step="Counts", stage=1, number=0, totals=((0, 1),), rows=())
    run_state.apply(skipped, "site-1", NOW)
    sent = reports.StateSent(version=1, stage=1, partition=0, to="site-2", size_bytes=1, snapshot_s=0.0, send_s=0.0)
    run_state.apply(sent, "site-1", NOW)
    run_state.apply(reports.Placement(copies={"site-1": 8}, building=0), "controller", NOW)
    run_state.apply(reports.RowsNumbered(log=((NOW - 1, 9, 9),), total=9, upto=9), "ingress", NOW)
    written = reports.RowsWritten(sink=0, after=0, upto=9, rows=9, end=False, position=9, ahead=())
    run_state.apply(written, "egress", NOW)
    return metrics_of(run_state)


def labels_of(metrics: Metrics) -> dict[str, set[str]]:
    assert all(family.samples for family in metrics.values())
    return {name: {label for each in family.samples for label in each.labels} for name, family in metrics.items()}


def documented() -> dict[str, str]:
    page = (ROOT / "docs" / "metrics.rst").read_text()
    rows = re.findall(
        r"^   \* - ``(flux_\w+)`` (counter|gauge)\n     - \S.*\n(?:       .*\n)*     - \S", page, re.MULTILINE
    )
    assert len(rows) == page.count("   * - ``"), "a row of the table does not have the usual form"
    return dict(rows)


def test_the_page_explains_each_metric_that_there_is_and_no_other() -> None:
    assert documented() == kinds(metrics_of(run_state_of()))


def test_every_metric_of_the_page_s_text_is_there() -> None:
    named = set(re.findall(r"\bflux_[a-z_]+\b", (ROOT / "docs" / "metrics.rst").read_text()))
    assert named == metrics_of(run_state_of()).keys()


def test_names_have_base_units_and_counters_end_in_total() -> None:
    for name, kind in documented().items():
        assert re.fullmatch(r"flux_[a-z]+(_[a-z]+)*", name)
        assert name.endswith("_total") == (kind == "counter")
        assert not re.search(r"_(ms|milliseconds|minutes|kb|mb|percent|count)\b", name)


def test_every_expression_of_the_dashboard_is_of_metrics_that_there_are() -> None:
    board = json.loads((ROOT / "docs" / "_static" / "grafana.json").read_text())
    kept, labels, shown = kinds(full()), labels_of(full()), set()
    for panel in board["panels"]:
        for target in panel["targets"]:
            expression = target["expr"]
            names = re.findall(r"\bflux_\w+", expression)
            assert names and set(names) <= kept.keys(), f"{panel['title']}: {expression}"
            for name in names:
                is_rate = f"rate({name}" in expression
                is_sum = panel["title"] == "Failures and recoveries"
                assert is_rate == (kept[name] == "counter") or is_sum, f"{panel['title']}: {expression}"
            grouped = re.match(r"\w+ by \(([\w, ]+)\)", expression)
            has = set(grouped[1].split(", ")) if grouped else set.intersection(*(labels[name] for name in names))
            assert set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])) <= has, expression
            assert has <= set.intersection(*(labels[name] for name in names)), expression
            shown |= set(names)
    variables = [each["query"]["query"] for each in board["templating"]["list"] if each["type"] == "query"]
    assert all(re.search(r"\bflux_run_info\b", query) for query in variables) and "flux_run_info" in kept
    assert len(shown) > 15
