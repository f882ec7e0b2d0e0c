"""What a rule of the protocol is, and a way to take it out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from .patch import Patch


@dataclass(frozen=True)
class Removal:
    """A rule taken out of the machines, and the world that fails without it."""

    take_out: Callable[[Patch], None]
    world: str
    seed: int

    @property
    def name(self) -> str:
        return self.take_out.__name__.replace("_", " ")

    @property
    def what(self) -> str:
        return " ".join((self.take_out.__doc__ or "").split())


@dataclass(frozen=True)
class ProtocolRule:
    """One rule: its text, and why it is needed, or why not."""

    number: int
    title: str
    text: str
    removals: tuple[Removal, ...] = ()
    argument: str = ""
    spare: tuple[Callable[[Patch], None], ...] = ()
