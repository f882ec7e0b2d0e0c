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
from .changing_world import ChangingWorld
from .moving_world import MovingWorld
from .process_world import ProcessWorld
from .remote_world import RemoteWorld
from .world_result import WorldResult

__all__ = ["Smaller", "Swarm", "replay_command", "run_world", "shrink", "simulate_worlds"]

_PROGRESS_S = 10.0
_WORLDS_AT_ONCE = 20  # Given to each process of a swarm.
_COLLECTED_WORLDS = 5
_KINDS_EVERY = 10  # Of so many worlds, one is the hand-off from Spark, and in one Spark reads the output.
_STAGING, _OUTLET = 9, 4
_MOVING = 6  # In one of ten, copies move at random,
_REMOTE = 2  # one is a run on several machines,
_CHANGING = 7  # and in one the code changes.


def run_world(seed: int, kinds: Collection[str] = (), **settings: Any) -> WorldResult:
    """Run the world of a seed: a whole run, or the hand-off from Spark. Spark may read its output, or copies move.

    One in ten is a run on several machines, and in one in ten the code changes.

    With `kinds` of faults, each world is a whole run with faults of these kinds only.
    """
    began_s = time.process_time()
    has_spark = not kinds and find_spec("pyspark") is not None
    if has_spark and seed % _KINDS_EVERY == _STAGING:
        from .staging_world import StagingWorld

        of_runs = ("rows_max", "sites_max")
        result = StagingWorld(seed, **{name: value for name, value in settings.items() if name not in of_runs}).run()
    elif has_spark and seed % _KINDS_EVERY == _OUTLET:
        from .outlet_world import OutletWorld

        result = OutletWorld(seed, **settings).run()
    elif not kinds and seed % _KINDS_EVERY == _MOVING:
        result = MovingWorld(seed, **settings).run()
    elif not kinds and seed % _KINDS_EVERY == _REMOTE:
        result = RemoteWorld(seed, **settings).run()
    elif not kinds and seed % _KINDS_EVERY == _CHANGING:
        result = ChangingWorld(seed, **settings).run()
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
    moves: int = 0
    changes: int = 0
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
        self.moves += result.moves
        self.changes += result.changes
        self.simulated_s += result.simulated_s
        self.effects += result.effects
        self.seconds += result.cpu_s

    def __str__(self) -> str:
        per_s = self.deaths / max(self.seconds, 1e-9)
        return (
            f"{self.worlds:,} worlds, {self.faults:,} faults ({self.power_cuts:,} power cuts, "
            f"{self.torn_effects:,} torn effects), {self.deaths:,} deaths, {self.moves:,} moves, {self.changes:,} "
            f"changes of code, "
            f"{self.simulated_s:,.0f} s of simulated time, {self.effects:,} effects, {per_s:,.1f} deaths/s on one "
            f"core, {self.seconds:.0f} s: {len(self.failures)} worlds failed"
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
            progress(f"world {result.seed} failed: {result.violations[0]}; looking for a smaller failure")
            shrunk, smaller = shrink(result.seed, kinds)
            swarm.failures.append(
                {
                    "seed": result.seed,
                    "violations": shrunk.violations,
                    "faults": shrunk.faults,
                    "rows": shrunk.rows,
                    "sites": shrunk.sites,
                    "replay": replay_command(result.seed, kinds, smaller),
                    "replay_whole": replay_command(result.seed, kinds),
                }
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


def replay_command(seed: int, kinds: Collection[str] = (), smaller: Smaller | None = None) -> str:
    """Return the command that runs the world of a seed again, or a smaller one, with its trace."""
    of_kinds = f" --faults {','.join(kinds)}" if kinds else ""
    return f"flux spec simulate --seed {seed} --worlds 1{of_kinds}{smaller or ''} --trace"


@dataclass(frozen=True, kw_only=True)
class Smaller:
    """How a world is made smaller: faults that are left out, by their numbers; most rows of a source, most sites."""

    left_out: frozenset[int] = frozenset()
    rows_max: int | None = None
    sites_max: int | None = None

    def __str__(self) -> str:
        """Return the options that say so to `flux spec simulate`."""
        left_out = f" --without {','.join(map(str, sorted(self.left_out)))}" if self.left_out else ""
        rows = "" if self.rows_max is None else f" --rows-max {self.rows_max}"
        sites = "" if self.sites_max is None else f" --sites-max {self.sites_max}"
        return left_out + rows + sites

    def settings(self) -> dict[str, Any]:
        """Return the settings of a world that are not those of a whole one."""
        known = {"left_out": self.left_out, "rows_max": self.rows_max, "sites_max": self.sites_max}
        return {name: value for name, value in known.items() if value}


def shrink(seed: int, kinds: Collection[str] = ()) -> tuple[WorldResult, Smaller]:
    """Return a failure of a seed's world with as few faults, rows and sites as were found to be enough."""
    best, smaller = run_world(seed, kinds), Smaller()
    assert best.violations, f"the world of seed {seed} does not fail"
    while True:
        for tried in _smaller(best, smaller):
            result = run_world(seed, kinds, **tried.settings())
            if result.violations:
                best, smaller = result, tried
                break
        else:
            return best, smaller


def _smaller(failed: WorldResult, than: Smaller) -> Iterator[Smaller]:
    """Return what to try next: half of the faults are left out, a quarter, single ones; fewer rows; a site less."""
    needed = _numbers(failed)
    size = len(needed)
    while size > 0:
        size = size // 2 if size > 1 else 1
        for begin in range(0, len(needed), size):
            yield replace(than, left_out=than.left_out.union(needed[begin : begin + size]))
        size = 0 if size == 1 else size
    for rows in (failed.rows // 2, failed.rows - 1):
        if 0 < rows < failed.rows:
            yield replace(than, rows_max=rows)
    if failed.sites > 2:
        yield replace(than, sites_max=failed.sites - 1)


def _numbers(result: WorldResult) -> list[int]:
    """Return the numbers of the faults that were caused. A loss of power has none."""
    numbers = [text.split(" at ")[0].strip() for text in result.faults]
    return [int(number) for number in numbers if number.isdecimal()]
