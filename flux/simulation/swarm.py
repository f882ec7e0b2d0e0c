"""Swarm: many simulated worlds, one after another, and the shrunk story of each that fails."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from importlib.util import find_spec
from itertools import count, islice
from multiprocessing import get_context
from typing import Any

from ..model.gc_control import gc_paused
from .process_world import ProcessWorld
from .world_result import WorldResult

__all__ = ["Swarm", "replay_command", "run_world", "shrink", "simulate_worlds"]

_PROGRESS_S = 10.0
_WORLDS_AT_ONCE = 20  # Given to each process of a swarm.
_COLLECTED_WORLDS = 5
_SPARK_EVERY = 10  # Of so many worlds, one is the hand-off from Spark, and in one Spark reads the output.
_STAGING, _OUTLET = 9, 4


def run_world(seed: int, kinds: Collection[str] = (), **settings: Any) -> WorldResult:
    """Run the world of a seed: a whole run, which Spark may read, or the hand-off from Spark, if that is installed.

    With `kinds` of faults, each world is a whole run with faults of these kinds only.
    """
    began_s = time.process_time()
    has_spark = not kinds and find_spec("pyspark") is not None
    if has_spark and seed % _SPARK_EVERY == _STAGING:
        from .staging_world import StagingWorld

        result = StagingWorld(seed, **settings).run()
    elif has_spark and seed % _SPARK_EVERY == _OUTLET:
        from .outlet_world import OutletWorld

        result = OutletWorld(seed, **settings).run()
    else:
        result = ProcessWorld(seed, kinds=kinds, **settings).run()
    return replace(result, cpu_s=time.process_time() - began_s)


@dataclass
class Swarm:
    """What came of many worlds; `seconds` are of the processor."""

    worlds: int = 0
    faults: int = 0
    power_cuts: int = 0  # Of the faults.
    torn_effects: int = 0  # Faults by which a process is to die in the middle of an effect.
    deaths: int = 0
    simulated_s: float = 0.0
    effects: int = 0
    seconds: float = 0.0
    failures: list[dict[str, Any]] = field(default_factory=list)

    def add(self, result: WorldResult) -> None:
        """Count a world in."""
        self.worlds += 1
        self.faults += len(result.faults)
        self.power_cuts += sum("loss of power" in fault for fault in result.faults)
        self.torn_effects += sum("torn" in fault for fault in result.faults)
        self.deaths += result.deaths
        self.simulated_s += result.simulated_s
        self.effects += result.effects
        self.seconds += result.cpu_s

    def __str__(self) -> str:
        return (
            f"{self.worlds:,} worlds, {self.faults:,} faults ({self.power_cuts:,} power cuts, "
            f"{self.torn_effects:,} torn effects), {self.deaths:,} deaths, {self.simulated_s:,.0f} s of simulated "
            f"time, {self.effects:,} effects, {self.deaths / max(self.seconds, 1e-9):,.1f} deaths/s on one core, "
            f"{self.seconds:.0f} s: {len(self.failures)} worlds failed"
        )


def simulate_worlds(
    first: int,
    worlds: int | None,
    minutes: float | None,
    progress: Callable[[str], None] = lambda line: None,
    *,
    kinds: Collection[str] = (),
    jobs: int = 1,
) -> Swarm:
    """Run the worlds of consecutive seeds: so many, or for so long, `jobs` at once. One that fails is shrunk."""
    swarm = Swarm()
    said_s = time.monotonic()
    for result in _results(first, worlds, minutes, kinds, jobs):
        swarm.add(result)
        if result.violations:
            progress(f"world {result.seed} failed: {result.violations[0]}; looking for a failure with fewer faults")
            shrunk = shrink(result.seed, kinds)
            replay = replay_command(result.seed, kinds)
            swarm.failures.append(
                {"seed": result.seed, "violations": shrunk.violations, "faults": shrunk.faults, "replay": replay}
            )
        if time.monotonic() - said_s >= _PROGRESS_S:
            said_s = time.monotonic()
            progress(str(swarm))
    return swarm


def _results(
    first: int, worlds: int | None, minutes: float | None, kinds: Collection[str], jobs: int
) -> Iterator[WorldResult]:
    ends_at = None if minutes is None else time.monotonic() + 60 * minutes
    seeds = count(first) if worlds is None else islice(count(first), worlds)
    run = partial(_run_one, kinds=kinds)
    with ExitStack() as stack, gc_paused():
        stack.callback(gc.unfreeze)
        pool = None if jobs == 1 else stack.enter_context(get_context("fork").Pool(jobs))
        while some := list(islice(seeds, jobs * _WORLDS_AT_ONCE)):
            for result in map(run, some) if pool is None else pool.imap_unordered(run, some):
                yield result
                if ends_at is not None and time.monotonic() >= ends_at:
                    return


def _run_one(seed: int, kinds: Collection[str]) -> WorldResult:
    """Run a world; collect the garbage of some worlds together, not that of a few moments many times."""
    result = run_world(seed, kinds)
    if seed % _COLLECTED_WORLDS == 0:
        gc.collect()
        gc.freeze()  # What is left lives as long as the swarm: it need not be looked at again.
    return result


def replay_command(seed: int, kinds: Collection[str] = ()) -> str:
    """Return the command that runs the world of a seed again, with its trace."""
    of_kinds = f" --faults {','.join(kinds)}" if kinds else ""
    return f"flux spec simulate --seed {seed} --worlds 1{of_kinds} --trace"


def shrink(seed: int, kinds: Collection[str] = ()) -> WorldResult:
    """Return a failure of a seed's world with as few faults as were found to be enough."""
    best = run_world(seed, kinds)
    assert best.violations, f"the world of seed {seed} does not fail"
    faults_max = _drawn(best)
    needed = list(range(1, faults_max + 1))
    size = max(1, len(needed) // 2)
    while True:
        for begin in range(0, len(needed), size):
            kept = needed[:begin] + needed[begin + size :]
            left_out = frozenset(range(1, faults_max + 1)).difference(kept)
            result = run_world(seed, kinds, faults_max=faults_max, left_out=left_out)
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
