"""Failures: what each death cost, worked out from what was heard of it.

The history of a long run is cut. What a death needs of it is *settled* before: noted with the process that died.

A process has died when it was killed, when it ended or its connection closed, or, if it only fell silent, when it gave
its last sign of life: that the controller declared it dead later is how long it took to notice.
"""

from __future__ import annotations

from ..types.array_types import Float64s
from .history import RECENT_S, Gap
from .processes import Process
from .report import GAP_WINDOW_S, Failure
from .run_state import RunState


def failures_of(run_state: RunState, now: float | None = None) -> list[Failure]:
    """The deaths so far, in their order, and what each cost by `now`, or by the end of a run that is over."""
    row_times = run_state.history.row_times()
    if now is None or run_state.ended:
        now = run_state.history.last_output_at or 0.0  # That nothing comes behind the last row is no outage.
    failures = [_failure(process, run_state, row_times, now) for process in _dead(run_state)]
    return sorted(failures, key=lambda failure: failure.when_s)


def settle_failures(run_state: RunState, now: float) -> None:
    """Work out what cannot be once the history is cut, and cut what only deaths that are settled needed."""
    row_times = run_state.history.row_times()
    for process in _dead(run_state):
        process.gap = _gap(process, run_state, row_times)
        if process.is_site and process.recovered_at is None:
            recovered_at, bytes_moved = _recovery(process, run_state)
            if recovered_at is not None and recovered_at < now - RECENT_S:  # All that was moved is told by now.
                process.recovered_at, process.bytes_moved = recovered_at, bytes_moved
    unsettled = [process for process in _dead(run_state) if process.is_site and process.recovered_at is None]
    open_since = [_noticed_at(process, run_state) for process in unsettled]
    needed_from = min([now - RECENT_S, *open_since])  # Of a death that is not known yet, the last minute is.
    run_state.wholes = [whole for whole in run_state.wholes if whole.at >= needed_from]
    run_state.moved = [move for move in run_state.moved if move.at >= needed_from]


def _dead(run_state: RunState) -> list[Process]:
    """Also those whose process is still there: stopped or cut off, they are dead for all others."""
    return list({id(process): process for process in (*run_state.deaths, *run_state.declared)}.values())


def _noticed_at(process: Process, run_state: RunState) -> float:
    """When the run went about it."""
    told_at = run_state.closed_at.get(process.node)
    if process.gone_at is None or told_at is None:
        at = told_at or process.gone_at
        assert at is not None, f"{process.node} is not dead"
        return at
    # The controller's word counts for a site: only then are its copies rebuilt. The run itself starts the others.
    return told_at if process.is_site else min(told_at, process.gone_at)


def _died_at(process: Process, run_state: RunState) -> float:
    told = (run_state.closed_at.get(process.node), run_state.seen_at.get(process.node))
    return min(at for at in (process.killed_at, process.stopped_at, process.gone_at, *told) if at is not None)


def _recovery(process: Process, run_state: RunState) -> tuple[float | None, int]:
    """When every partition had all its copies again after a site had died, and how much was moved until then."""
    if process.recovered_at is not None:
        return process.recovered_at, process.bytes_moved
    noticed_at = _noticed_at(process, run_state)
    back = next((whole for whole in run_state.wholes if whole.at > noticed_at), None)
    # What a donor says of a move may come after the controller's word that its copy is in place.
    moved = [
        move for move in run_state.moved if noticed_at <= move.at and (back is None or move.version <= back.versions)
    ]
    return None if back is None else back.at, sum(move.size_bytes for move in moved)


def _gap(process: Process, run_state: RunState, row_times: Float64s) -> Gap:
    return (process.gap or Gap(_died_at(process, run_state))).then(row_times, _gaps_until(process, run_state))


def _gaps_until(process: Process, run_state: RunState) -> float:
    """A pause of the output that began later has another reason."""
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
