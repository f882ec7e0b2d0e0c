"""Failures: what each death cost, computed from the state of the run.

The history of a long run is truncated. What a failure needs of it is *settled* before: stored with the dead process.

The time of a death is when the process was killed, when it ended or when its connection closed. For one that fell
silent it is its last heartbeat: the time until the controller declares it dead is the time to detect it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from ..types.array_types import Float64s
from .history import RECENT_S, Gap
from .processes import Process
from .report import (
    CLOSE_UP_AFTER_S,
    CLOSE_UP_BEFORE_S,
    CLOSE_UP_INTERVAL_S,
    CLOSE_UPS_MAX,
    GAP_WINDOW_S,
    Failure,
    Interval,
    LogEntry,
    build_timeline,
)
from .run_state import RunState


def failures_of(run_state: RunState, now: float | None = None) -> list[Failure]:
    """Return the failures in their order, with what each cost up to `now`, or up to the end of a run that is over."""
    row_times = run_state.history.row_times()
    if now is None or run_state.ended:
        now = run_state.history.last_output_at or 0.0  # The time after the last row is not an outage.
    failures = [_failure(process, run_state, row_times, now) for process in _dead(run_state)]
    return sorted(failures, key=lambda failure: failure.when_s)


def death_counts(run_state: RunState) -> tuple[Counter[str], Counter[str]]:
    """Return how many processes of each role have died, and of how many the run has recovered; neither ever falls."""
    died, recovered = Counter(run_state.events.failures_before), Counter(run_state.events.recoveries_before)
    for process in _dead(run_state):
        role = "site" if process.is_site else process.name
        died[role] += 1
        # Of a site that is not declared dead yet, its copies are not missed yet: a view that is whole says nothing.
        is_back = process.back_at is not None
        if process.is_site and process.node in run_state.closed_at:
            is_back = _recovery(process, run_state)[0] is not None
        recovered[role] += is_back
    return died, recovered


def close_ups_of(run_state: RunState) -> list[list[Interval]]:
    """Return the time around each of the last failures in short intervals, in the order of the failures."""
    return [_close_up(process, run_state) for process in _last_dead(run_state)]


def settle_if_due(run_state: RunState, now: float) -> None:
    """Settle the failures and the history from time to time, so that neither grows with the run."""
    if run_state.started_at is not None and run_state.history.is_due(run_state.started_at, now):
        settle_failures(run_state, now)
        run_state.history.settle(run_state.started_at, now)


def settle_failures(run_state: RunState, now: float) -> None:
    """Compute what needs the history before that is truncated; drop what only settled failures needed."""
    row_times, last = run_state.history.row_times(), _last_dead(run_state)
    for process in _dead(run_state):
        process.gap = _gap(process, run_state, row_times)
        if _died_at(process, run_state) < now - RECENT_S + CLOSE_UP_BEFORE_S:
            process.close_up = _close_up(process, run_state) if process in last else []
        if process.is_site and process.recovered_at is None:
            recovered_at, bytes_moved = _recovery(process, run_state)
            if recovered_at is not None and recovered_at < now - RECENT_S:  # All transfers are reported by now.
                process.recovered_at, process.bytes_moved = recovered_at, bytes_moved
    unsettled = [process for process in _dead(run_state) if process.is_site and process.recovered_at is None]
    open_since = [_noticed_at(process, run_state) for process in unsettled]
    needed_from = min([now - RECENT_S, *open_since])  # A death that is not known yet needs the last minute.
    run_state.wholes = [whole for whole in run_state.wholes if whole.at >= needed_from]
    run_state.recent_transfers = [each for each in run_state.recent_transfers if each.at >= needed_from]


def _dead(run_state: RunState) -> list[Process]:
    """Return the dead, also those whose process is still there: stopped or partitioned off."""
    return list({id(process): process for process in (*run_state.deaths, *run_state.declared)}.values())


def _last_dead(run_state: RunState) -> list[Process]:
    """Return those of which a report has close-ups, in the order of their deaths."""
    return sorted(_dead(run_state), key=lambda process: _died_at(process, run_state))[-CLOSE_UPS_MAX:]


def _noticed_at(process: Process, run_state: RunState) -> float:
    """Return when the run began to recover from the death."""
    declared_at = run_state.closed_at.get(process.node)
    if process.gone_at is None or declared_at is None:
        at = declared_at or process.gone_at
        assert at is not None, f"{process.node} is not dead"
        return at
    # Only when the controller declares a site dead are its copies rebuilt. The driver restarts the other processes.
    return declared_at if process.is_site else min(declared_at, process.gone_at)


def _died_at(process: Process, run_state: RunState) -> float:
    reported = (run_state.closed_at.get(process.node), run_state.seen_at.get(process.node))
    return min(at for at in (process.killed_at, process.stopped_at, process.gone_at, *reported) if at is not None)


def _recovery(process: Process, run_state: RunState) -> tuple[float | None, int]:
    """Return when every partition had all its copies again after a site died, and the bytes transferred until then."""
    if process.recovered_at is not None:
        return process.recovered_at, process.bytes_moved
    noticed_at = _noticed_at(process, run_state)
    back = next((whole for whole in run_state.wholes if whole.at > noticed_at), None)
    # A donor's report of a transfer may arrive after the view that has the new copy.
    transfers = [
        each
        for each in run_state.recent_transfers
        if noticed_at <= each.at and (back is None or each.version <= back.versions)
    ]
    return None if back is None else back.at, sum(each.size_bytes for each in transfers)


def _gap(process: Process, run_state: RunState, row_times: Float64s) -> Gap:
    return (process.gap or Gap(_died_at(process, run_state))).then(row_times, _gaps_until(process, run_state))


def _close_up(process: Process, run_state: RunState) -> list[Interval]:
    if process.close_up is not None:
        return process.close_up
    begin = _died_at(process, run_state) - CLOSE_UP_BEFORE_S
    length_s = CLOSE_UP_BEFORE_S + CLOSE_UP_AFTER_S
    # Rows that were numbered before give a latency, and are not counted.
    inputs = [(at, upto, rows if at >= begin else 0) for at, upto, rows in run_state.history.inputs]
    outputs = [entry for entry in run_state.history.outputs if begin <= entry[0]]
    intervals = build_timeline(_since(begin, length_s, inputs), _since(begin, length_s, outputs), CLOSE_UP_INTERVAL_S)
    begin_s = begin - (run_state.started_at or 0.0)
    return [replace(interval, t_s=round(begin_s + interval.t_s, 9)) for interval in intervals]


def _since(begin: float, length_s: float, log: Sequence[LogEntry]) -> list[LogEntry]:
    return [(at - begin, upto, rows) for at, upto, rows in log if at < begin + length_s]


def _gaps_until(process: Process, run_state: RunState) -> float:
    """Return until when a gap counts: one that begins later has another cause."""
    return _noticed_at(process, run_state) + GAP_WINDOW_S


def _failure(process: Process, run_state: RunState, row_times: Float64s, now: float) -> Failure:
    noticed_at, died_at = _noticed_at(process, run_state), _died_at(process, run_state)
    back_at, bytes_moved = _recovery(process, run_state) if process.is_site else (process.back_at, 0)
    return Failure(
        site=process.name,
        when_s=died_at - (run_state.started_at or 0.0),
        detected_after_s=max(0.0, noticed_at - died_at),
        output_gap_s=_gap(process, run_state, row_times).longest_by(now, _gaps_until(process, run_state)),
        recovered_after_s=None if back_at is None else back_at - died_at,
        bytes_moved=bytes_moved,
    )
