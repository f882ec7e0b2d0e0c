"""Mutation testing: alter one guard or state change at a time, and see whether the specification notices.

Each mutant runs in a process of its own, forked, with the protocol and spec modules imported anew and the
mutated one in its place. It is noticed at the first violation, error or refusal, or when it hangs. `TRIALS` are
ordered so that most mutants are noticed in the least time.

A mutant that no trial notices is a survivor: either a world is missing, or the mutant is equivalent, and then
`survivors.txt` says why. A survivor that is not in that list is reported.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.abc
import importlib.machinery
import importlib.util
import json
import os
import resource
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

from .mutants import MODULES, Mutant, folder, mutants

_LOOK_EVERY_S = 0.02
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
STATES_MAX = 100_000  # Forty times what the largest of the small worlds has: a mutant without an end is noticed.
MEMORY_BYTES = 4 << 30
ARGUED = Path(__file__).resolve().parent / "survivors.txt"
_NOTICED, _SURVIVED = 0, 7


@dataclass(frozen=True, kw_only=True)
class Limits:
    """A mutant that goes beyond these is noticed: it hangs."""

    cpu_s: float = 300  # Four times what a survivor takes.
    idle_s: float = 60  # A mutant that only waits uses no processor.


LIMITS = Limits()


@dataclass
class MutationResult:
    """How many mutants were noticed; the survivors, and those not argued to be equivalent."""

    mutants: int = 0
    noticed: int = 0
    survivors: list[str] = field(default_factory=list)
    not_argued: list[str] = field(default_factory=list)
    seconds: float = 0.0


def mutate(
    modules: Sequence[str] = MODULES, results: Path | None = None, progress: Any = print, jobs: int | None = None
) -> MutationResult:
    """Try every mutant of `modules`, one on each core or `jobs` at once; with `results`, resume an earlier run."""
    every = [mutant for module in modules for mutant in mutants(module)]
    unmutated = Mutant(name="none", module=MODULES[0], source=(folder() / f"{MODULES[0]}.py").read_text())
    return try_mutants(every, unmutated, _survives, arguments(), results, progress, jobs=jobs)


def try_mutants(
    every: Sequence[Mutant],
    unmutated: Mutant,
    survives: Callable[[Mutant], bool],
    argued: Mapping[str, str],
    results: Path | None,
    progress: Any,
    limits: Limits = LIMITS,
    jobs: int | None = None,
) -> MutationResult:
    """Try mutants, each in a fork that calls `survives`, one on each core, or `jobs` at once.

    `argued` says of known survivors why they are equivalent.
    """
    began = time.monotonic()
    known: dict[str, bool] = json.loads(results.read_text()) if results is not None and results.exists() else {}
    left = [mutant for mutant in every if _key(mutant) not in known]
    progress(f"{len(every)} mutants, {len(left)} to be tried")
    if left:
        _try_unmutated(unmutated, survives, limits)
    jobs = jobs or os.cpu_count() or 1
    for done, (mutant, noticed) in enumerate(_tried(left, survives, limits, jobs), start=1):
        known[_key(mutant)] = noticed
        if results is not None:
            results.write_text(json.dumps(known))
        if not noticed:
            progress(f"survivor: {mutant.name}")
        if done % 25 == 0:
            progress(f"{done} of {len(left)} tried, {time.monotonic() - began:.0f} s")
    survivors = [mutant.name for mutant in every if not known[_key(mutant)]]
    return MutationResult(
        mutants=len(every),
        noticed=len(every) - len(survivors),
        survivors=survivors,
        not_argued=[name for name in survivors if name not in argued],
        seconds=time.monotonic() - began,
    )


class NothingToCompareWith(Exception):
    """The unmutated code fails, so a mutant that fails proves nothing."""


def _try_unmutated(unmutated: Mutant, survives: Callable[[Mutant], bool], limits: Limits) -> None:
    [(_, noticed)] = _tried([unmutated], survives, limits, 1)
    if noticed:
        raise NothingToCompareWith(
            "the modules as they are do not get through the trials, so mutants cannot be judged. Find out why first: "
            "flux spec check, or flux spec simulate"
        )


def arguments() -> dict[str, str]:
    """The reason why each known survivor of the machines is equivalent."""
    return arguments_in(ARGUED)


def arguments_in(path: Path) -> dict[str, str]:
    """The reasons in a file: blocks of a mutant's name and, indented, the reason."""
    argued: dict[str, str] = {}
    name = ""
    for line in path.read_text().splitlines():
        if line.startswith("    "):
            argued[name] = f"{argued[name]} {line.strip()}".strip()
        elif line and not line.startswith("#"):
            name = line
            argued[name] = ""
    return argued


def _key(mutant: Mutant) -> str:
    return f"{mutant.name} {hashlib.sha256(mutant.source.encode()).hexdigest()[:12]}"


def _tried(
    todo: Sequence[Mutant], survives: Callable[[Mutant], bool], limits: Limits, jobs: int
) -> Iterator[tuple[Mutant, bool]]:
    """Each mutant and whether it was noticed, as they end."""
    waiting, running = list(reversed(todo)), dict[int, _Fork]()
    try:
        while waiting or running:
            while waiting and len(running) < jobs:
                mutant = waiting.pop()
                running[_start(mutant, survives, limits)] = _Fork(mutant)
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                for idle in [idle for idle, fork in running.items() if fork.idle_s(idle) > limits.idle_s]:
                    _kill_group(idle)
                time.sleep(_LOOK_EVERY_S)
            elif pid in running:
                _kill_group(pid)  # What it has started and left.
                yield running.pop(pid).mutant, os.waitstatus_to_exitcode(status) != _SURVIVED
    finally:
        for pid in running:
            _kill_group(pid)


class _Fork:
    """A fork that tries a mutant, and since when it has not used the processor."""

    def __init__(self, mutant: Mutant) -> None:
        self.mutant = mutant
        self._cpu_s = 0.0
        self._used_at = time.monotonic()

    def idle_s(self, pid: int) -> float:
        """Return for how long it has only waited."""
        now, cpu_s = time.monotonic(), _cpu_s_of(pid)
        if cpu_s > self._cpu_s:
            self._cpu_s, self._used_at = cpu_s, now
        return now - self._used_at


def _cpu_s_of(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:15])) / _TICKS_PER_S  # Its own, and that of its children which have ended.


def _kill_group(leader: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(leader, signal.SIGKILL)


def _start(mutant: Mutant, survives: Callable[[Mutant], bool], limits: Limits) -> int:
    pid = os.fork()
    if pid:
        return pid
    code = _NOTICED
    try:
        os.setpgid(0, 0)
        cpu_s = int(limits.cpu_s)
        resource.setrlimit(resource.RLIMIT_CPU, (cpu_s, cpu_s))  # A mutant that hangs is noticed: a signal ends it.
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))  # So is one that fills the memory.
        code = _SURVIVED if survives(mutant) else _NOTICED
    except BaseException:
        code = _NOTICED
    finally:
        os._exit(code)


def _survives(mutant: Mutant) -> bool:
    for name in [name for name in sys.modules if name.startswith(("flux.protocols", "flux.spec"))]:
        del sys.modules[name]
    sys.meta_path.insert(0, Spoiler(mutant, f"flux.protocols.{mutant.module}"))
    return not any(trial() for trial in TRIALS)


# --- the trials: whether something is noticed -----------------------------------------------------------
# Modules are imported here and not above: they must be those that import the mutated one.


def _walks(seeds: range, scale: int = 1) -> bool:
    walk = importlib.import_module("flux.spec.walk").walk
    return any(walk(seed, scale=scale).violation is not None for seed in seeds)


def _wanders(seeds: range) -> bool:
    wander = importlib.import_module("flux.spec.scenario_walk")
    return any(wander.wander(world, seed).violation is not None for seed in seeds for world in wander.WORLDS.values())


def _rule_worlds() -> bool:
    """Walk the worlds in which each rule is needed."""
    rules, wander = importlib.import_module("flux.spec.rules"), importlib.import_module("flux.spec.scenario_walk")
    known = {(removal.world, removal.seed) for rule in rules.RULES for removal in rule.removals} | RARE
    return any(wander.wander(wander.WORLDS[world], seed).violation is not None for world, seed in sorted(known))


def _probes(seeds: range) -> bool:
    probe = importlib.import_module("flux.spec.bad_input").probe
    return any(probe(seed) is not None for seed in seeds)


def _explored() -> bool:
    explorer = importlib.import_module("flux.spec.explore").Explorer
    worlds = importlib.import_module("flux.spec.check").QUICK
    return any(explorer(scenario).run(STATES_MAX).violation is not None for scenario in worlds.values())


# What shows in one world of hundreds: lanes that are each to be merged into the other; a site that left a stage and
# returned while its operator was at work; partitions that arrive, or leave, between two steps of an operator;
# a cut that is reported when one of the two is dead; a copy that is not wanted any more when its donor cuts it;
# a producer that leaves while others catch up with it.
RARE = {
    ("everything moves", 2177),
    ("a producer there and back", 483),
    ("one comes while one leaves", 86),
    ("a producer and a consumer leave", 39),
    ("any order, one of two leaves", 41),
    ("a cut", 229),
    ("a cut", 268),
    ("a storm", 79),
    ("joining, in chunks", 38),
}
TRIALS: tuple[Callable[[], bool], ...] = (
    _rule_worlds,
    lambda: _wanders(range(3)),
    lambda: _walks(range(50)),
    lambda: _probes(range(25)),
    lambda: _wanders(range(3, 40)),
    lambda: _walks(range(100, 110), scale=10),
    _explored,
    lambda: _walks(range(1_000, 1_400)),
)


class Spoiler(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finder that imports the mutated module in place of the original, whose full name is `name`."""

    def __init__(self, mutant: Mutant, name: str) -> None:
        self._mutant = mutant
        self._name = name

    def find_spec(self, name: str, path: Any, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        if name != self._name:
            return None
        return importlib.util.spec_from_loader(name, self)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        exec(compile(self._mutant.source, f"<{self._mutant.name}>", "exec"), module.__dict__)
