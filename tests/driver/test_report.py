"""What the report's numbers mean, on logs small enough to work out by hand."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flux.driver.report import Failure, Interval, LogEntry, Report, build_timeline, output_gap
from flux.sinks import Collect, Null, Sink
from flux.types.errors import FluxError

LOSS = Failure(
    site="site-2", when_s=1.0, detected_after_s=0.01, output_gap_s=0.05, recovered_after_s=0.5, bytes_moved=10
)


def test_rates_are_rows_per_second_of_each_interval() -> None:
    inputs = [(0.1, 99, 100), (0.3, 199, 100), (0.4, 299, 100)]
    outputs = [(0.45, 299, 30)]
    timeline = build_timeline(inputs, outputs, interval_s=0.25)
    assert [interval.t_s for interval in timeline] == [0.0, 0.25]
    assert [interval.input_rate for interval in timeline] == [400, 800]
    assert [interval.output_rate for interval in timeline] == [0, 120]


def test_an_interval_without_output_has_no_latency_and_is_not_left_out() -> None:
    inputs = [(0.0, 9, 10), (2.2, 19, 10)]
    outputs = [(0.1, 9, 10), (2.3, 19, 10)]
    timeline = build_timeline(inputs, outputs, interval_s=1.0)
    assert [interval.latency_p50_ms for interval in timeline] == [
        pytest.approx(100),
        None,
        pytest.approx(100),
    ]
    assert timeline[1].output_rate == 0


def test_latency_is_from_numbering_to_the_sink() -> None:
    [interval] = build_timeline([(0.1, 9, 10)], [(0.15, 9, 3)], interval_s=1.0)
    assert interval.latency_p50_ms == pytest.approx(50)
    assert interval.latency_p99_ms == pytest.approx(50)


def test_an_output_of_several_inputs_is_shared_out_over_them_by_position() -> None:
    # Ninety positions were numbered at 0.1 and ten at 0.2; one entry at 0.3 speaks for them all.
    [interval] = build_timeline([(0.1, 89, 90), (0.2, 99, 10)], [(0.3, 99, 7)], interval_s=1.0)
    assert interval.latency_p50_ms == pytest.approx(200)
    [interval] = build_timeline([(0.1, 9, 10), (0.2, 99, 90)], [(0.3, 99, 7)], interval_s=1.0)
    assert interval.latency_p50_ms == pytest.approx(100)
    assert interval.latency_p99_ms == pytest.approx(200)


def test_several_outputs_may_stem_from_one_input() -> None:
    outputs = [(0.1, 4, 1), (0.2, 9, 99)]
    [interval] = build_timeline([(0.0, 9, 10)], outputs, interval_s=1.0)
    assert interval.latency_p50_ms == pytest.approx(200)


def test_latency_is_weighted_by_rows() -> None:
    inputs = [(0.0, 9, 10), (0.0, 19, 10)]
    outputs = [(0.01, 9, 98), (0.5, 19, 2)]
    [interval] = build_timeline(inputs, outputs, interval_s=1.0)
    assert interval.latency_p50_ms == pytest.approx(10)
    assert interval.latency_p99_ms == pytest.approx(500)


def test_progress_without_rows_weighs_nothing_but_moves_the_position() -> None:
    inputs = [(0.0, 9, 10), (0.4, 19, 10)]
    outputs = [(0.1, 9, 0), (0.5, 19, 10)]
    [interval] = build_timeline(inputs, outputs, interval_s=1.0)
    assert interval.latency_p99_ms == pytest.approx(100)


def test_entries_out_of_order_count_from_their_own_input() -> None:
    inputs = [(0.0, 9, 10), (0.1, 19, 10), (0.2, 29, 10)]
    outputs = [(0.3, 29, 0), (0.4, 9, 5)]
    [interval] = build_timeline(inputs, outputs, interval_s=1.0)
    assert interval.latency_p50_ms == pytest.approx(400)


def test_events_stand_in_the_interval_they_happened_in() -> None:
    timeline = build_timeline([(0.0, 9, 10)], [], interval_s=0.5, events=[(0.7, "site-2 died")])
    assert [interval.events for interval in timeline] == [(), ("site-2 died",)]


def test_no_entries_give_no_intervals() -> None:
    assert build_timeline([], []) == []


def test_output_without_known_input_has_a_rate_but_no_latency() -> None:
    [interval] = build_timeline([], [(0.1, 9, 10)], interval_s=1.0)
    assert (interval.output_rate, interval.latency_p50_ms) == (10, None)


steps = st.lists(st.tuples(st.floats(0, 0.5), st.integers(0, 20), st.integers(0, 50)), min_size=1, max_size=40)


def accumulated(entries: list[tuple[float, int, int]]) -> list[LogEntry]:
    t_s, upto, log = 0.0, -1, []
    for after_s, positions, rows in entries:
        t_s, upto = t_s + after_s, upto + positions
        log.append((t_s, upto, rows))
    return log


@given(inputs=steps, outputs=steps)
def test_any_logs_keep_all_rows_and_ordered_percentiles(
    inputs: list[tuple[float, int, int]], outputs: list[tuple[float, int, int]]
) -> None:
    input_log, output_log = accumulated(inputs), accumulated(outputs)
    timeline = build_timeline(input_log, output_log, interval_s=0.25)
    assert sum(interval.input_rate for interval in timeline) * 0.25 == pytest.approx(sum(e[2] for e in inputs))
    assert sum(interval.output_rate for interval in timeline) * 0.25 == pytest.approx(sum(e[2] for e in outputs))
    longest_ms = max(t_s for t_s, _, _ in output_log) * 1000
    for interval in timeline:
        assert (interval.latency_p50_ms is None) == (interval.output_rate == 0)
        if interval.latency_p50_ms is not None and interval.latency_p99_ms is not None:
            assert 0 <= interval.latency_p50_ms <= interval.latency_p99_ms <= longest_ms + 1e-6


def test_a_gap_begins_at_the_failure_not_at_the_last_row_before_it() -> None:
    assert output_gap([(0.2, 1, 1), (1.3, 2, 1), (1.4, 3, 1)], when_s=1.0, window_s=0.5) == pytest.approx(0.3)


def test_a_gap_is_the_longest_within_the_window() -> None:
    outputs = [(1.1, 1, 1), (1.4, 2, 1), (1.5, 3, 1), (9.0, 4, 1)]
    assert output_gap(outputs, when_s=1.0, window_s=0.6) == pytest.approx(0.3)


def test_without_any_row_the_gap_is_the_window() -> None:
    assert output_gap([(0.5, 1, 1)], when_s=1.0) == pytest.approx(2.0)


def test_progress_without_rows_does_not_end_a_gap() -> None:
    assert output_gap([(1.1, 1, 0), (1.5, 2, 1), (2.0, 3, 1)], when_s=1.0, window_s=1.0) == pytest.approx(0.5)


def test_the_end_of_the_stream_is_no_gap() -> None:
    assert output_gap([(1.1, 1, 1)], when_s=1.0, end_s=1.15) == pytest.approx(0.1)
    assert output_gap([(0.9, 1, 1)], when_s=1.0, end_s=0.9) == 0.0


def test_a_report_is_json_with_the_number_of_rows_for_the_table() -> None:
    report = Report(
        outputs=2,
        table=pa.table({"n": [1, 2]}),
        failures=[LOSS],
        timeline=build_timeline([(0.0, 9, 10)], [(0.1, 9, 2)], events=[(0.0, "started")]),
    )
    document = json.loads(json.dumps(report.to_dict()))
    assert document["table_rows"] == 2
    assert "table" not in document
    assert document["failures"][0]["site"] == "site-2"
    assert document["timeline"][0]["events"] == ["started"]


@pytest.mark.parametrize("suffix", ["png", "svg"])
def test_a_plot_is_a_picture_with_the_failures_in_it(tmp_path: Path, suffix: str) -> None:
    timeline = build_timeline([(t / 10, t, 1) for t in range(30)], [(t / 10 + 0.01, t, 1) for t in range(30)])
    path = tmp_path / f"run.{suffix}"
    Report(outputs=30, failures=[LOSS], timeline=timeline, name="dmz", close_ups=[timeline]).plot(path)
    head = path.read_bytes()[:5]
    assert head == {"png": b"\x89PNG\r", "svg": b"<?xml"}[suffix]
    if suffix == "svg":
        # Text is drawn as outlines, with what it says in a comment beside them.
        text = path.read_text()
        labels = ("site-2 died", "site-2, in intervals of 10 ms", "input", "output", "median", "failure", "recovery")
        assert all(f"<!-- {label} -->" in text for label in labels)


def test_a_run_without_rows_can_be_plotted(tmp_path: Path) -> None:
    Report(outputs=0, failures=[LOSS], timeline=[Interval(0.0, 0.0, 0.0)]).plot(str(tmp_path / "run.png"))
    Report(outputs=0).plot(tmp_path / "empty.png")
    assert {path.name for path in tmp_path.iterdir()} == {"run.png", "empty.png"}


def test_without_matplotlib_plot_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(FluxError, match=r"flux-dataflow\[plot\]"):
        Report(outputs=0).plot(tmp_path / "run.png")


def test_collect_keeps_rows_in_the_order_written() -> None:
    sink = Collect()
    sink.write(pa.record_batch({"n": [1]}), after=-1, upto=0)
    sink.write(pa.record_batch({"n": [2]}), after=0, upto=1)
    assert sink.table().column("n").to_pylist() == [1, 2]


def test_collect_without_rows_has_the_columns_of_the_schema() -> None:
    schema = pa.schema({"n": pa.int32()})
    assert Collect().table(schema) == schema.empty_table()
    assert Collect().table().num_rows == 0


def test_collect_forgets_an_earlier_run(tmp_path: Path) -> None:
    sink = Collect()
    sink.write(pa.record_batch({"n": [1]}), after=-1, upto=0)
    sink.open(tmp_path)
    assert sink.collected == []


def test_null_takes_anything(tmp_path: Path) -> None:
    sink = Null()
    sink.open(tmp_path)
    sink.write(pa.record_batch({"n": [1]}), after=-1, upto=0)
    sink.close()


def test_a_sink_without_write_says_what_to_define() -> None:
    with pytest.raises(NotImplementedError, match="write"):
        Sink().write(pa.record_batch({"n": [1]}), after=-1, upto=0)
