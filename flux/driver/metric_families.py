"""Metric families: which metrics a run has, and how each is computed from what its driver knows.

Names and units are those of Prometheus: seconds, bytes, `_total` for what only grows. A counter without the label
`site` never falls, whatever dies: rows are those of a partition, in whichever copy they were counted. A series with
`site` ends with its process.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeAlias

from ..plan import Plan
from .failures import death_counts
from .measured import NodeMeasures
from .metrics import Family, Metrics, Sample
from .run_state import RunState
from .status import Status

_Samples: TypeAlias = Iterable[tuple[dict[str, str], float]]

_ROLES = ("site", "ingress", "egress", "controller")
QUANTILES = {"0.5": "latency_p50_ms", "0.99": "latency_p99_ms"}


def make_metrics(status: Status, run_state: RunState, now: float) -> Metrics:
    """Return the metrics of a run, with the status that it has `now`."""
    return Metrics(
        [*_of_run(status, run_state), *_of_deaths(run_state), *_of_steps(run_state, now), *_of_sites(run_state)]
    )


def _counter(name: str, what: str, samples: _Samples) -> Family:
    return Family(name, "counter", what, [Sample(labels, value) for labels, value in samples])


def _gauge(name: str, what: str, samples: _Samples) -> Family:
    return Family(name, "gauge", what, [Sample(labels, value) for labels, value in samples])


def _of_run(status: Status, run_state: RunState) -> Iterator[Family]:
    sinks = [({"sink": str(number)}, sink.rows) for number, sink in enumerate(run_state.sinks)]
    latency = [
        ({"quantile": q}, value / 1e3) for q, at in QUANTILES.items() if (value := getattr(status, at)) is not None
    ]
    yield _gauge("flux_run_info", "The run, by its name; always 1.", [({"run": status.name}, 1)])
    yield _gauge("flux_run_seconds", "Time since the start of the run.", [({}, status.t_s)])
    yield _counter("flux_input_rows_total", "Rows that the ingress has numbered.", [({}, status.inputs)])
    yield _gauge("flux_input_rows_per_second", "Rows numbered, over the last 5 s.", [({}, status.input_rate)])
    yield _counter("flux_output_rows_total", "Rows that are durable at a sink.", sinks)
    yield _gauge("flux_output_rows_per_second", "Rows durable at sinks, over the last 5 s.", [({}, status.output_rate)])
    yield _gauge("flux_latency_seconds", "From numbering to the sink, of the output of the last 5 s.", latency)
    yield _counter("flux_shed_rows_total", "Rows dropped at the ingress for want of room.", [({}, status.shed)])
    yield _counter(
        "flux_skipped_rows_total",
        "Rows that operators refused or sources could not read.",
        _dropped(run_state, "skipped"),
    )
    yield _counter("flux_late_rows_total", "Rows for which the watermark had passed.", _dropped(run_state, "late"))
    yield _gauge("flux_whole", "1 if every partition has all its copies, else 0.", [({}, int(status.whole))])
    yield _gauge("flux_copies_building", "Copies of partitions that are being built.", [({}, status.building)])
    up = [({"process": each.name}, int(each.state == "up")) for each in status.processes]
    yield _gauge("flux_process_up", "1 if the process runs and is connected, else 0.", up)


def _dropped(run_state: RunState, which: str) -> _Samples:
    names = step_names(run_state.plan)
    for (stage, number), partition, count in getattr(run_state.dropped_rows, f"{which}_counts")():
        name = names[stage][number] if number >= 0 else f"source {-number}"
        yield {"step": name, "partition": str(partition)}, count


def _of_deaths(run_state: RunState) -> Iterator[Family]:
    died, recovered = death_counts(run_state)
    names, events = stage_names(run_state.plan), run_state.events
    stages = [(stage, {"step": names[stage]}) for stage in run_state.plan.stages]
    yield _counter(
        "flux_failures_total", "Processes that died, by role.", [({"role": role}, died[role]) for role in _ROLES]
    )
    yield _counter(
        "flux_recoveries_total",
        "Deaths after which all copies, or the process, were back.",
        [({"role": role}, recovered[role]) for role in _ROLES],
    )
    yield _counter(
        "flux_moves_total",
        "Partitions whose state was sent to another site.",
        [(labels, events.moves[stage]) for stage, labels in stages],
    )
    yield _counter(
        "flux_moved_bytes_total",
        "Bytes of state sent to other sites.",
        [(labels, events.moved_bytes[stage]) for stage, labels in stages],
    )
    rounds = events.rounds_before + run_state.balance.round_count
    yield _counter("flux_balance_rounds_total", "Rounds of moves that balance has begun.", [({}, rounds)])


def _of_steps(run_state: RunState, now: float) -> Iterator[Family]:
    names, measured = stage_names(run_state.plan), run_state.measured
    rates = measured.rates(now)

    def by_partition(values: dict[tuple[int, int], int]) -> _Samples:
        return [
            ({"step": names[stage], "partition": str(partition)}, value)
            for (stage, partition), value in sorted(values.items())
        ]

    places = [
        (stage, partition, {"step": names[stage], "partition": str(partition)})
        for stage, rows in measured.rows.items()
        for partition in range(len(rows))
    ]
    yield _counter(
        "flux_rows_total",
        "Rows that a partition has consumed, each once.",
        [(labels, int(measured.rows[stage][partition])) for stage, partition, labels in places],
    )
    yield _gauge(
        "flux_rows_per_second",
        "Rows that a partition consumes, over the last 5 s.",
        [(labels, round(float(rates[stage][partition]), 3)) for stage, partition, labels in places],
    )
    yield _gauge("flux_state_keys", "Keys in the state of a partition.", by_partition(measured.keys))
    yield _gauge(
        "flux_state_bytes", "Size of a partition's state when it was last sent.", by_partition(measured.state_bytes)
    )


def _of_sites(run_state: RunState) -> Iterator[Family]:
    names, nodes = stage_names(run_state.plan), sorted(run_state.measured.nodes.items())
    of_nodes = [({"site": node}, each) for node, each in nodes]
    of_stages = [
        ({"step": names[stage.stage], "site": node}, stage) for node, each in nodes for stage in each.last.stages
    ]
    with_pool = [(labels, stage) for labels, stage in of_stages if stage.pool_rows_max]
    yield _counter(
        "flux_busy_seconds_total", "Time in which a process worked.", [(at, each.last.busy_s) for at, each in of_nodes]
    )
    yield _gauge(
        "flux_busy_share",
        "Part of the last second in which it worked.",
        [(at, each.busy_share) for at, each in of_nodes],
    )
    yield _counter(
        "flux_moving_seconds_total",
        "Time in which a process sent and installed state.",
        [(at, each.last.moving_s) for at, each in of_nodes],
    )
    yield _counter(
        "flux_step_busy_seconds_total",
        "Time in which a site worked for a step.",
        [(labels, stage.busy_s) for labels, stage in of_stages if stage.stage in run_state.plan.stages],
    )
    copies = [
        ({"site": node}, count) for node, count in sorted(run_state.copies.items()) if count or node.startswith("site-")
    ]
    yield _gauge("flux_copies", "Copies of partitions on a site.", copies)
    yield _gauge("flux_queue_rows", "Rows that wait for a step.", [(at, stage.pending_rows) for at, stage in of_stages])
    yield _gauge("flux_pool_rows", "Rows in the pool after a step.", [(at, stage.pool_rows) for at, stage in with_pool])
    yield _gauge(
        "flux_pool_rows_max", "Rows for which a pool has room.", [(at, s.pool_rows_max) for at, s in with_pool]
    )
    kept = _kept(run_state.plan, [each for _, each in nodes])
    yield _gauge("flux_kept_rows", "Rows kept for a site until it has them.", [(at, rows) for at, rows, _ in kept])
    yield _gauge("flux_kept_rows_max", "Rows that may be kept for a site.", [(at, most) for at, _, most in kept])
    yield _counter(
        "flux_backpressure_seconds_total",
        "Time in which a step had input, and no room in its pool because of the next.",
        [
            ({"step": names[stage], "to": names[run_state.plan.edges[edge].consumer], "site": node}, waited_s)
            for node, each in nodes
            for stage, edge, waited_s in each.last.waits
        ],
    )
    marks = [(labels, stage.watermark_ms) for labels, stage in of_stages if stage.watermark_ms is not None]
    newest_ms = max((value for labels, value in marks), default=0)
    yield _gauge(
        "flux_watermark_timestamp_seconds", "Event time that a step has passed.", [(at, ms / 1e3) for at, ms in marks]
    )
    yield _gauge(
        "flux_watermark_lag_seconds",
        "Event time by which a step is after the ingress.",
        [(at, (newest_ms - ms) / 1e3) for at, ms in marks],
    )


def _kept(plan: Plan, nodes: Iterable[NodeMeasures]) -> list[tuple[dict[str, str], int, int]]:
    """Return what is kept for each consumer, by the producer that keeps most of what it may."""
    names = stage_names(plan)
    found: dict[tuple[int, str], tuple[int, int]] = {}
    for each in nodes:
        for edge, consumer, rows, most in each.last.kept:
            place = (plan.edges[edge].consumer, consumer)
            last = found.get(place)
            if last is None or rows * last[1] > last[0] * most:
                found[place] = rows, most
    return [({"step": names[stage], "site": node}, *rows) for (stage, node), rows in sorted(found.items())]


def stage_names(plan: Plan) -> dict[int, str]:
    """Return the name of each stage: its steps, "ingress", or "sink" and its number."""
    steps, names = step_names(plan), {0: "ingress"}
    for stage in plan.stages:
        columns = ", ".join(plan.segment(stage).columns)
        title = " or ".join(steps[stage]) or f"exchange({columns})"
        names[stage] = title if title not in names.values() else f"{title}#{stage}"
    return names | {stage: f"sink {number}" for number, stage in enumerate(plan.sink_stages)}


def step_names(plan: Plan) -> dict[int, list[str]]:
    """Return the names of the steps of each stage, each once: the second of a name is "Name#2"."""
    seen: dict[str, int] = {}
    names: dict[int, list[str]] = {}
    for stage in (0, *plan.stages):
        names[stage] = []
        for step in plan.segment(stage).steps:
            seen[step.name] = seen.get(step.name, 0) + 1
            names[stage].append(step.name if seen[step.name] == 1 else f"{step.name}#{seen[step.name]}")
    return names
