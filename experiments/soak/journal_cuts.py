"""Journal cuts: a process is killed and its journal loses its last records, as it may when a machine loses power.

The process is stopped, its journal is cut at the end of a record or inside one, and the process is killed before it can
write again. What it has sent is out, and what it had noted of that is gone.
"""

from __future__ import annotations

import os
import random
import signal
from pathlib import Path

from experiments.soak.striker import Fault, Striker
from flux.controller.controller_process import JOURNAL as VIEWS
from flux.plan.plan import CONTROLLER, EGRESS, INGRESS
from flux.site.egress.sink_writer import JOURNAL as SINK
from flux.site.ingress.ingress_process import JOURNAL as NUMBERS
from flux.storage.journal import _records

RECORDS_MAX = 6


class JournalCuts:
    """Cuts of the journals of a run that writes to a file if `has_file`, by `striker`."""

    def __init__(self, striker: Striker, has_file: bool) -> None:
        self._striker = striker
        always: tuple[Fault, ...] = (self.cut_the_numbers, self.cut_the_views)
        self.faults = (*always, self.cut_the_sinks) if has_file else always

    def cut_the_numbers(self) -> str | None:
        """Of the ingress; its source replays, so that it can go on."""
        return self._cut(INGRESS, NUMBERS, RECORDS_MAX)

    def cut_the_views(self) -> str | None:
        """Of the controller; if a node has seen a view that is lost, the run ends."""
        site = self._striker.any_site()
        if site is not None:
            self._striker.kill(site)  # So that there is a view that not all have seen.
        kind = self._cut(CONTROLLER, VIEWS, 1)
        self._striker.watch.forget_views()
        return kind

    def cut_the_sinks(self) -> str | None:
        """Of the egress; its sink keeps a position of its own."""
        return self._cut(EGRESS, SINK, RECORDS_MAX)

    def _cut(self, name: str, journal: str, records_max: int) -> str | None:
        pid = self._striker.pid(name)
        path = self._striker.run.directory / journal
        if pid is None or not path.exists():
            return None
        self._striker.note(name)
        os.kill(pid, signal.SIGSTOP)
        try:
            os.truncate(path, cut_length(path, self._striker.draw, records_max))
        finally:
            self._striker.run.kill(name)
        return f"journal of the {name} cut"


def cut_length(path: Path, draw: random.Random, records_max: int) -> int:
    """Return the length to which a journal is cut: one of its last records and all after it go, or part of it stays."""
    data = path.read_bytes()
    starts = [record.position for record in _records(path, data)]
    if not starts:
        return len(data)
    nth = draw.randrange(max(0, len(starts) - records_max), len(starts))
    start, end = [*starts, len(data)][nth : nth + 2]
    return start + (0 if draw.random() < 0.5 else draw.randrange(end - start))
