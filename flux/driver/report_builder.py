"""Report builder: makes the report and the status of a run from its state."""

from __future__ import annotations

import time
from collections import Counter
from typing import Any

import pyarrow as pa

from .failures import close_ups_of, failures_of
from .history import INTERVAL_S
from .processes import Process, Processes
from .report import Failure, LogEntry, Report, build_timeline
from .run_state import RunState, StateTransfer
from .status import ProcessStatus, Status

RATE_WINDOW_S = 5.0  # The rates of a status are over this last time.


def make_report(name: str, run_state: RunState, tables: list[pa.Table]) -> Report:
    """Return the report of a run that is over."""
    failures = failures_of(run_state)
    started_at = run_state.started_at or 0.0
    moves = [
        _to_plain(transfer, started_at) | run_state.balance.reason(transfer.version)
        for transfer in run_state.last_transfers
    ]
    rounds = run_state.balance.rounds_to_plain(started_at, {move["version"]: move["bytes"] for move in moves})
    slow = run_state.balance.slow_to_plain(started_at)
    return Report(
        outputs=run_state.outputs,
        table=tables[0] if len(tables) == 1 else None,
        tables=tables,
        failures=failures,
        close_ups=close_ups_of(run_state),
        moves=moves,
        rounds=rounds,
        slow=slow,
        changes=run_state.known_changes.to_plain(started_at),
        timeline=run_state.history.timeline(started_at, _events(run_state, failures, moves, rounds)),
        name=name,
        inputs=run_state.history.input_rows,
        duration_s=_last_output_s(run_state),
        skipped=run_state.dropped_rows.skipped,
        skipped_rows=list(run_state.dropped_rows.rows),
        shed=run_state.dropped_rows.shed,
        late=run_state.dropped_rows.late,
    )


def _to_plain(transfer: StateTransfer, started_at: float) -> dict[str, Any]:
    return {
        "when_s": transfer.at - started_at,
        "step": transfer.step,
        "partition": transfer.partition,
        "version": transfer.version,
        "from": transfer.donor,
        "to": transfer.to,
        "bytes": transfer.size_bytes,
        "took_s": transfer.send_s + transfer.install_s,
    }


def _events(
    run_state: RunState,
    failures: list[Failure],
    moves: list[dict[str, Any]],
    rounds: list[dict[str, Any]],
) -> list[tuple[float, str]]:
    """Return the events of the timeline: deaths, recoveries, sites that come and go, transfers, and balance."""
    events = [(at - (run_state.started_at or 0.0), text) for at, text in run_state.changes]
    for failure in failures:
        events.append((failure.when_s, f"{failure.site} died"))
        if failure.recovered_after_s is not None:
            events.append((failure.when_s + failure.recovered_after_s, f"{failure.site} recovered"))
    # One for all transfers of an interval from one site to another: there may be many.
    together = Counter((move["when_s"] // INTERVAL_S, move["from"], move["to"]) for move in moves)
    for (interval, donor, to), count in together.items():
        events.append((interval * INTERVAL_S, f"partitions transferred from {donor} to {to}: {count}"))
    for each in rounds:
        events.append((each["when_s"], f"balance round {each['round']} begins, moves: {each['moves']}"))
    events += run_state.known_changes.events(run_state.started_at or 0.0)
    events += run_state.balance.events(run_state.started_at or 0.0)
    return sorted(events, key=lambda event: event[0])


def make_status(name: str, run_state: RunState, processes: Processes) -> Status:
    """Return the status of a local run now."""
    # The controller may not have detected yet that a site is gone, and count its copies as live.
    unnoticed = any(process.is_site and process.gone and process.node in run_state.copies for process in processes)
    statuses = [_process_status(process, run_state, processes) for process in processes]
    return status_of(name, run_state, statuses, run_state.whole and not unnoticed, time.monotonic())


def status_of(name: str, run_state: RunState, processes: list[ProcessStatus], whole: bool, now: float) -> Status:
    """Return the status of a run at `now`, with that of its processes."""
    started_at = run_state.started_at or now
    error = run_state.failure
    p50_ms, p99_ms = latency_ms(run_state.history.inputs, run_state.history.outputs, started_at, now)
    return Status(
        name=name,
        t_s=now - started_at,
        processes=processes,
        whole=whole and error is None,
        inputs=run_state.history.input_rows,
        outputs=run_state.outputs,
        input_rate=rate(run_state.history.inputs, started_at, now),
        output_rate=rate(run_state.history.outputs, started_at, now),
        failures=failures_of(run_state, now),
        ended=run_state.ended,
        latency_p50_ms=p50_ms,
        latency_p99_ms=p99_ms,
        building=run_state.building,
        skipped=run_state.dropped_rows.skipped,
        shed=run_state.dropped_rows.shed,
        late=run_state.dropped_rows.late,
        error=None if error is None else str(error) or repr(error),
        balance=run_state.balance.phase,
        change=run_state.known_changes.in_progress(now),
        starting=run_state.started_at is None,
    )


def _process_status(process: Process, run_state: RunState, processes: Processes) -> ProcessStatus:
    # A process that is declared dead may still be there, stopped or partitioned off.
    is_declared_dead = process.node in run_state.closed_at and not process.drained
    is_there = not process.gone and not is_declared_dead
    return ProcessStatus(
        name=process.name,
        pid=process.pid,
        state="dead" if is_declared_dead else process.state,
        incarnation=process.incarnation,
        cpu_s=process.cpu_s,
        copies=run_state.copies.get(process.node, 0) if is_there else 0,
        buffered_rows=run_state.buffered_rows.get(process.node, 0) if is_there else 0,
        crashes=processes.crashes(process.name),
        crash_limit=None if process.is_site else processes.crash_limit,
        stuck=run_state.stuck.get(process.node, "") if is_there else "",
        **(load_of(run_state, process.node) if is_there else {}),
    )


def load_of(run_state: RunState, node: str) -> dict[str, Any]:
    """Return what the status of a process says of its load, if the run is balanced and it is a site."""
    load = run_state.balance.loads.get(node)
    if load is None:
        return {}
    return {
        "utilisation": load.utilisation,
        "speed": load.speed,
        "lag": load.lag,
        "slow": load.slow,
        "kept_rows": load.kept_rows,
        "kept_rows_max": load.kept_rows_max,
        "time_left_s": load.time_left_s,
    }


def latency_ms(
    inputs: list[LogEntry], outputs: list[LogEntry], started_at: float, now: float
) -> tuple[float | None, float | None]:
    """Return the median and 99th percentile latency of the output of the last seconds."""
    recent = [(at - started_at, upto, rows) for at, upto, rows in outputs if at > now - RATE_WINDOW_S]
    numbered = [(at - started_at, upto, rows) for at, upto, rows in inputs]
    if not recent:
        return None, None
    # One interval that covers it all.
    interval = build_timeline(numbered, recent, interval_s=max(now - started_at, 0.0) + 1.0)[0]
    return interval.latency_p50_ms, interval.latency_p99_ms


def _last_output_s(run_state: RunState) -> float:
    last_at = run_state.history.last_output_at
    return 0.0 if last_at is None else last_at - (run_state.started_at or 0.0)


def since_start(run_state: RunState, log: list[LogEntry]) -> list[LogEntry]:
    """Return a log with times since the start of the run."""
    started_at = run_state.started_at or 0.0
    return [(when - started_at, upto, rows) for when, upto, rows in log]


def rate(log: list[LogEntry], started_at: float, now: float) -> float:
    """Return rows per second over the last seconds, or since the start if that is less."""
    rows = sum(rows for when, _, rows in log if when > now - RATE_WINDOW_S)
    return rows / max(min(RATE_WINDOW_S, now - started_at), 1e-3)
