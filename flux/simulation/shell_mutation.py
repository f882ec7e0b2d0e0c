"""Shell mutation: alter one statement or condition of the code around the machines, and see whether worlds notice.

The mutants are made as those of the machines (`flux.spec.mutants`). Each runs in a fork that imports Flux anew with the
mutated module, and runs simulated worlds until one fails. A mutant that hangs is noticed too. There are thousands, so
a sample is tried, drawn by a seed.

A survivor is not yet a gap: much of the shell words errors, counts for reports, or serves runs on several machines,
which no world has. What argues for the survivors that are known is in `shell_survivors.txt`.
"""

from __future__ import annotations

import importlib
import random
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from ..spec.mutants import Mutant, count_mutants, mutants_of
from ..spec.mutate import MutationResult, Spoiler, arguments_in, try_mutants

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
_ARGUED = Path(__file__).parent / "shell_survivors.txt"
_WORLDS = 30  # Of other seeds than the tests have.
_FIRST_SEED = 50_000
_STAGING_WORLDS = range(_FIRST_SEED + 9, _FIRST_SEED + 309, 10)


def mutate_shell(
    modules: Sequence[str], sample: int | None, seed: int, results: Path | None, progress: Callable[[str], None]
) -> MutationResult:
    """Try the mutants of `modules`, or a random sample of so many; with `results`, resume an earlier run."""
    places = [(module, number) for module in modules for number in range(count_mutants(_source(module)))]
    if sample is not None and sample < len(places):
        places = random.Random(f"{seed} mutants").sample(places, sample)
    every = [
        mutant
        for module in modules
        for mutant in mutants_of(module, _source(module), {number for each, number in places if each == module})
    ]
    unmutated = Mutant(name="none", module=modules[0], source=_source(modules[0]))
    return try_mutants(every, unmutated, _survives, arguments_in(_ARGUED), results, progress)


def _source(module: str) -> str:
    return (Path(__file__).parent.parent / f"{module.replace('.', '/')}.py").read_text()


def _survives(mutant: Mutant) -> bool:
    """In a fork: import Flux with the mutant, and run worlds."""
    for name in [name for name in sys.modules if name == "flux" or name.startswith("flux.")]:
        del sys.modules[name]
    sys.meta_path.insert(0, Spoiler(mutant, f"flux.{mutant.module}"))
    run_world = importlib.import_module("flux.simulation.swarm").run_world
    is_staging = mutant.module.startswith("spark.")
    seeds = _STAGING_WORLDS if is_staging else range(_FIRST_SEED, _FIRST_SEED + _WORLDS)
    return not any(run_world(seed).violations for seed in seeds)
