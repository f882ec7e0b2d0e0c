"""Remote config: the configuration of a process of a remote run: its controller's address, and its own."""

from __future__ import annotations

from dataclasses import dataclass

from ...plan.plan import CONTROLLER
from ...site.config import ProcessConfig


@dataclass(frozen=True, kw_only=True)
class RemoteConfig(ProcessConfig):
    """A remote run has no program: the controller is its driver, at the same address."""

    controller: str
    here: str
    outlives_program: bool = True
    leader: str = CONTROLLER

    def address(self, name: str) -> str:
        """Return the controller's address, or this process's own: those of others are in the view."""
        return self.controller if name in (CONTROLLER, "program") else self.here
