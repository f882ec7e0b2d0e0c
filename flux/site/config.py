"""Process config: the configuration of a process of a run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from ..plan import Plan
from ..wire.connections import Identity
from ..wire.tls import Tls

LEASE_S = 600.0  # Longer than most network outages: a site that ends loses its copies.


@dataclass(frozen=True, kw_only=True)
class ProcessConfig:
    """The configuration that a process gets when it starts."""

    plan: Plan
    directory: Path
    run: str  # A name that no other run has.
    secret: bytes = field(repr=False)  # Every process of the run has it; connections without it are refused.
    tls: Tls | None = None
    record: Path | None = None
    # Tests put a relay between two nodes: from the one that dials, its peer and the peer's address, to the relay's.
    route: Callable[[str, str, str], str] | None = None
    outlives_program: bool = False  # Whether a process without a driver waits for the next one.
    leader: str = "program"  # The process that the driver is in.
    lease_s: float = LEASE_S  # A process that reaches no other for so long ends.

    def address(self, name: str) -> str:
        """Return where the process `name` of this run listens."""
        return f"unix:{self.directory / name}.sock"

    def identity(self, name: str) -> Identity:
        """Return the identity of the process `name` in handshakes."""
        return Identity(name=name, run=self.run, secret=self.secret, tls=self.tls)


def place_of(directory: Path, kind: str, number: int) -> Path:
    """Return the directory of source or sink number `number`; the first has the directory of the run itself."""
    return directory if number == 0 else directory / f"{kind}-{number + 1}"
