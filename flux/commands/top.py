"""The screen of `flux top`: what a run is doing, drawn at an interval.

A screen is a list of lines, made from the document of `run.status()`. Drawing takes a few control sequences that every
terminal knows, so that no further package is needed.

A local run has ended when its program no longer answers. The controller of a remote run may only be away for a while:
it reports the end of the run itself, to clients with a pending request for the outcome.
"""

from __future__ import annotations

import contextlib
import queue
import shutil
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from ..driver.processes import CRASH_WINDOW_S
from ..types.errors import FluxError
from ..wire.requests import RequestTimeout, Unanswered

_FAILURES_SHOWN = 8
_ENTER, _LEAVE = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"  # The other screen, without a cursor; and back.
_HOME, _ERASE_LINE, _ERASE_BELOW = "\x1b[H", "\x1b[K", "\x1b[J"

_LOAD_TITLE = " busy %  speed  lag %"

Document = dict[str, Any]


def watch(look: Callable[[], Document], every_s: float, outcome: Callable[[], Document] | None = None) -> bool:
    """Draw what `look` returns until the run ends or Ctrl-C is pressed; return False if the output is not a terminal.

    `outcome` is for a remote run: it waits for the end of the run and returns its outcome.
    """
    if not sys.stdout.isatty():
        return False
    watched = _WatchedRun(look, outcome)
    sys.stdout.write(_ENTER)
    try:
        while not watched.is_over:
            _draw(watched.lines)
            watched.look_again(every_s)
    except KeyboardInterrupt:
        watched.note = ""
    finally:
        sys.stdout.write(_LEAVE)
        sys.stdout.flush()
    print("\n".join(watched.lines))
    return True


class _WatchedRun:
    """The last known status of a run."""

    def __init__(self, look: Callable[[], Document], outcome: Callable[[], Document] | None) -> None:
        self.is_over = False
        self.note = ""
        self._look = look
        self._before: Document | None = None
        self._status = look()
        self._request = None if outcome is None else _OutcomeThread(outcome)

    @property
    def lines(self) -> list[str]:
        return [*screen(self._status, self._before), self.note]

    def look_again(self, after_s: float) -> None:
        """Get the status after `after_s` seconds, or when the run has ended."""
        if self._request is None:
            time.sleep(after_s)
        elif (outcome := self._request.wait(after_s)) is not None:
            self._before, self._status = None, outcome["status"]
            self._end(outcome["error"])
            return
        try:
            self._before, self._status, was_away, self.note = self._status, self._look(), bool(self.note), ""
            if self._request is not None:
                self._request.renew(is_lost=was_away)
        except RequestTimeout as late:
            self.note = f"{late}; asking again"
        except Unanswered as gone:
            if self._request is None or self._status["ended"]:
                self._end(self._status["error"])
            else:
                self.note = f"the controller does not answer ({gone}); asking again"

    def _end(self, error: str | None) -> None:
        self.is_over = True
        self.note = f"{self._status['name']} has {'ended' if error is None else f'failed: {error}'}"


class _OutcomeThread:
    """A thread that has asked for the outcome of a remote run, and waits for the answer."""

    def __init__(self, outcome: Callable[[], Document]) -> None:
        self._outcome = outcome
        self._answer: queue.Queue[Document] = queue.Queue()
        self._thread = self._begin()

    def renew(self, is_lost: bool) -> None:
        """Send the request again if it has failed, or `is_lost` because the controller was restarted."""
        if is_lost or not self._thread.is_alive():
            self._thread = self._begin()

    def _begin(self) -> threading.Thread:
        thread = threading.Thread(target=self._ask, daemon=True)
        thread.start()
        return thread

    def _ask(self) -> None:
        with contextlib.suppress(FluxError):  # The next status request meets the same error, and reports it.
            self._answer.put(self._outcome())

    def wait(self, wait_s: float) -> Document | None:
        """Return the outcome of the run, if it arrives within this time."""
        try:
            return self._answer.get(timeout=wait_s)
        except queue.Empty:
            return None


def _draw(lines: list[str]) -> None:
    width, height = shutil.get_terminal_size()
    shown = lines if len(lines) < height else [*lines[: height - 2], f"... and {len(lines) - height + 2} more lines"]
    text = "".join(f"{line[:width]}{_ERASE_LINE}\n" for line in shown)
    sys.stdout.write(f"{_HOME}{text}{_ERASE_BELOW}")
    sys.stdout.flush()


def screen(status: Document, before: Document | None = None) -> list[str]:
    """Return the lines; with an earlier status, also how busy each process was since then."""
    balanced = status["balance"] != "off"
    title = _LOAD_TITLE if balanced else ""
    lines = [
        f"{status['name']}, {status['t_s']:.1f} s: {status['health']}",
        f"  in   {status['inputs']:>15,} rows {status['input_rate']:>12,.0f} /s",
        f"  out  {status['outputs']:>15,} rows {status['output_rate']:>12,.0f} /s   {_latency(status)}",
        "",
        f"  process      state          pid starts    cpu s  cpu %  copies     buffered{title}",
    ]
    busy = _busy(status, before)
    for process in status["processes"]:
        pid = "" if process["pid"] is None else process["pid"]
        lines.append(
            f"  {process['name']:<12} {process['state']:<9} {pid:>8} {process['incarnation']:>6} "
            f"{process['cpu_s']:>8.1f} {busy.get(process['name'], ''):>6} {process['copies']:>7,} "
            f"{process['buffered_rows']:>7,} rows{_load(process) if balanced else ''}{_crashes(process)}"
        )
    stuck = [f"  {process['name']}: {process['stuck']}" for process in status["processes"] if process["stuck"]]
    balance = ["", f"  balance: {status['balance']}"] if balanced else []
    change = ["", f"  {status['change']}"] if status["change"] else []
    return lines + stuck + balance + change + _failures(status["failures"])


def _load(process: Document) -> str:
    """Return the columns of a site's load: how busy it is, its relative speed, its lag, and whether it is slow."""
    if process["utilisation"] is None:
        return " " * len(_LOAD_TITLE)
    speed = "" if process["speed"] is None else f"{process['speed']:.2f}"
    return f"{100 * process['utilisation']:>7.0f} {speed:>6} {100 * process['lag']:>6.0f}{_slow(process)}"


def _slow(process: Document) -> str:
    """Return how long no other process will wait for a slow site; nothing for other sites."""
    if not process["slow"]:
        return ""
    if process["kept_rows"] is None:
        return " slow"
    kept, left_s = f"{process['kept_rows']:,} of {process['kept_rows_max']:,} rows kept", process["time_left_s"]
    if left_s is None:
        return f" slow, {kept}"
    return f" slow, {kept}, " + ("the source waits for it" if not left_s else f"{left_s:,.0f} s left")


def _crashes(process: Document) -> str:
    if not process["crashes"] or process["crash_limit"] is None:
        return ""
    return f"  {process['crashes']} of {process['crash_limit']} crashes within {CRASH_WINDOW_S:g} s that end the run"


def _latency(status: Document) -> str:
    p50_ms, p99_ms = status["latency_p50_ms"], status["latency_p99_ms"]
    if p50_ms is None or p99_ms is None:
        return "no output in the last seconds"
    return f"latency {p50_ms:,.0f} ms (median), {p99_ms:,.0f} ms (99th percentile)"


def _busy(status: Document, before: Document | None) -> dict[str, str]:
    """Return the CPU use of each process since the last status, in percent."""
    if before is None or status["t_s"] <= before["t_s"]:
        return {}
    was = {(process["name"], process["incarnation"]): process["cpu_s"] for process in before["processes"]}
    elapsed_s = status["t_s"] - before["t_s"]
    return {
        process["name"]: f"{100 * (process['cpu_s'] - was[process['name'], process['incarnation']]) / elapsed_s:.0f}"
        for process in status["processes"]
        if (process["name"], process["incarnation"]) in was
    }


def _failures(failures: list[Document]) -> list[str]:
    if not failures:
        return []
    lines = ["", f"  {len(failures)} failures; the last:" if len(failures) > _FAILURES_SHOWN else "  failures:"]
    for failure in failures[-_FAILURES_SHOWN:]:
        after_s = failure["recovered_after_s"]
        recovered = "not recovered yet" if after_s is None else f"recovered after {after_s:.2f} s"
        lines.append(
            f"  {failure['site']:<12} at {failure['when_s']:.1f} s, noticed after "
            f"{failure['detected_after_s'] * 1e3:.0f} ms, output gap {failure['output_gap_s'] * 1e3:.0f} ms, "
            f"{recovered}, {failure['bytes_moved']:,} bytes moved"
        )
    return lines
