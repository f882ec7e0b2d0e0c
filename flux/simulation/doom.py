"""Doom: at which of its effects a simulated process dies."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["DISK", "MOMENTS", "SEND", "SINK", "Doom"]

DISK, SEND, SINK = "disk", "send", "sink"
MOMENTS = ("before", "torn", "after")


@dataclass
class Doom:
    """The process dies at the n-th effect of a kind from now on: before it, in the middle of it, or after it."""

    kind: str
    n: int
    moment: str

    def is_due(self, kind: str) -> bool:
        """Count an effect; return whether the process dies of it."""
        if kind != self.kind:
            return False
        self.n -= 1
        return self.n <= 0
