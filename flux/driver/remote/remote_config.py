"""What a process of a remote run is told when it starts: where its controller is, and where it listens itself."""

from __future__ import annotations

from dataclasses import dataclass

from ...plan.plan import CONTROLLER
from ...site.config import ProcessConfig


@dataclass(frozen=True, kw_only=True)
class RemoteConfig(ProcessConfig):
    """There is no program: the controller takes its part, at the same address."""

    controller: str
    here: str
    outlives_program: bool = True
    leader: str = CONTROLLER

    def address(self, name: str) -> str:
        """The controller's address, or this process's own: those of others are in the view."""
        return self.controller if name in (CONTROLLER, "program") else self.here
