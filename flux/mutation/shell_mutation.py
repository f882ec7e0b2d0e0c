"""Shell mutation: alter one statement or condition of the code around the machines, and see what notices it.

The mutants are made as those of the machines (`flux.spec.mutants`). Each runs in a fork that imports Flux anew with the
mutated module, and runs the tests that execute the altered line, and then simulated worlds, until one fails. A mutant
that hangs is noticed too. There are thousands, so a sample is tried, drawn by a seed.

A survivor is not yet a gap: much of the shell words errors, counts for reports, or serves runs on several machines,
which no world has. What argues for the survivors that are known is in `shell_survivors.txt`.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from pathlib import Path

from ..spec.mutants import Mutant
from ..spec.mutate import MutationResult
from .module_mutants import file_of, mutate_modules, put_in_place
from .unit_tests import UnitTests, pass_here

__all__ = ["SHELL_MODULES", "mutate_shell"]

SHELL_MODULES = (
    "controller.controller_process",
    "controller.failure_detector",
    "controller.view_journal",
    "driver.local.driver",
    "driver.local.supervisor",
    "exchange.channel_mask",
    "exchange.lane_frames",
    "exchange.merge",
    "exchange.stage_input",
    "site.egress.egress_process",
    "site.egress.sink_journal",
    "site.egress.sink_writer",
    "site.heartbeat",
    "site.ingress.ingress_process",
    "site.ingress.sequence_journal",
    "site.ingress.source_input",
    "site.peers",
    "site.shell",
    "site.state_transfer.copy_transfer",
    "site.state_transfer.partition_copy",
    "site.worker",
    "sinks.jsonl",
    "spark.source.staging",
    "spark.source.staging_store",
    "storage.disk",
    "storage.journal",
    "wire.connections",
    "wire.handshake",
    "wire.link",
    "wire.sockets",
)
_TESTS = (
    "tests/controller",
    "tests/driver",
    "tests/exchange",
    "tests/site",
    "tests/storage",
    "tests/wire",
    "tests/sinks",
    "tests/spark/test_staging.py",
)
_ARGUED = Path(__file__).parent / "shell_survivors.txt"
_BUDGET_S = 10.0  # Of tests.
_WORLDS = 30  # Of other seeds than the tests have.
_FIRST_SEED = 50_000
_STAGING_WORLDS = range(_FIRST_SEED + 9, _FIRST_SEED + 309, 10)


def mutate_shell(
    modules: Sequence[str], sample: int | None, seed: int, results: Path | None, progress: Callable[[str], None]
) -> MutationResult:
    """Try the mutants of `modules`, or a random sample of so many; with `results`, resume an earlier run."""
    return mutate_modules(modules, sample, seed, results, progress, tests=_TESTS, survives=_survives, argued=_ARGUED)


def _survives(tests: UnitTests, mutant: Mutant) -> bool:
    """In a fork: import Flux with the mutant, run the tests that execute it, and worlds."""
    chosen = tests.executing(file_of(mutant.module), mutant.lines, _BUDGET_S)
    put_in_place(mutant)
    if not pass_here(chosen):
        return False
    run_world = importlib.import_module("flux.simulation.swarm").run_world
    is_staging = mutant.module.startswith("spark.")
    seeds = _STAGING_WORLDS if is_staging else range(_FIRST_SEED, _FIRST_SEED + _WORLDS)
    return not any(run_world(seed).violations for seed in seeds)
