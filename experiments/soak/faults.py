"""Faults: every kind that a soak draws from, and those that may end a run.

A fault may strike while copies of the last one are being rebuilt, so long as no partition loses its last finished copy.
"""

from __future__ import annotations

from experiments.soak.full_disks import FullDisks, SmallDisk
from experiments.soak.journal_cuts import JournalCuts
from experiments.soak.kills import Kills
from experiments.soak.limits import Limits
from experiments.soak.state_readers import StateReaders
from experiments.soak.stops import Stops
from experiments.soak.striker import Fault, Striker

# What the error says when one of these ends the run. The output up to then must be right nevertheless.
MAY_END = {
    "cut_the_views": "has lost views",
    "cut_the_sinks": "has lost its end",
    "fill_the_disk_of_the_sink": "Make room there",
}


class Faults:
    """Faults to the run of `striker`; those whose names contain `only`."""

    def __init__(
        self, striker: Striker, of_run: SmallDisk | None, of_sink: SmallDisk | None, has_file: bool, only: str = ""
    ) -> None:
        self._draw = striker.draw
        kinds = (
            Kills(striker),
            Stops(striker),
            JournalCuts(striker, has_file),
            StateReaders(striker),
            Limits(striker),
            FullDisks(striker, of_run, of_sink),
        )
        self._faults = [fault for kind in kinds for fault in kind.faults if only in fault.__name__]

    def next(self) -> Fault:
        """Any of them."""
        return self._draw.choice(self._faults)
