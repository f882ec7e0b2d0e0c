"""What a run did, in numbers and as a picture.

A `Report` is made when the run is over, from two logs: when the ingress numbered which rows, and when the sink took
which. Rates and latencies are computed from them here (`build_timeline`, `output_gap`), by position and for whole
batches at a time: nothing is measured on the path of a row. All times are seconds since the start of the run, on one
monotonic clock.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from ..types.array_types import Float64s, Int64s
from ..types.errors import FluxError

__all__ = ["Failure", "Interval", "Report", "SkippedRow", "build_timeline", "output_gap"]

# (t_s, upto_sn, rows): at t_s, everything up to upto_sn was numbered or taken, with this many rows.
LogEntry = tuple[float, int, int]

CLOSE_UPS_MAX = 3  # A report has so many; more would not fit into its picture.
# A close-up of a failure begins this long before it, and ends this long after it.
CLOSE_UP_BEFORE_S, CLOSE_UP_AFTER_S, CLOSE_UP_INTERVAL_S = 0.25, 0.75, 0.01
GAP_WINDOW_S = 2.0  # A gap counts for a death if it begins within this time after it.


@dataclass(frozen=True)
class Failure:
    """The death of one process, and what it cost. Times "after" count from `when_s`."""

    site: str
    # When it was killed or ended; of one that was stopped or cut off, its last sign of life.
    when_s: float
    detected_after_s: float
    # The longest time without a row at the sink, of those that began up to two seconds after the detection; one that
    # has not ended lasts until now. A source that gives nothing makes a gap too.
    output_gap_s: float
    # None: the lost copies were never rebuilt.
    recovered_after_s: float | None = None
    bytes_moved: int = 0


@dataclass(frozen=True)
class Interval:
    """What happened from `t_s` to the next interval's. Rates are rows per second."""

    t_s: float
    input_rate: float
    output_rate: float
    # None: there was no output in this interval.
    latency_p50_ms: float | None = None
    latency_p99_ms: float | None = None
    events: tuple[str, ...] = ()


@dataclass(frozen=True)
class SkippedRow:
    """A row for which an operator raised, or that a source could not read, skipped because of `on_error="skip"`."""

    step: str
    partition: int
    # Its sequence number; of a source, the place of it, such as the number of a line.
    row: int
    # Its columns, and what was raised, as text.
    values: str
    error: str


@dataclass
class Report:
    """What `flow.run()` and `run.wait()` return."""

    outputs: int
    # None unless there is one `Collect`; not in the type, so that users need not check each time.
    table: pa.Table = None
    failures: list[Failure] = field(default_factory=list)
    # The transfers of state between sites, because of a death, a drain or balance; of very many, the last 10,000. Each
    # has `when_s` (when all of it was sent), `step`, `partition`, the `version` of the new copy, `from`, `to`, `bytes`,
    # `took_s`, to send and to install it, `why`, and the `round` of balance, None if it was not for balance.
    moves: list[dict[str, Any]] = field(default_factory=list)
    timeline: list[Interval] = field(default_factory=list)
    name: str = ""
    inputs: int = 0
    duration_s: float = 0.0
    # Rows that operators refused or sources could not read, with `on_error="skip"`: how many, and the first of them.
    skipped: int = 0
    skipped_rows: list[SkippedRow] = field(default_factory=list)
    # Rows of the source that were dropped at the ingress, with `on_overload="shed"`.
    shed: int = 0
    # Of each `Collect`, in the order in which streams were sent to them; `sink.table()` gives the same.
    tables: list[pa.Table] = field(default_factory=list)
    # Rows that arrived when the watermark had passed their time: most operators drop them, a join does not.
    late: int = 0
    # The rounds of balance: moves that were planned together; of very many, the last 1,000. Each has a number `round`,
    # `when_s`, `why`, how many `moves`, of which some may be `dropped` or `failed`, their `bytes`, `took_s`, and
    # `gain_expected` and `gain_measured`: by how much less the busiest site has to do.
    rounds: list[dict[str, Any]] = field(default_factory=list)
    # When sites were so slow that no other process waited for them: `site`, `when_s`, and `until_s`, None to the end.
    # Each has the `kept_rows` that were kept for it at most, the times in which the source waited for it all the same,
    # as `waits` with a `when_s` and an `until_s`, and how many of its copies were given up: `given_up`.
    slow: list[dict[str, Any]] = field(default_factory=list)
    # The changes of code that were asked for; of very many, the last 1,000. Each has its `number`, `steps`, `scheduler`
    # and `when_s`, the `position` of the last row of the old code, or why it was `refused`, and in seconds since then
    # `committed_after_s`, `first_s` (the copies of one site are past it), `delay_s` (each partition has a live copy
    # past it) and `complete_s` (all copies are).
    changes: list[dict[str, Any]] = field(default_factory=list)
    # The time around each of the last three failures, in intervals of 10 ms, in which a short gap shows.
    close_ups: list[list[Interval]] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """Return the report as JSON types. Of the table it has only the number of rows.

        >>> Report(outputs=3, table=pa.table({"n": [1, 2, 3]})).to_dict()["table_rows"]
        3
        """
        return {
            "name": self.name,
            "inputs": self.inputs,
            "outputs": self.outputs,
            "duration_s": self.duration_s,
            "skipped": self.skipped,
            "skipped_rows": [asdict(row) for row in self.skipped_rows],
            "shed": self.shed,
            "late": self.late,
            "table_rows": None if self.table is None else self.table.num_rows,
            "failures": [asdict(failure) for failure in self.failures],
            "moves": [dict(move) for move in self.moves],
            "rounds": [dict(each) for each in self.rounds],
            "slow": [dict(each) for each in self.slow],
            "changes": [dict(each) for each in self.changes],
            "timeline": _plain_intervals(self.timeline),
            "close_ups": [_plain_intervals(intervals) for intervals in self.close_ups],
        }

    def plot(self, path: str | Path) -> None:
        """Draw rates, latency, failures and recoveries over time to `path`, a .png, .svg or .pdf file."""
        figure = _new_figure()
        _draw(figure, self)
        figure.savefig(Path(path), dpi=150)


def _plain_intervals(intervals: list[Interval]) -> list[dict[str, Any]]:
    return [asdict(interval) | {"events": list(interval.events)} for interval in intervals]


def build_timeline(
    inputs: Sequence[LogEntry],
    outputs: Sequence[LogEntry],
    interval_s: float = 0.25,
    events: Iterable[tuple[float, str]] = (),
) -> list[Interval]:
    """Return the intervals of a run, from the start to the last entry, without a gap between them.

    The latency of output rows is the time at which the sink took them less the time at which the input they
    stem from was numbered. The rows of an entry that stems from several inputs are shared out over them by
    their part of its sequence numbers: which row stems from which is not known here.

    >>> [interval] = build_timeline([(0.0, 99, 100)], [(0.02, 99, 50)], interval_s=0.5)
    >>> interval.input_rate, interval.output_rate, interval.latency_p50_ms
    (200.0, 100.0, 20.0)
    """
    assert interval_s > 0, f"interval_s is {interval_s}: an interval has a length above 0"
    events = list(events)
    in_s, in_upto, in_rows = _columns(inputs)
    out_s, out_upto, out_rows = _columns(outputs)
    event_s = np.array([t_s for t_s, _ in events], dtype=np.float64)
    times = np.concatenate([in_s, out_s, event_s])
    if not len(times):
        return []
    count = int(max(times.max(), 0.0) // interval_s) + 1
    in_bin, out_bin, event_bin = (_bins(t_s, interval_s) for t_s in (in_s, out_s, event_s))

    which, latency_ms, weight = _latencies_ms(in_s, in_upto, in_rows, out_s, out_upto, out_rows)
    p50, p99 = _percentiles(out_bin[which], latency_ms, weight, (0.5, 0.99), count)
    texts: list[list[str]] = [[] for _ in range(count)]
    for index, (_, text) in zip(event_bin, events, strict=True):
        texts[index].append(text)
    input_rate = np.bincount(in_bin, in_rows, count) / interval_s
    output_rate = np.bincount(out_bin, out_rows, count) / interval_s
    return [
        Interval(
            # Rounded, because 0.1 * 3 is 0.30000000000000004.
            t_s=round(index * interval_s, 9),
            input_rate=float(input_rate[index]),
            output_rate=float(output_rate[index]),
            latency_p50_ms=_milliseconds(p50[index]),
            latency_p99_ms=_milliseconds(p99[index]),
            events=tuple(texts[index]),
        )
        for index in range(count)
    ]


def output_gap(
    outputs: Sequence[LogEntry], when_s: float, window_s: float = GAP_WINDOW_S, end_s: float | None = None
) -> float:
    """Return the longest time without a row at the sink within `window_s` of `when_s`, in seconds.

    The first gap begins at `when_s` itself and the last ends with the window. A stream that ended at `end_s`
    shortens the window: the time after the last row is not an outage.

    >>> output_gap([(0.9, 9, 10), (1.25, 19, 10), (1.5, 29, 10)], when_s=1.0, window_s=0.75)
    0.25
    """
    until_s = when_s + window_s if end_s is None else min(when_s + window_s, end_s)
    if until_s <= when_s:
        return 0.0
    out_s, _, out_rows = _columns(outputs)
    inside = np.sort(out_s[(out_rows > 0) & (out_s >= when_s) & (out_s <= until_s)])
    edges = np.concatenate([[when_s], inside, [until_s]])
    return float(np.diff(edges).max())


def _columns(log: Sequence[LogEntry]) -> tuple[Float64s, Int64s, Int64s]:
    if not log:
        return np.empty(0), np.empty(0, np.int64), np.empty(0, np.int64)
    t_s, upto, rows = zip(*log, strict=True)
    return np.array(t_s, np.float64), np.array(upto, np.int64), np.array(rows, np.int64)


def _bins(t_s: Float64s, interval_s: float) -> Int64s:
    return (np.maximum(t_s, 0.0) // interval_s).astype(np.int64)


def _latencies_ms(
    in_s: Float64s, in_upto: Int64s, in_rows: Int64s, out_s: Float64s, out_upto: Int64s, out_rows: Int64s
) -> tuple[Int64s, Float64s, Float64s]:
    """Return samples of latency: the output entry of each, the latency, and the rows it stands for."""
    if not len(in_s) or not len(out_s):
        return np.empty(0, np.int64), np.empty(0), np.empty(0)
    in_order = np.argsort(in_upto, kind="stable")
    in_s, in_upto = in_s[in_order], in_upto[in_order]
    # An entry stands for what lies between the furthest position before it and its own: at least for its own
    # `upto`, also when entries are out of order. So there are at most inputs + 2 * outputs samples.
    in_before = np.concatenate([[in_upto[0] - max(in_rows[in_order[0]], 1)], in_upto[:-1]])
    before = np.concatenate([in_before[:1], np.maximum.accumulate(out_upto)[:-1]])
    before = np.minimum(before, out_upto - 1)
    last = len(in_s) - 1
    first_input = np.minimum(np.searchsorted(in_upto, before, side="right"), last)
    last_input = np.minimum(np.searchsorted(in_upto, out_upto, side="left"), last)
    length = last_input - first_input + 1
    which = np.repeat(np.arange(len(out_s)), length)
    step = np.arange(len(which)) - np.repeat(np.cumsum(length) - length, length)
    source = first_input[which] + step

    overlap = np.minimum(in_upto[source], out_upto[which]) - np.maximum(in_before[source], before[which])
    # Positions past the last known input have no overlap; they count as stemming from it.
    share = np.maximum(overlap, 1).astype(np.float64)
    weight = out_rows[which] * share / np.bincount(which, share, len(out_s))[which]
    return which, np.maximum(out_s[which] - in_s[source], 0.0) * 1000.0, weight


def _percentiles(
    bins: Int64s, values: Float64s, weight: Float64s, quantiles: Sequence[float], count: int
) -> list[Float64s]:
    """Return, for each quantile, the weighted percentile of each bin; NaN for a bin without weight."""
    some = weight > 0
    bins, values, weight = bins[some], values[some], weight[some]
    order = np.lexsort((values, bins))
    bins, values, weight = bins[order], values[order], weight[order]
    reached = np.cumsum(weight)
    end = np.searchsorted(bins, np.arange(count), side="right")
    begin = np.concatenate([[0], end[:-1]])
    results = []
    for quantile in quantiles:
        result = np.full(count, np.nan)
        full = end > begin
        base = np.concatenate([[0.0], reached])[begin[full]]
        target = base + quantile * (reached[end[full] - 1] - base)
        # Rounding of the running sum must not carry a percentile into the next bin.
        index = np.clip(np.searchsorted(reached, target, side="left"), begin[full], end[full] - 1)
        result[full] = values[index]
        results.append(result)
    return results


def _milliseconds(value: float) -> float | None:
    return None if np.isnan(value) else float(value)


_INPUT_COLOUR, _OUTPUT_COLOUR, _FAILURE_COLOUR, _RECOVERY_COLOUR = "#9aa5b1", "#1f6feb", "#d1242f", "#1a7f37"
_ROUND_COLOUR, _SLOW_COLOUR = "#8250df", "#bf8700"

# A label takes about this part of the width and of the height of the upper picture.
_LABEL_WIDTH, _LABEL_HEIGHT = 0.17, 0.16


def _new_figure() -> Any:
    try:
        # Not pyplot: it keeps every figure alive and looks for a screen. A bare Figure draws with Agg.
        from matplotlib.figure import Figure
    except ImportError as error:
        raise FluxError(
            "report.plot draws with matplotlib, which is not installed; install the extra with "
            "`pip install 'flux-dataflow[plot]'`"
        ) from error
    return Figure(figsize=(10, 6), layout="constrained")


def _draw(figure: Any, report: Report) -> None:
    from matplotlib.ticker import EngFormatter

    close_ups = [intervals for intervals in report.close_ups if intervals]
    whole = figure
    if close_ups:
        whole, below = figure.subfigures(2, 1, height_ratios=[3, 1.2])
        _draw_close_ups(below, report, close_ups)
    rates, latency = whole.subplots(2, 1, sharex=True, gridspec_kw={"height_ratios": [2, 1]})
    timeline = _from_the_first_row(report.timeline)
    _draw_rates(rates, timeline)
    _draw_latency(latency, timeline)
    rates.set_ylabel("rows per second")
    rates.yaxis.set_major_formatter(EngFormatter(sep=""))
    latency.set_ylabel("latency, ms")
    latency.set_xlabel("seconds since the start")
    for axes in (rates, latency):
        axes.set_ylim(bottom=0)
        axes.grid(axis="y", color="#e6e8eb", linewidth=0.8)
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
        axes.margins(x=0)
    _draw_failures(rates, latency, report)
    _draw_balance(rates, latency, report)
    for axes in (rates, latency):
        if axes.get_legend_handles_labels()[0]:
            # Above the picture, where no curve can run through it.
            axes.legend(loc="lower right", bbox_to_anchor=(1, 0.98), frameon=False, ncols=4, fontsize="small")
    rates.set_title(_title(report), loc="left", fontweight="bold")


def _draw_close_ups(figure: Any, report: Report, close_ups: list[list[Interval]]) -> None:
    """Draw the rates around each of the last failures: there a gap of milliseconds shows."""
    from matplotlib.ticker import EngFormatter

    failures = sorted(report.failures, key=lambda failure: failure.when_s)[-len(close_ups) :]
    panels = figure.subplots(1, len(close_ups), squeeze=False)[0]
    for axes, failure, intervals in zip(panels, failures, close_ups, strict=True):
        _draw_rates(axes, intervals)
        axes.axvline(failure.when_s, color=_FAILURE_COLOUR, linewidth=1.2, linestyle="--")
        axes.set_title(f"{failure.site}, in intervals of 10 ms", fontsize="small", loc="left")
        axes.yaxis.set_major_formatter(EngFormatter(sep=""))
        axes.set_ylim(bottom=0)
        axes.set_xlim(failure.when_s - CLOSE_UP_BEFORE_S, failure.when_s + CLOSE_UP_AFTER_S)
        axes.spines[["top", "right"]].set_visible(False)
        axes.tick_params(labelsize="small")


def _from_the_first_row(timeline: list[Interval]) -> list[Interval]:
    """Leave out the time before the source gave anything: a Spark query may take seconds to start."""
    first = next((i for i, interval in enumerate(timeline) if interval.input_rate or interval.output_rate), 0)
    return timeline[max(0, first - 1) :]


def _title(report: Report) -> str:
    failures = len(report.failures)
    lost = "no failure" if not failures else f"{failures} failure{'s' if failures > 1 else ''}"
    return f"{report.name or 'flow'}: {report.outputs:,} rows out, {lost}"


def _edges(timeline: list[Interval]) -> list[float]:
    """Return where the intervals begin, and where the last one ends."""
    starts = [interval.t_s for interval in timeline]
    width_s = starts[-1] - starts[-2] if len(starts) > 1 else 1.0  # Old intervals may be longer.
    return [*starts, starts[-1] + width_s]


def _draw_rates(axes: Any, timeline: list[Interval]) -> None:
    if not timeline:
        return
    # Steps, because a rate belongs to its whole interval; a sloping line would invent what lies between.
    edges = _edges(timeline)
    output_rates = [interval.output_rate for interval in timeline]
    axes.stairs(output_rates, edges, fill=True, color=_OUTPUT_COLOUR, alpha=0.12)
    input_rates = [interval.input_rate for interval in timeline]
    axes.stairs(input_rates, edges, baseline=None, color=_INPUT_COLOUR, linewidth=1.5, label="input")
    axes.stairs(output_rates, edges, baseline=None, color=_OUTPUT_COLOUR, linewidth=2, label="output")


def _draw_latency(axes: Any, timeline: list[Interval]) -> None:
    if all(interval.latency_p50_ms is None for interval in timeline):
        return
    edges = _edges(timeline)
    p50 = [_or_nan(interval.latency_p50_ms) for interval in timeline]
    p99 = [_or_nan(interval.latency_p99_ms) for interval in timeline]
    axes.stairs(p99, edges, baseline=p50, fill=True, color=_OUTPUT_COLOUR, alpha=0.15)
    axes.stairs(p99, edges, baseline=None, color=_OUTPUT_COLOUR, linewidth=1, alpha=0.6, label="99th percentile")
    axes.stairs(p50, edges, baseline=None, color=_OUTPUT_COLOUR, linewidth=2, label="median")


def _draw_balance(rates: Any, latency: Any, report: Report) -> None:
    """Shade the rounds of balance, and the times in which a site was slow."""
    _, end_s = rates.get_xlim()
    rounds = [(each["when_s"], each["when_s"] + (each["took_s"] or 0.0)) for each in report.rounds]
    slow = [(each["when_s"], end_s if each["until_s"] is None else each["until_s"]) for each in report.slow]
    for spans, colour, label in ((rounds, _ROUND_COLOUR, "balance round"), (slow, _SLOW_COLOUR, "slow site")):
        for axes in (rates, latency):
            for number, (begin_s, until_s) in enumerate(spans):
                text = label if axes is rates and number == 0 else None
                axes.axvspan(begin_s, min(until_s, end_s), color=colour, alpha=0.12, linewidth=1, label=text)


def _draw_failures(rates: Any, latency: Any, report: Report) -> None:
    begin_s, end_s = rates.get_xlim()
    line, label_ends_s = 0, -float("inf")
    lines_used = 0
    failures = sorted(report.failures, key=lambda failure: failure.when_s)
    for axes in (rates, latency):
        _mark_failures(axes, failures, end_s, in_legend=axes is rates)
    for failure in failures:
        # Labels of failures that follow each other closely stand below each other.
        line = line + 1 if failure.when_s < label_ends_s else 0
        label_ends_s = failure.when_s + _LABEL_WIDTH * (end_s - begin_s)
        lines_used = max(lines_used, line + 1)
        # A label stands to the right of its line, except near the right edge, where it would be cut off.
        left = label_ends_s > end_s
        rates.annotate(
            _failure_label(failure),
            (failure.when_s, 0.98 - _LABEL_HEIGHT * line),
            xycoords=("data", "axes fraction"),
            xytext=(-6 if left else 6, 0),
            textcoords="offset points",
            horizontalalignment="right" if left else "left",
            verticalalignment="top",
            fontsize="small",
            color=_FAILURE_COLOUR,
            bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.85, "pad": 1.5},
        )
    # Room for the labels above the curves, but never so much that the curves are squeezed flat.
    room = min(_LABEL_HEIGHT * lines_used, 0.6)
    rates.set_ylim(top=rates.get_ylim()[1] / (1 - room))


def _mark_failures(axes: Any, failures: list[Failure], end_s: float, in_legend: bool) -> None:
    """A line for each failure and one for its recovery, with the time between them shaded."""
    recovered = [failure for failure in failures if failure.recovered_after_s is not None]
    for failure in recovered:
        assert failure.recovered_after_s is not None
        recovered_s = min(failure.when_s + failure.recovered_after_s, end_s)
        axes.axvspan(failure.when_s, recovered_s, color=_FAILURE_COLOUR, alpha=0.06, linewidth=0)
        label = "recovery" if in_legend and failure is recovered[0] else None
        axes.axvline(recovered_s, color=_RECOVERY_COLOUR, linewidth=1.2, linestyle=":", label=label)
    for failure in failures:
        label = "failure" if in_legend and failure is failures[0] else None
        axes.axvline(failure.when_s, color=_FAILURE_COLOUR, linewidth=1.2, linestyle="--", label=label)


def _failure_label(failure: Failure) -> str:
    after_s = failure.recovered_after_s
    recovered = "not recovered" if after_s is None else f"recovered in {after_s:.2f} s"
    return f"{failure.site} died\noutput gap {failure.output_gap_s * 1000:.0f} ms\n{recovered}"


def _or_nan(value: float | None) -> float:
    return float("nan") if value is None else value
