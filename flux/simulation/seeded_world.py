"""Seeded world: what all simulated worlds share: a seed that decides everything, a simulated system, and violations.

A world is run to its end once. `SeededWorld.main` is what happens in it; when it returns, all processes end.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import trio

from .replaced_calls import SimulatedSystem
from .world_result import WorldResult, quiet

__all__ = ["SeededWorld"]


class SeededWorld:
    """The world of a seed; `kind` sets its random numbers apart from those of other worlds with the seed."""

    kind = "world"

    def __init__(self, seed: int, keeps_trace: bool = False) -> None:
        self.seed = seed
        self.rng = random.Random(f"{seed} {self.kind}")
        self.system = SimulatedSystem(str(seed), keeps_trace)
        self.violations: list[str] = []
        self.faults: list[str] = []  # Those that were caused, in words.
        self.deaths = 0

    @property
    def now(self) -> float:
        """The time of the world."""
        return self.system.kernel.now

    def run(self) -> WorldResult:
        """Run the world to its end."""
        kernel = self.system.kernel
        with self.surroundings(), self.system.in_place(), quiet(self.system):
            trio.run(self._live, clock=kernel.clock, instruments=[kernel.gatekeeper])
        return WorldResult.of(self.seed, self.system, self.violations, self.faults, self.deaths)

    def surroundings(self) -> AbstractContextManager[None]:
        """Return what of the real system the world needs while it runs."""
        return nullcontext()

    async def main(self) -> None:
        """Start the processes of the world, cause faults, and return at the end."""
        raise NotImplementedError

    async def _live(self) -> None:
        kernel = self.system.kernel
        async with trio.open_nursery() as nursery:
            self.nursery = nursery
            await self.main()
            kernel.clock.stop()
            nursery.cancel_scope.cancel()
            for process in list(kernel.processes.values()):
                process.is_dead = True
                kernel.go_on(process)

    def note_fault(self, number: int | None, text: str) -> None:
        """Note a fault that is caused now; one without a number cannot be left out."""
        shown = "  *" if number is None else f"{number:3}"
        self.faults.append(f"{shown} at {self.now:.3f} s: {text}")
        self.system.kernel.note("fault", text)

    def violate(self, text: str) -> None:
        """Note what must not be."""
        self.system.kernel.note("world", f"VIOLATION: {text}")
        self.violations.append(text)

    def crashed(self, name: str) -> Callable[[str], None]:
        """Return what notes the error that ends a process of this name."""
        return lambda text: self.violate(f"{name} ended with an error: {text}")
