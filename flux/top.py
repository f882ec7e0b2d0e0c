"""Top: what a run is doing, as a screen that is drawn again and again.

A screen is a list of lines, made of the document that `run.status()` is: the drawing is a few control sequences that
every terminal knows, so that no further package is needed.
"""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable
from typing import Any

from .wire.asking import Late, Unanswered

_FAILURES_SHOWN = 8
_ENTER, _LEAVE = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"  # The other screen, without a cursor; and back.
_HOME, _ERASE_LINE, _ERASE_BELOW = "\x1b[H", "\x1b[K", "\x1b[J"

Document = dict[str, Any]


def watch(look: Callable[[], Document], every_s: float) -> bool:
    """Draw what `look` gives until the run ends or Ctrl-C is pressed; False if the output is no terminal."""
    if not sys.stdout.isatty():
        return False
    before: Document | None = None
    status, note = look(), ""
    sys.stdout.write(_ENTER)
    try:
        while True:
            _draw([*screen(status, before), note])
            time.sleep(every_s)
            try:
                before, status, note = status, look(), ""
            except Late as late:
                note = f"{late}; asking again"
    except KeyboardInterrupt:
        ended = ""
    except Unanswered:
        ended = f"{status['name']} has ended"
    finally:
        sys.stdout.write(_LEAVE)
        sys.stdout.flush()
    print("\n".join([*screen(status, before), ended]))
    return True


def _draw(lines: list[str]) -> None:
    width, height = shutil.get_terminal_size()
    shown = lines if len(lines) < height else [*lines[: height - 2], f"... and {len(lines) - height + 2} more lines"]
    text = "".join(f"{line[:width]}{_ERASE_LINE}\n" for line in shown)
    sys.stdout.write(f"{_HOME}{text}{_ERASE_BELOW}")
    sys.stdout.flush()


def screen(status: Document, before: Document | None = None) -> list[str]:
    """The lines; with a snapshot from before, also how busy each process was since."""
    lines = [
        f"{status['name']}, {status['t_s']:.1f} s: {_standing(status)}",
        f"  in   {status['inputs']:>15,} rows {status['input_rate']:>12,.0f} /s",
        f"  out  {status['outputs']:>15,} rows {status['output_rate']:>12,.0f} /s   {_latency(status)}",
        "",
        "  process      state          pid starts    cpu s  cpu %  copies     buffered",
    ]
    busy = _busy(status, before)
    for process in status["processes"]:
        pid = "" if process["pid"] is None else process["pid"]
        lines.append(
            f"  {process['name']:<12} {process['state']:<9} {pid:>8} {process['incarnation']:>6} "
            f"{process['cpu_s']:>8.1f} {busy.get(process['name'], ''):>6} {process['copies']:>7,} "
            f"{process['buffered_rows']:>7,} rows"
        )
    return lines + _failures(status["failures"])


def _standing(status: Document) -> str:
    if status["ended"]:
        return "the source has ended, and all output is durable"
    if status["building"]:
        return f"{status['building']} copies are being built"
    return "every partition has all its copies" if status["whole"] else "copies are missing"


def _latency(status: Document) -> str:
    p50_ms, p99_ms = status["latency_p50_ms"], status["latency_p99_ms"]
    if p50_ms is None or p99_ms is None:
        return "no output in the last seconds"
    return f"latency {p50_ms:,.0f} ms (median), {p99_ms:,.0f} ms (99th percentile)"


def _busy(status: Document, before: Document | None) -> dict[str, str]:
    """The part of a processor that each process had since the last look."""
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
