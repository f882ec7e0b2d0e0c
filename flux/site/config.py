"""Surroundings: what every process of a run is told when it starts, and how it reports to the program."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from ..plan import Plan
from ..wire.connections import Identity
from ..wire.tls import Tls

LEASE_S = 600.0  # Longer than a network is down while somebody mends it: a site that ends takes its copies along.


@dataclass(frozen=True, kw_only=True)
class ProcessConfig:
    """What a process is told about its run when it starts."""

    plan: Plan
    directory: Path
    run: str  # What tells this run from all others.
    secret: bytes = field(repr=False)  # Every process of the run knows it; who does not is refused.
    tls: Tls | None = None
    record: Path | None = None
    # Tests put a relay between two nodes: from the one that dials, its peer and the peer's address, to the relay's.
    route: Callable[[str, str, str], str] | None = None
    outlives_program: bool = False  # Whether a process waits for the program to come back when it is gone.
    leader: str = "program"  # Who takes the program's part.
    lease_s: float = LEASE_S  # Who reaches nobody for so long ends.

    def address(self, name: str) -> str:
        """Where the process `name` of this run listens."""
        return f"unix:{self.directory / name}.sock"

    def identity(self, name: str) -> Identity:
        """Who the process `name` is to the others."""
        return Identity(name=name, run=self.run, secret=self.secret, tls=self.tls)


def place_of(directory: Path, kind: str, number: int) -> Path:
    """Where source or sink number `number` keeps its files; the first has the directory of the run itself."""
    return directory if number == 0 else directory / f"{kind}-{number + 1}"
