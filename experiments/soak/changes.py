"""Changes: the code and the state of both steps are changed, and a process dies meanwhile.

The new code does what the old does, and the new state is the old one: the output does not say which was used. That it
is one of them for each row is shown elsewhere; here, that nothing is lost of what a change takes over.
"""

from __future__ import annotations

import contextlib
import threading
from typing import Any

import flux
from experiments.soak.striker import ENDS, Fault, Striker

CHANGED_WITHIN_S = 30.0
STEPS = {"Sessions": "experiments.dmz.sessions:Sessions", "CountWindow": "flux.operators.count_window:CountWindow"}


def same(piece: Any) -> Any:
    """Migrate a piece of state to what it is."""
    return piece


class Changes:
    """Changes during which something dies, by `striker`."""

    def __init__(self, striker: Striker) -> None:
        self._striker = striker
        self.faults: tuple[Fault, ...] = (self.kill_during_a_change, self.change_during_a_recovery)

    def kill_during_a_change(self) -> str | None:
        """A site or an end dies just before, while or just after a change is agreed on."""
        change = self._begin_change()
        try:
            self._striker.pause(0.3)
            if not self._kill():
                return None
        finally:
            change.join()
        return "change"

    def change_during_a_recovery(self) -> str | None:
        """A site or an end dies, and the code changes while what was lost is rebuilt."""
        if not self._kill():
            return None
        self._striker.pause(0.2)
        self._begin_change().join()
        return "change in recovery"

    def _kill(self) -> bool:
        sites = [name for (name,) in self._striker.to_spare(1)]
        if not sites:
            return False
        self._striker.kill(self._striker.draw.choice([*sites, *sites, *ENDS]))
        return True

    def _begin_change(self) -> threading.Thread:
        """Change one step or both, in a thread: other parameters, other code or other state."""
        draw = self._striker.draw
        wanted = {}
        for step in draw.choice([["Sessions"], ["CountWindow"], [*STEPS]]):
            operator = draw.choice([None, STEPS[step]])
            migrate = draw.choice([None, f"{__name__}:same"])
            wanted[step] = flux.change(operator, migrate)
        scheduler = draw.choice(["sn", "sn", "epoch"])
        change = threading.Thread(target=self._change, args=(wanted, scheduler), name="change")
        change.start()
        return change

    def _change(self, wanted: dict[str, Any], scheduler: str) -> None:
        """It may be refused, if a site dies as it rehearses. An error of the run ends the soak without this."""
        with contextlib.suppress(flux.FluxError, TimeoutError):
            self._striker.run.reconfigure(wanted, scheduler, timeout=CHANGED_WITHIN_S)
