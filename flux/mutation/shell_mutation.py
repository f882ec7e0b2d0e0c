"""Shell mutation: alter one statement or condition of the code around the machines, and see what notices it.

The mutants are made as those of the machines (`flux.spec.mutants`). Each runs in a fork, which runs the tests and the
simulated worlds that execute the altered line, until one fails. A mutant that hangs is noticed too. There are
thousands, so a sample is tried, drawn by a seed.

A survivor is not yet a gap: much of the shell words errors, counts for reports, or serves runs on several machines,
which no world has. What argues for the survivors that are known is in `shell_survivors.txt`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from ..spec.mutate import MutationResult
from .module_mutants import Trial, mutate_modules

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
_TESTS = {
    "tests": (
        "tests/controller",
        "tests/driver",
        "tests/exchange",
        "tests/site",
        "tests/storage",
        "tests/wire",
        "tests/sinks",
        "tests/spark/test_staging.py",
    ),
    "worlds": ("tests/simulation/worlds.py",),
}
_ARGUED = Path(__file__).parent / "shell_survivors.txt"
_FIRST_TESTS_S = 2.0
_LAST_TESTS_S = 8.0
_WORLDS = 16


def mutate_shell(
    modules: Sequence[str],
    sample: int | None,
    seed: int,
    results: Path | None,
    progress: Callable[[str], None],
    jobs: int | None = None,
) -> MutationResult:
    """Try the mutants of `modules`, or a random sample of so many; with `results`, resume an earlier run."""
    return mutate_modules(
        modules, sample, seed, results, progress, jobs=jobs, groups=_TESTS, survives=_survives, argued=_ARGUED
    )


def _survives(trial: Trial) -> bool:
    """In a fork that runs the mutant: run the fast tests that execute it, worlds that do, and the other tests."""
    return (
        trial.tests_pass("tests", 0, _FIRST_TESTS_S)
        and trial.some_pass("worlds", _WORLDS)
        and trial.tests_pass("tests", _FIRST_TESTS_S, _LAST_TESTS_S)
    )
