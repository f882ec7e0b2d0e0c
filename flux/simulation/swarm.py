"""Swarm: many simulated worlds, one after another, and the shrunk story of each that fails."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from importlib.util import find_spec
from itertools import count, islice
from typing import Any

from .process_world import ProcessWorld
from .world_result import WorldResult

__all__ = ["Swarm", "replay_command", "run_world", "shrink", "simulate_worlds"]

_PROGRESS_S = 10.0
_STAGING_EVERY = 10  # One world in so many is the hand-off from Spark.


def run_world(seed: int, **settings: Any) -> WorldResult:
    """Run the world of a seed: a whole run, or the hand-off from Spark, if that is installed."""
    if seed % _STAGING_EVERY == _STAGING_EVERY - 1 and find_spec("pyspark") is not None:
        from .staging_world import StagingWorld

        return StagingWorld(seed, **settings).run()
    return ProcessWorld(seed, **settings).run()


@dataclass
class Swarm:
    """What came of many worlds; `seconds` are of the processor."""

    worlds: int = 0
    faults: int = 0
    deaths: int = 0
    simulated_s: float = 0.0
    effects: int = 0
    seconds: float = 0.0
    failures: list[dict[str, Any]] = field(default_factory=list)

    def add(self, result: WorldResult) -> None:
        """Count a world in."""
        self.worlds += 1
        self.faults += len(result.faults)
        self.deaths += result.deaths
        self.simulated_s += result.simulated_s
        self.effects += result.effects

    def __str__(self) -> str:
        return (
            f"{self.worlds:,} worlds, {self.faults:,} faults, {self.deaths:,} deaths, {self.simulated_s:,.0f} s of "
            f"simulated time, {self.effects:,} effects, {self.deaths / max(self.seconds, 1e-9):,.1f} deaths/s on one "
            f"core, {self.seconds:.0f} s: {len(self.failures)} worlds failed"
        )


def simulate_worlds(
    first: int, worlds: int | None, minutes: float | None, progress: Callable[[str], None] = lambda line: None
) -> Swarm:
    """Run the worlds of consecutive seeds: so many, or for so long. One that fails is shrunk."""
    swarm = Swarm()
    began_s, said_s = time.process_time(), time.monotonic()
    ends_at = None if minutes is None else time.monotonic() + 60 * minutes
    for seed in _seeds(first, worlds):
        if ends_at is not None and time.monotonic() >= ends_at:
            break
        result = run_world(seed)
        swarm.add(result)
        swarm.seconds = time.process_time() - began_s
        if result.violations:
            progress(f"world {seed} failed: {result.violations[0]}; looking for a failure with fewer faults")
            shrunk = shrink(seed)
            swarm.failures.append(
                {"seed": seed, "violations": shrunk.violations, "faults": shrunk.faults, "replay": replay_command(seed)}
            )
        if time.monotonic() - said_s >= _PROGRESS_S:
            said_s = time.monotonic()
            progress(str(swarm))
    return swarm


def _seeds(first: int, worlds: int | None) -> Iterator[int]:
    return count(first) if worlds is None else islice(count(first), worlds)


def replay_command(seed: int) -> str:
    """Return the command that runs the world of a seed again, with its trace."""
    return f"flux spec simulate --seed {seed} --worlds 1 --trace"


def shrink(seed: int) -> WorldResult:
    """Return a failure of a seed's world with as few faults as were found to be enough."""
    best = run_world(seed)
    assert best.violations, f"the world of seed {seed} does not fail"
    faults_max = _drawn(best)
    needed = list(range(1, faults_max + 1))
    size = max(1, len(needed) // 2)
    while True:
        for begin in range(0, len(needed), size):
            kept = needed[:begin] + needed[begin + size :]
            left_out = frozenset(range(1, faults_max + 1)).difference(kept)
            result = run_world(seed, faults_max=faults_max, left_out=left_out)
            if result.violations:
                best, needed = result, kept
                break
        else:
            if size == 1:
                return best
            size //= 2


def _drawn(result: WorldResult) -> int:
    """Return the number of the last fault; a loss of power has none."""
    numbers = [text.split(" at ")[0].strip() for text in result.faults]
    return max((int(number) for number in numbers if number.isdecimal()), default=0)
