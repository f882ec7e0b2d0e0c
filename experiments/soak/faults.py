"""Faults: every kind that a soak draws from, and those that may end a run.

A fault may strike while copies of the last one are being rebuilt, so long as no partition loses its last finished copy.
"""

from __future__ import annotations

from collections.abc import Sequence

from experiments.soak.changes import Changes
from experiments.soak.full_disks import FullDisks, SmallDisk
from experiments.soak.journal_cuts import JournalCuts
from experiments.soak.kills import Kills
from experiments.soak.limits import Limits
from experiments.soak.placements import Placements
from experiments.soak.state_readers import StateReaders
from experiments.soak.stops import Stops
from experiments.soak.striker import Fault, Striker

# A text of the error when one of these ends the run. The output up to then must be right nevertheless.
MAY_END = {
    "cut_the_views": ("controller.journal has lost its end", "the controller's journal has lost views"),
    "cut_the_sinks": ("the egress's journal has lost its end", "the sink's journal has lost its end"),
    "fill_the_disk_of_the_sink": ("Make room there",),
}


def ending(error: str, faults: Sequence[str]) -> str | None:
    """Return which of these faults may end a run with this error; None if none may. Some show only later."""
    return next((name for name in faults if any(text in error for text in MAY_END.get(name, ()))), None)


class Faults:
    """Faults to the run of `striker`; those whose names contain a text of `only`, which are apart by commas."""

    def __init__(
        self, striker: Striker, of_run: SmallDisk | None, of_sink: SmallDisk | None, has_file: bool, only: str = ""
    ) -> None:
        self._draw = striker.draw
        kinds = (
            Kills(striker),
            Changes(striker),
            Stops(striker),
            JournalCuts(striker, has_file),
            StateReaders(striker),
            Limits(striker),
            Placements(striker),
            FullDisks(striker, of_run, of_sink),
        )
        self._faults = [fault for kind in kinds for fault in kind.faults if _is_in(fault.__name__, only)]

    def next(self) -> Fault:
        """Any of them."""
        return self._draw.choice(self._faults)


def _is_in(name: str, only: str) -> bool:
    return any(text in name for text in only.split(","))
