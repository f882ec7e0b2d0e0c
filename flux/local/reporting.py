"""Reporting: what the program has heard of a run, as its report and as a snapshot."""

from __future__ import annotations

import time

import pyarrow as pa

from ..report import GAP_WINDOW_S, Failure, LogEntry, Report, build_timeline, output_gap
from ..status import ProcessStatus, Status
from .heard import Heard
from .history import RECENT_S
from .processes import Process, Processes

RATE_WINDOW_S = 5.0  # A snapshot's rates are those of this last time.


def make_report(name: str, heard: Heard, tables: list[pa.Table]) -> Report:
    """The report of a run that is over."""
    failures = failures_of(heard)
    events = [(failure.when_s, f"{failure.site} died") for failure in failures]
    return Report(
        outputs=heard.outputs,
        table=tables[0] if len(tables) == 1 else None,
        tables=tables,
        failures=failures,
        moves=[],
        timeline=heard.history.timeline(heard.started_at or 0.0, events),
        name=name,
        inputs=heard.history.input_rows,
        duration_s=_last_output_s(heard),
        skipped=heard.left_out.skipped,
        skipped_rows=list(heard.left_out.rows),
        shed=heard.left_out.shed,
        late=heard.left_out.late,
    )


def make_status(name: str, heard: Heard, processes: Processes) -> Status:
    """What the run is doing now."""
    now = time.monotonic()
    started_at = heard.started_at or now
    p50_ms, p99_ms = latency_ms(heard.history.inputs, heard.history.outputs, started_at, now)
    # The controller may not have noticed yet that a site is gone, and take its copies for live ones.
    unnoticed = any(process.is_site and process.gone and process.node in heard.copies for process in processes)
    return Status(
        name=name,
        t_s=now - started_at,
        processes=[_process_status(process, heard) for process in processes],
        whole=heard.whole and not unnoticed,
        inputs=heard.history.input_rows,
        outputs=heard.outputs,
        input_rate=rate(heard.history.inputs, started_at, now),
        output_rate=rate(heard.history.outputs, started_at, now),
        failures=failures_of(heard),
        ended=heard.ended,
        latency_p50_ms=p50_ms,
        latency_p99_ms=p99_ms,
        building=heard.building,
        skipped=heard.left_out.skipped,
        shed=heard.left_out.shed,
        late=heard.left_out.late,
    )


def _process_status(process: Process, heard: Heard) -> ProcessStatus:
    is_there = not process.gone
    return ProcessStatus(
        name=process.name,
        pid=process.pid,
        state=process.state,
        incarnation=process.incarnation,
        cpu_s=process.cpu_s,
        copies=heard.copies.get(process.node, 0) if is_there else 0,
        buffered_rows=heard.buffered_rows.get(process.node, 0) if is_there else 0,
    )


def latency_ms(
    inputs: list[LogEntry], outputs: list[LogEntry], started_at: float, now: float
) -> tuple[float | None, float | None]:
    """Median and 99th percentile of the output of the last seconds."""
    recent = [(at - started_at, upto, rows) for at, upto, rows in outputs if at > now - RATE_WINDOW_S]
    numbered = [(at - started_at, upto, rows) for at, upto, rows in inputs]
    if not recent:
        return None, None
    # One interval that covers it all.
    interval = build_timeline(numbered, recent, interval_s=max(now - started_at, 0.0) + 1.0)[0]
    return interval.latency_p50_ms, interval.latency_p99_ms


def failures_of(heard: Heard) -> list[Failure]:
    """The deaths so far, in their order, and what each cost."""
    outputs = since_start(heard, heard.history.outputs)
    return sorted((_failure(process, heard, outputs) for process in heard.deaths), key=lambda failure: failure.when_s)


def settle_failures(heard: Heard, now: float) -> None:
    """Work out what cannot be once the history is cut, and cut what only deaths that are settled needed."""
    outputs = since_start(heard, heard.history.outputs)
    for process in heard.deaths:
        died_at = _died_at(process, heard)
        if process.output_gap_s is None and died_at + GAP_WINDOW_S < now:
            process.output_gap_s = output_gap(outputs, died_at - (heard.started_at or 0.0))
        if process.is_site and process.recovered_at is None:
            process.recovered_at, process.bytes_moved = _recovery(process, heard)
    unsettled = [process for process in heard.deaths if process.is_site and process.recovered_at is None]
    open_since = [_noticed_at(process, heard) for process in unsettled]
    needed_from = min([now - RECENT_S, *open_since])  # Of a death that is not known yet, the last minute is.
    heard.whole_at = [at for at in heard.whole_at if at >= needed_from]
    heard.moved = [move for move in heard.moved if move.at >= needed_from]


def _noticed_at(process: Process, heard: Heard) -> float:
    """When the run went about it."""
    assert process.gone_at is not None
    told_at = heard.closed_at.get(process.node, process.gone_at)
    # The controller's word counts for a site: only then are its copies rebuilt. The run itself starts the others.
    return told_at if process.is_site else min(told_at, process.gone_at)


def _recovery(process: Process, heard: Heard) -> tuple[float | None, int]:
    """When every partition had all its copies again after a site had died, and how much was moved until then."""
    if process.recovered_at is not None:
        return process.recovered_at, process.bytes_moved
    noticed_at = _noticed_at(process, heard)
    back_at = next((at for at in heard.whole_at if at > noticed_at), None)
    moved = [move for move in heard.moved if noticed_at <= move.at <= (back_at or move.at)]
    return back_at, sum(move.size_bytes for move in moved)


def _died_at(process: Process, heard: Heard) -> float:
    assert process.gone_at is not None
    return process.killed_at or min(process.gone_at, heard.closed_at.get(process.node, process.gone_at))


def _failure(process: Process, heard: Heard, outputs: list[LogEntry]) -> Failure:
    noticed_at, died_at = _noticed_at(process, heard), _died_at(process, heard)
    back_at, bytes_moved = _recovery(process, heard) if process.is_site else (process.back_at, 0)
    when_s = died_at - (heard.started_at or 0.0)
    gap_s = process.output_gap_s
    if gap_s is None:
        gap_s = output_gap(outputs, when_s, end_s=_last_output_s(heard))
    return Failure(
        site=process.name,
        when_s=when_s,
        detected_after_s=max(0.0, noticed_at - died_at),
        output_gap_s=gap_s,
        recovered_after_s=None if back_at is None else back_at - died_at,
        bytes_moved=bytes_moved,
    )


def _last_output_s(heard: Heard) -> float:
    last_at = heard.history.last_output_at
    return 0.0 if last_at is None else last_at - (heard.started_at or 0.0)


def since_start(heard: Heard, log: list[LogEntry]) -> list[LogEntry]:
    """A log with the times that users see."""
    started_at = heard.started_at or 0.0
    return [(when - started_at, upto, rows) for when, upto, rows in log]


def rate(log: list[LogEntry], started_at: float, now: float) -> float:
    """Rows per second over the last seconds, or since the start if that is less."""
    rows = sum(rows for when, _, rows in log if when > now - RATE_WINDOW_S)
    return rows / max(min(RATE_WINDOW_S, now - started_at), 1e-3)
