"""Kept totals: what the controller of a remote run has counted, in a file, so that no total falls when it is restarted.

Most totals return by themselves, because processes report them again. Two kinds do not. Of a partition, the copy that
was furthest may die while there is no controller, and those that are left have consumed less. And what only happens
once, a death or a move, is not repeated. So the file is written before a total is shown, and else within a second. What
happens in a last moment before the controller is killed may be missing, and was never shown.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ...storage.disk import replace_file
from ...system import filesystem
from ..failures import death_counts
from ..run_state import RunState

KEPT_EVERY_S = 1.0
_FILE = "totals.json"
_FORMAT = 1


class KeptTotals:
    """The totals of `run_state`, kept in `directory`; `warn` is called once if they cannot be."""

    def __init__(self, directory: Path, run_state: RunState, warn: Callable[[str], None]) -> None:
        self._path = directory / _FILE
        self._run_state = run_state
        self._warn = warn
        self._written = b""
        self._is_warned = False

    def restore(self) -> None:
        """Begin with what the last controller had counted."""
        try:
            document = json.loads(filesystem.read_whole(self._path))
            if document["format"] == _FORMAT:
                _restore(self._run_state, document)
        except FileNotFoundError:
            return
        except (OSError, ValueError, KeyError, TypeError, IndexError) as error:
            self._warn(f"the totals of metrics begin anew: {self._path} cannot be read: {error!r}")

    def write(self) -> None:
        """Write the totals, if they have changed."""
        packed = json.dumps(_to_plain(self._run_state)).encode()
        if packed == self._written:
            return
        try:
            replace_file(self._path, packed, fsync=False)
            self._written = packed
        except OSError as error:
            if not self._is_warned:
                self._warn(f"metrics may fall when this controller is restarted: {self._path}: {error.strerror}")
            self._is_warned = True


def _to_plain(run_state: RunState) -> dict[str, Any]:
    died, recovered = death_counts(run_state)
    dropped, events = run_state.dropped_rows, run_state.events
    return {
        "format": _FORMAT,
        "inputs": run_state.history.input_rows,
        "sinks": [sink.rows for sink in run_state.sinks],
        "rows": [[stage, rows.tolist()] for stage, rows in run_state.measured.rows.items()],
        "shed": dropped.shed,
        "skipped": dropped.skipped_counts(),
        "late": dropped.late_counts(),
        "counted_upto": list(dropped.counted_upto.items()),
        "failures": dict(died),
        "recoveries": dict(recovered),
        "moves": list(events.moves.items()),
        "moved_bytes": list(events.moved_bytes.items()),
        "rounds": events.rounds_before + run_state.balance.round_count,
    }


def _restore(run_state: RunState, document: dict[str, Any]) -> None:
    run_state.history.add_inputs((), document["inputs"])
    for sink, rows in zip(run_state.sinks, document["sinks"], strict=False):
        sink.rows = rows
    for stage, rows in document["rows"]:
        run_state.measured.restore_rows(stage, rows)
    run_state.dropped_rows.shed = document["shed"]
    run_state.dropped_rows.restore(document["skipped"], document["late"], document["counted_upto"])
    events = run_state.events
    events.failures_before.update(document["failures"])
    events.recoveries_before.update(document["recoveries"])
    events.moves.update(dict(document["moves"]))
    events.moved_bytes.update(dict(document["moved_bytes"]))
    events.rounds_before = document["rounds"]
