"""`flux run MODULE:FLOW`: run a dataflow on local processes, with its progress on standard error."""

from __future__ import annotations

import argparse
import json
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from types import FrameType
from typing import TYPE_CHECKING, TextIO

from ..driver.processes import CRASH_LIMIT, CRASH_WINDOW_S
from ..driver.report import Report
from ..driver.status import Status
from ..run import Run
from ..types.errors import FluxError
from .flow_loader import find_flow
from .policy_options import add_policy, policy_of
from .subcommand import discard, print_result

if TYPE_CHECKING:
    from .subcommand import Commands

_LOOK_EVERY_S = 0.5
_LINE_EVERY_S = 10.0  # Where a line cannot be overwritten, there are fewer of them.
_SHOWN = 5  # Skipped rows; the JSON document has more.
_ERASE = "\x1b[K"


def add(commands: Commands) -> None:
    """Add `flux run` to the parser."""
    run = commands.add_parser("run", help="run a dataflow on local processes until its source has ended")
    run.add_argument("flow", metavar="MODULE:FLOW", help="a module and the name of the Dataflow in it")
    run.add_argument("--sites", type=int, default=2, metavar="N", help="sites that hold partitions (default 2)")
    run.add_argument("--standby", type=int, default=0, metavar="N", help="spare sites (default 0)")
    run.add_argument(
        "--availability",
        choices=("pairs", "none"),
        default="pairs",
        help="pairs: every partition lives on two sites (the default); none: on one, which is faster",
    )
    add_policy(run)
    run.add_argument(
        "--crash-limit",
        type=_crash_limit,
        default=CRASH_LIMIT,
        metavar="N",
        help=f"deaths of ingress, egress or controller within {CRASH_WINDOW_S:g} s that end the run, or 'never' "
        f"(default {CRASH_LIMIT})",
    )
    run.add_argument(
        "--metrics-port",
        metavar="[HOST:]PORT",
        help="serve metrics for Prometheus there (default host: this machine only)",
    )
    run.add_argument("--record", metavar="DIR", help="record every process's messages and effects there")
    run.add_argument("--plot", metavar="FILE", help="draw rates, latency, failures and recoveries to FILE")
    run.add_argument("--json", action="store_true", help="print the report as one JSON document, and no progress")
    run.set_defaults(command=_run)


def _crash_limit(text: str) -> int | None:
    if text == "never":
        return None
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a number of deaths from 1, or never, got {text!r}")
    return int(text)


def _run(options: argparse.Namespace) -> int:
    flow = find_flow(options.flow)
    progress = ProgressLine(sys.stderr, options.json)
    with _sigterm_as_interrupt():
        try:
            settings = {"availability": options.availability, "record": options.record}
            chosen = {**asdict(policy_of(options)), "crash_limit": options.crash_limit}
            chosen["metrics_port"] = options.metrics_port
            with flow.start(options.sites, options.standby, **settings, **chosen) as run:
                report = _wait_with_progress(run, progress)
        except OSError as error:
            raise FluxError(str(error)) from error
        finally:
            progress.end()
    print_result(json.dumps(report.to_dict()) if options.json else summary(report))
    if options.plot:
        _plot(report, options.plot)
    return 0


def _wait_with_progress(run: Run, progress: ProgressLine) -> Report:
    """Return the report of the run; until then, show its progress."""
    try:
        while True:
            try:
                return run.wait(timeout=_LOOK_EVERY_S)
            except TimeoutError:
                progress.show(run.status())
    except KeyboardInterrupt:
        status = run.status()
        progress.end()
        print(
            f"flux: {status.name} is stopped after {status.outputs:,} rows of output, which are right", file=sys.stderr
        )
        raise


@contextmanager
def _sigterm_as_interrupt() -> Iterator[None]:
    """Let SIGTERM, which a supervisor sends, stop a run cleanly as Ctrl-C does."""

    def interrupt(signum: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


class ProgressLine:
    """The progress of a run: in a terminal one line that is overwritten, elsewhere a line every `_LINE_EVERY_S`."""

    def __init__(self, to: TextIO, quiet: bool) -> None:
        self._to = to
        self._quiet = quiet
        self._is_terminal = to.isatty()
        self._shown_at = time.monotonic()
        self._failures = 0
        self._open = False

    def show(self, status: Status) -> None:
        """Write the progress, if it is time, or if a process has died."""
        now = time.monotonic()
        has_failed = len(status.failures) > self._failures
        if self._quiet or not (self._is_terminal or has_failed or now >= self._shown_at + _LINE_EVERY_S):
            return
        self._shown_at, self._failures = now, len(status.failures)
        # The cursor stays at the start of the line, so that other output overwrites it.
        self._write(f"{_ERASE}{progress_line(status)}\r" if self._is_terminal else f"{progress_line(status)}\n")
        self._open = self._is_terminal

    def end(self) -> None:
        """Clear the line in a terminal."""
        if self._open:
            self._write(_ERASE)
            self._open = False

    def _write(self, text: str) -> None:
        try:
            self._to.write(text)
            self._to.flush()
        except BrokenPipeError:  # The reader has gone; the run goes on.
            self._quiet = True
            discard(self._to)


def progress_line(status: Status) -> str:
    """Return the progress as one line for people.

    >>> print(progress_line(Status("words", 1.5, [], True, 2000, 10, 1500.0, 2.5, [], False)))
    words: 1.5 s, 2,000 rows in (1,500/s), 10 rows out (2/s)
    """
    parts = [
        f"{status.name}: {status.t_s:.1f} s",
        f"{status.inputs:,} rows in ({status.input_rate:,.0f}/s)",
        f"{status.outputs:,} rows out ({status.output_rate:,.0f}/s)",
    ]
    if status.failures:
        recovered = sum(failure.recovered_after_s is not None for failure in status.failures)
        parts.append(f"{len(status.failures)} failures, {recovered} recovered")
    parts += _dropped_rows(status)
    if status.t_s and not status.whole:
        parts.append("copies are missing")
    return ", ".join(parts)


def summary(report: Report) -> str:
    """Return the report as text for people.

    >>> print(summary(Report(outputs=3, inputs=5, name="words", duration_s=0.5)))
    words: 5 rows in, 3 rows out in 0.5 s
    """
    lines = [f"{report.name}: {report.inputs:,} rows in, {report.outputs:,} rows out in {report.duration_s:.1f} s"]
    if dropped := _dropped_rows(report):
        lines.append(f"  {', '.join(dropped)}")
    lines += [f"  {row.step} skipped row {row.row}, {row.values}: {row.error}" for row in report.skipped_rows[:_SHOWN]]
    for failure in report.failures:
        after_s = failure.recovered_after_s
        recovered = "not recovered" if after_s is None else f"recovered after {after_s:.2f} s"
        lines.append(
            f"  {failure.site} died at {failure.when_s:.2f} s; noticed after {failure.detected_after_s * 1e3:.0f} ms, "
            f"longest time without output {failure.output_gap_s * 1e3:.0f} ms, {recovered}"
        )
    if report.rounds:
        moves = sum(1 for move in report.moves if move["round"] is not None)
        lines.append(f"  balance moved {moves:,} copies in {len(report.rounds):,} rounds")
    for span in report.slow[:_SHOWN]:
        until = "the end" if span["until_s"] is None else f"{span['until_s']:.2f} s"
        kept = f"at most {span['kept_rows']:,} rows were kept for it"
        waited = ", and the source waited for it" if span["waits"] else ""
        given_up = f", and {span['given_up']:,} copies were given up" if span["given_up"] else ""
        lines.append(f"  {span['site']} was slow from {span['when_s']:.2f} s to {until}; {kept}{waited}{given_up}")
    return "\n".join(lines)


def _dropped_rows(of: Status | Report) -> list[str]:
    counts = ((of.skipped, "rows skipped"), (of.shed, "rows shed"), (of.late, "rows too late"))
    return [f"{count:,} {what}" for count, what in counts if count]


def _plot(report: Report, path: str) -> None:
    try:
        report.plot(path)
    except (OSError, ValueError) as error:
        raise FluxError(f"the run is complete, but its picture cannot be written: {error}") from error
