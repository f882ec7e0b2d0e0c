"""The command that every example has: run it, kill a site half-way if asked, and tell what came out.

An example is a function that makes a table of input and one that puts a dataflow behind a source of it; nothing in them
knows about failures. With `--kill` the flow runs twice, undisturbed and with a SIGKILL to one of its sites when half of
the output is there, and the two outputs are compared row by row, in order.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from typing import Any

import flux

__all__ = ["main", "run", "run_with_kill"]

SITES = 3
VICTIM = "site-2"
PACED_S = 3.0  # A run with a kill lasts so long, so that there is a half-way.
SHOWN_ROWS = 8

Flow = Callable[[flux.sources.Source], flux.Dataflow]


def run(data: Any, flow: Flow) -> flux.Report:
    """Run the flow over a table, as fast as it goes."""
    return flow(flux.sources.Table(data)).run(sites=SITES)


def run_with_kill(data: Any, flow: Flow, kill_at: int) -> flux.Report:
    """The same with a site killed as soon as `kill_at` rows of output are durable."""
    source = flux.sources.Table(data, rate=len(data) / PACED_S, batch_rows=max(1, len(data) // 100))
    with flow(source).start(sites=SITES) as running:
        running.wait_for_output(kill_at)
        running.kill(VICTIM)
        return running.wait(timeout=120)


def main(about: str | None, make: Callable[[int], Any], flow: Flow, arguments: Sequence[str] | None = None) -> int:
    """Run an example from the command line; the status says whether its output was exact."""
    parser = argparse.ArgumentParser(description=(about or "").partition("\n")[0])
    parser.add_argument("--rows", type=_count, default=20_000, help="rows of input (%(default)s)")
    parser.add_argument("--kill", action="store_true", help="kill a site half-way, and compare with a run without")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    options = parser.parse_args(arguments)
    data = make(options.rows)
    report, exact = run(data, flow), None
    if options.kill:
        if not report.outputs:
            parser.error(f"{options.rows} rows give no output, so there is no half of it to kill a site at; give more")
        undisturbed = report
        report = run_with_kill(data, flow, kill_at=max(1, undisturbed.outputs // 2))
        exact = report.table.equals(undisturbed.table) and report.late == undisturbed.late
    tell = _as_json if options.json else _as_text
    print(tell(report, exact))
    return 0 if exact is not False else 1


def _count(text: str) -> int:
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"expected a whole number of rows, at least 1; got {text!r}")
    return int(text)


def _as_json(report: flux.Report, exact: bool | None) -> str:
    last = report.table.slice(max(0, report.outputs - SHOWN_ROWS)).to_pylist()
    return json.dumps({**report.to_dict(), "last_rows": last, "exact": exact}, default=str)


def _as_text(report: flux.Report, exact: bool | None) -> str:
    columns = report.table.schema.names
    last = report.table.slice(max(0, report.outputs - SHOWN_ROWS)).to_pylist()
    cells = [columns, *([_cell(row[name]) for name in columns] for row in last)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in cells]
    late = f", {report.late:,} late" if report.late else ""
    lines.append(f"{report.inputs:,} rows in{late}, {report.outputs:,} rows out; above are the last")
    for failure in report.failures:
        gap = "" if failure.output_gap_s is None else f"; output paused for {failure.output_gap_s * 1e3:.0f} ms"
        lines.append(f"{failure.site} was killed at {failure.when_s:.2f} s{gap}")
    if exact is not None:
        lines.append("the same rows in the same order as without the kill" if exact else "THE OUTPUT DIFFERS")
    return "\n".join(lines)


def _cell(value: Any) -> str:
    return f"{value:.4f}" if isinstance(value, float) else str(value)


if __name__ == "__main__":
    sys.exit("run one of the examples: python -m experiments.examples.vwap --kill")
