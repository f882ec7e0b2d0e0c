"""The history of a run's rows: told whole, however long it runs, and kept in bounded memory."""

from __future__ import annotations

from itertools import pairwise

import pytest

from flux.driver.failures import failures_of, settle_failures
from flux.driver.history import INTERVAL_S, RECENT_S, SETTLED_MAX, History
from flux.driver.processes import Process, Processes
from flux.driver.report import LogEntry, build_timeline
from flux.driver.report_builder import make_report, make_status
from flux.driver.run_state import TRANSFERS_MAX, Completeness, RunState, StateTransfer
from flux.plan import Policy
from flux.wire.reports import NodeDead, RowsNumbered, RowsWritten, StateInstalled, StateSent
from tests.runtime.fakes import flow

STARTED_AT = 1_000.0
PLAN = flow()._logical.plan(2, 1, "pairs", 1_000, Policy())
LATENCY_S = 0.07


def logs(until_s: float, every_s: float, rows: int = 10) -> tuple[list[LogEntry], list[LogEntry]]:
    """Rows numbered every so often, of which the half comes out a little later."""
    numbered = [(i * every_s, (i + 1) * rows, rows) for i in range(int(until_s / every_s))]
    return numbered, [(t_s + LATENCY_S, upto, rows // 2) for t_s, upto, rows in numbered]


def lived(numbered: list[LogEntry], taken: list[LogEntry]) -> History:
    """A history that heard of the entries in their order, and settled whenever that was due."""
    history = History()
    entries = sorted([(entry, True) for entry in numbered] + [(entry, False) for entry in taken])
    for (t_s, upto, rows), is_input in entries:
        at = STARTED_AT + t_s
        if is_input:
            history.add_inputs([(at, upto, rows)], history.input_rows + rows)
        else:
            history.add_output((at, upto, rows))
        if history.is_due(STARTED_AT, at):
            history.settle(STARTED_AT, at)
    return history


@pytest.mark.parametrize("every_s", [0.05, 0.4, 7.0])
def test_what_was_settled_is_told_as_if_every_entry_were_still_there(every_s: float) -> None:
    numbered, taken = logs(7 * RECENT_S, every_s)
    events = [(3.0, "site-1 died"), (6.5 * RECENT_S, "site-2 died")]
    history = lived(numbered, taken)
    assert history.settled_s > 4 * RECENT_S
    assert len(history.inputs) < len(numbered)
    told, expected = history.timeline(STARTED_AT, events), build_timeline(numbered, taken, INTERVAL_S, events)
    assert [interval.t_s for interval in told] == [interval.t_s for interval in expected]
    for interval, wanted in zip(told, expected, strict=True):
        assert interval.events == wanted.events
        assert interval.input_rate == pytest.approx(wanted.input_rate)
        assert interval.output_rate == pytest.approx(wanted.output_rate)
        assert interval.latency_p50_ms == pytest.approx(wanted.latency_p50_ms)
        assert interval.latency_p99_ms == pytest.approx(wanted.latency_p99_ms)


def transfer(when_s: float, size_bytes: int, version: int = 1) -> StateTransfer:
    return StateTransfer(version=version, at=STARTED_AT + when_s, to="site-3", size_bytes=size_bytes, snapshot_s=0.0)


def test_of_a_very_long_run_the_memory_is_bounded_and_every_row_is_told() -> None:
    every_s = 3.0
    numbered, taken = logs(5.3 * SETTLED_MAX * INTERVAL_S, every_s)
    history = lived(numbered, taken)
    assert len(history.inputs) + len(history.outputs) <= 2 * (2 * RECENT_S / every_s + 2)
    events = [(history.settled_s / 2, "site-1 died")]
    timeline = history.timeline(STARTED_AT, events)
    assert len(timeline) <= SETTLED_MAX + 2 * RECENT_S / INTERVAL_S + 2
    edges = [*(interval.t_s for interval in timeline), timeline[-1].t_s + INTERVAL_S]
    lengths = [end - begin for begin, end in pairwise(edges)]
    assert min(lengths) > 0 and max(lengths) > INTERVAL_S
    told = sum(interval.input_rate * length for interval, length in zip(timeline, lengths, strict=True))
    assert told == pytest.approx(history.input_rows) == pytest.approx(10 * len(numbered))
    out = sum(interval.output_rate * length for interval, length in zip(timeline, lengths, strict=True))
    assert out == pytest.approx(5 * len(taken))
    medians = [interval.latency_p50_ms for interval in timeline if interval.latency_p50_ms is not None]
    assert medians == pytest.approx([LATENCY_S * 1000] * len(medians))
    [event] = [interval for interval in timeline if interval.events]
    assert event.t_s <= history.settled_s / 2 < event.t_s + max(lengths)


def test_a_run_without_output_keeps_no_inputs_that_were_taken() -> None:
    numbered, taken = logs(7 * RECENT_S, every_s=1.0)
    history = lived(numbered, [(t_s, upto, 0) for t_s, upto, _ in taken])
    assert len(history.inputs) <= 2 * RECENT_S + 2
    assert all(interval.output_rate == 0 for interval in history.timeline(STARTED_AT))
    assert history.last_output_at is None


def test_rows_told_too_late_are_counted() -> None:
    numbered, taken = logs(3 * RECENT_S, every_s=1.0)
    history = lived(numbered, taken)
    history.add_inputs([(STARTED_AT + 1.5, 99_999, 7)], history.input_rows + 7)
    rows = sum(interval.input_rate * INTERVAL_S for interval in history.timeline(STARTED_AT))
    assert rows == pytest.approx(10 * len(numbered) + 7)


def test_an_ingress_that_was_started_again_is_not_counted_twice_and_what_none_told_is_counted() -> None:
    history = History()
    history.add_inputs([(STARTED_AT, 10, 10)], 10)
    # It died when it had numbered 30. All copies had what was up to 20; the next one tells of the rest.
    history.add_inputs([(STARTED_AT + 1, 30, 10)], 30)
    history.add_inputs([(STARTED_AT + 2, 35, 5)], 35)
    assert history.input_rows == 35


def test_the_output_gap_of_a_death_long_ago_is_still_known() -> None:
    numbered, taken = logs(RECENT_S, every_s=0.25)
    taken = [entry for entry in taken if not 10.0 < entry[0] < 11.0]
    run_state = RunState(PLAN, started_at=STARTED_AT)
    site = Process("site-1", killed_at=STARTED_AT + 10.0, gone_at=STARTED_AT + 10.0)
    run_state.deaths.append(site)
    entries = [(STARTED_AT + t_s, upto, rows) for t_s, upto, rows in numbered]
    run_state.history.add_inputs(entries, sum(rows for *_, rows in numbered))
    for t_s, upto, rows in taken:
        run_state.history.add_output((STARTED_AT + t_s, upto, rows))
    [before] = failures_of(run_state)
    assert before.output_gap_s > 1.0
    settle_failures(run_state, STARTED_AT + 3 * RECENT_S)
    run_state.history.settle(STARTED_AT, STARTED_AT + 3 * RECENT_S)
    assert run_state.history.outputs == []
    assert failures_of(run_state) == [before]


def heard_of(output_s: list[float], died_s: float = 10.0) -> RunState:
    """A run with a row of output at each of these seconds, whose site-1 was killed."""
    run_state = RunState(PLAN, started_at=STARTED_AT)
    run_state.deaths.append(Process("site-1", killed_at=STARTED_AT + died_s, gone_at=STARTED_AT + died_s))
    for number, t_s in enumerate(output_s, start=1):
        run_state.history.add_output((STARTED_AT + t_s, number, 1))
    return run_state


def test_an_outage_longer_than_the_time_in_which_it_has_to_begin_is_told_whole() -> None:
    [failure] = failures_of(heard_of([9.5, 10.5, 11.5, 24.0, 24.5]))
    assert failure.output_gap_s == 12.5


def test_a_pause_that_began_long_after_the_death_is_not_its_cost() -> None:
    [failure] = failures_of(heard_of([9.5, 10.5, 11.5, 12.5, 24.0, 24.5]))
    assert failure.output_gap_s == 1.0


def test_an_outage_that_goes_on_lasts_until_now_and_one_at_the_end_of_the_stream_is_none() -> None:
    run_state = heard_of([9.5, 10.25])
    assert failures_of(run_state, STARTED_AT + 17.25)[0].output_gap_s == 7.0
    run_state.ended = True
    assert failures_of(run_state, STARTED_AT + 17.25)[0].output_gap_s == 0.25
    assert failures_of(run_state)[0].output_gap_s == 0.25


def test_an_outage_that_lasts_longer_than_the_history_is_told_whole() -> None:
    run_state = heard_of([9.5, 10.5])
    for minute in range(2, 20, 2):
        now = STARTED_AT + minute * 60
        settle_failures(run_state, now)
        run_state.history.settle(STARTED_AT, now)
    assert run_state.history.outputs == []
    assert failures_of(run_state, STARTED_AT + 1_200)[0].output_gap_s == 1_189.5
    run_state.history.add_output((STARTED_AT + 1_210.5, 3, 1))
    settle_failures(run_state, STARTED_AT + 1_220)
    run_state.history.settle(STARTED_AT, STARTED_AT + 2_000)
    run_state.history.add_output((STARTED_AT + 5_000, 4, 1))
    assert failures_of(run_state, STARTED_AT + 5_001)[0].output_gap_s == 1_200.0


def test_a_gap_of_milliseconds_shows_in_a_close_up_also_after_a_long_run() -> None:
    before, after = ([(first + n) / 100 + 0.005 for n in range(100)] for first in (900, 1_004))
    run_state = heard_of([*before, *after])
    [soon] = make_report("a flow", run_state, []).close_ups
    settle_failures(run_state, STARTED_AT + 1_000)
    run_state.history.settle(STARTED_AT, STARTED_AT + 1_000)
    [later] = make_report("a flow", run_state, []).close_ups
    assert soon == later
    silent = [round(interval.t_s, 3) for interval in later if not interval.output_rate]
    assert silent == [10.0, 10.01, 10.02, 10.03]
    assert (later[0].t_s, later[-1].t_s) == (9.75, 10.74)


def test_a_site_that_fell_silent_died_at_its_last_sign_of_life() -> None:
    run_state = heard_of([9.0, 14.0])
    run_state.deaths = []
    stopped = Process("site-2")  # It is still there.
    run_state.declared.append(stopped)
    for at_s, seen_at in ((13.0, STARTED_AT + 10.0), (15.0, None)):
        run_state.apply(NodeDead(node="site-2", at=STARTED_AT + at_s, seen_at=seen_at), "controller", 0.0)
    [failure] = failures_of(run_state)
    assert (failure.when_s, failure.detected_after_s, failure.output_gap_s) == (10.0, 3.0, 4.0)
    stopped.gone_at = STARTED_AT + 20.0
    run_state.deaths.append(stopped)
    assert failures_of(run_state) == [failure]


def test_of_very_many_moves_the_last_are_kept() -> None:
    run_state = RunState(PLAN, started_at=STARTED_AT)
    for version in range(TRANSFERS_MAX + 3):
        sent = StateSent(version=version, stage=1, partition=0, to="site-3", size_bytes=7, snapshot_s=0.0, send_s=0.5)
        run_state.apply(sent, "site-1", STARTED_AT + version)
    run_state.apply(StateInstalled(version=TRANSFERS_MAX + 2, install_s=0.25), "site-3", STARTED_AT)
    settle_failures(run_state, STARTED_AT + 2 * TRANSFERS_MAX)
    report = make_report("a flow", run_state, [])
    assert run_state.recent_transfers == [] and len(report.moves) == TRANSFERS_MAX
    assert report.moves[-1] == {
        "when_s": TRANSFERS_MAX + 2.0,
        "step": "Passing",
        "partition": 0,
        "version": TRANSFERS_MAX + 2,
        "from": "site-1",
        "to": "site-3",
        "bytes": 7,
        "took_s": 0.75,
        "why": "a copy was lost",
        "round": None,
    }


def test_what_only_settled_deaths_needed_is_forgotten_and_they_are_told_all_the_same() -> None:
    run_state = RunState(PLAN, started_at=STARTED_AT)
    recovered = Process("site-1", killed_at=STARTED_AT + 10.0, gone_at=STARTED_AT + 10.0)
    run_state.deaths.append(recovered)
    run_state.wholes = [Completeness(STARTED_AT + second, second) for second in range(100)]
    run_state.recent_transfers = [transfer(10.25 + 0.25 * n, 7, version=8 + n) for n in range(100)]
    [before] = failures_of(run_state)
    assert (before.recovered_after_s, before.bytes_moved) == (1.0, 4 * 7)
    settle_failures(run_state, STARTED_AT + 1_000)
    assert run_state.wholes == [] and run_state.recent_transfers == []
    [after] = failures_of(run_state)
    assert (after.recovered_after_s, after.bytes_moved) == (1.0, 4 * 7)


def test_what_was_moved_counts_for_a_recovery_though_it_is_told_after_its_end() -> None:
    run_state = RunState(PLAN, started_at=STARTED_AT)
    run_state.deaths.append(Process("site-1", killed_at=STARTED_AT + 10.0, gone_at=STARTED_AT + 10.0))
    run_state.wholes = [Completeness(STARTED_AT + 11.0, 1)]
    settle_failures(run_state, STARTED_AT + 11.1)
    run_state.recent_transfers = [transfer(11.5, 7), transfer(12.0, 100, version=2)]
    [failure] = failures_of(run_state)
    assert (failure.recovered_after_s, failure.bytes_moved) == (1.0, 7)


def test_what_a_death_needs_that_is_not_settled_is_kept() -> None:
    run_state = RunState(PLAN, started_at=STARTED_AT)
    run_state.deaths.append(Process("site-1", killed_at=STARTED_AT + 10.0, gone_at=STARTED_AT + 10.0))
    run_state.wholes = [Completeness(STARTED_AT + 5.0, 0)]
    run_state.recent_transfers = [transfer(5.0, 1), transfer(11.0, 7)]
    settle_failures(run_state, STARTED_AT + 1_000)
    assert run_state.wholes == [] and run_state.recent_transfers == [transfer(11.0, 7)]
    run_state.wholes.append(Completeness(STARTED_AT + 1_001, 1))
    [failure] = failures_of(run_state)
    assert (failure.recovered_after_s, failure.bytes_moved) == (991.0, 7)


def test_pairs_are_not_whole_while_nobody_knows_that_a_site_is_gone() -> None:
    run_state, processes = (
        RunState(PLAN, started_at=STARTED_AT, whole=True, copies={"site-1": 8, "site-2": 8}),
        Processes(),
    )
    processes.begin("site-1")
    assert make_status("a flow", run_state, processes).whole
    processes.live("site-1").gone_at = STARTED_AT + 1.0
    assert not make_status("a flow", run_state, processes).whole
    run_state.copies = {"site-2": 8, "site-3": 8}  # What the controller says when it knows, and has mended it.
    assert make_status("a flow", run_state, processes).whole


def test_input_is_not_known_at_the_end_of_the_stream_until_the_ingress_has_reported_it() -> None:
    run_state = RunState(PLAN, started_at=STARTED_AT)
    written = RowsWritten(sink=0, after=0, upto=7, rows=6, end=True, position=7, ahead=(), total=6)
    run_state.apply(written, "egress", STARTED_AT + 1)
    assert run_state.ended and not run_state.has_inputs_of_outputs
    # An ingress that is started again has nothing to number; its totals are those of the whole run.
    run_state.apply(RowsNumbered(log=(), total=6, upto=7), "ingress.2", STARTED_AT + 2)
    assert run_state.has_inputs_of_outputs and run_state.history.input_rows == 6
