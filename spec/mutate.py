"""Mutation: spoil one guard or state change at a time, and see whether the worlds notice.

Each mutant runs in a process of its own, forked, with the protocol and spec modules imported anew and the
spoilt one in its place. It is noticed at the first violation, error or refusal, or when it hangs. A
mutant that nothing notices is a survivor: either a world is missing, or the mutant is equivalent, and
then `survivors.txt` says why.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import json
import os
import signal
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

from .mutants import MODULES, Mutant, mutants

WALKS = 600
LIMIT_S = 120
_NOTICED, _SURVIVED = 0, 7


@dataclass
class Mutated:
    """What became of the mutants."""

    mutants: int = 0
    noticed: int = 0
    survivors: list[str] = field(default_factory=list)


def mutate(modules: Sequence[str] = MODULES, results: Path | None = None, progress: Any = print) -> Mutated:
    """Try every mutant of `modules`, two at a time; with `results`, go on where an earlier run stopped."""
    known: dict[str, bool] = json.loads(results.read_text()) if results is not None and results.exists() else {}
    mutated = Mutated()
    everyone = [mutant for module in modules for mutant in mutants(module)]
    for batch in _pairs(everyone):
        outcome = _tried([mutant for mutant in batch if _key(mutant) not in known])
        known |= outcome
        for mutant in batch:
            mutated.mutants += 1
            if known[_key(mutant)]:
                mutated.noticed += 1
            else:
                mutated.survivors.append(mutant.name)
                progress(f"survivor: {mutant.name}")
        if results is not None and outcome:
            results.write_text(json.dumps(known))
        if mutated.mutants % 50 < len(batch):
            progress(f"{mutated.mutants} of {len(everyone)} mutants, {mutated.noticed} noticed")
    return mutated


def _pairs(everyone: list[Mutant]) -> Iterable[list[Mutant]]:
    workers = os.cpu_count() or 1
    return (everyone[i : i + workers] for i in range(0, len(everyone), workers))


def _key(mutant: Mutant) -> str:
    import hashlib

    return f"{mutant.name} {hashlib.sha256(mutant.source.encode()).hexdigest()[:12]}"


def _tried(batch: list[Mutant]) -> dict[str, bool]:
    children = {_start(mutant): mutant for mutant in batch}
    outcome = {}
    for pid, mutant in children.items():
        _, status = os.waitpid(pid, 0)
        outcome[_key(mutant)] = os.waitstatus_to_exitcode(status) != _SURVIVED
    return outcome


def _start(mutant: Mutant) -> int:
    pid = os.fork()
    if pid:
        return pid
    signal.alarm(LIMIT_S)  # A mutant that hangs is noticed: the signal ends it.
    code = _NOTICED
    try:
        code = _SURVIVED if _survives(mutant) else _NOTICED
    except BaseException:
        code = _NOTICED
    finally:
        os._exit(code)


def _survives(mutant: Mutant) -> bool:
    for name in [name for name in sys.modules if name.startswith(("flux.protocols", "flux.spec"))]:
        del sys.modules[name]
    sys.meta_path.insert(0, _Spoiler(mutant))
    walks = importlib.import_module("flux.spec.walk")
    check = importlib.import_module("flux.spec.check")
    explore = importlib.import_module("flux.spec.explore")
    for seed in range(WALKS // 4):
        if walks.walk(seed).violation is not None:
            return False
    for scenario in check.QUICK.values():
        if explore.Explorer(scenario).run().violation is not None:
            return False
    return all(walks.walk(seed).violation is None for seed in range(WALKS // 4, WALKS))


class _Spoiler(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Imports the spoilt module in place of the good one."""

    def __init__(self, mutant: Mutant) -> None:
        self._mutant = mutant

    def find_spec(self, name: str, path: Any, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        if name != f"flux.protocols.{self._mutant.module}":
            return None
        return importlib.util.spec_from_loader(name, self)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        exec(compile(self._mutant.source, f"<{self._mutant.name}>", "exec"), module.__dict__)
