"""Whole processes in simulated worlds: the same seed gives the same world, and worlds with faults give right output.

It takes about 20 s: whole worlds, two of them in other interpreters.
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from flux.simulation.process_world import ProcessWorld
from flux.simulation.swarm import simulate_worlds

WORLDS_QUICK, WORLDS_LONG = 6, 400
SEED_OF_THE_TRACE = 3
SEED_OF_THE_LONG_SWARM = 10_000


def test_a_world_without_faults_gives_the_output_of_a_plain_loop() -> None:
    result = ProcessWorld(0, faults_max=0).run()
    assert (result.violations, result.faults, result.deaths) == ((), (), 0)


def test_worlds_with_faults_give_right_output() -> None:
    swarm = simulate_worlds(first=100, worlds=WORLDS_QUICK, minutes=None)
    assert not swarm.failures, swarm.failures
    assert swarm.faults > WORLDS_QUICK and swarm.deaths > WORLDS_QUICK, "they had faults"


def traced(seed: int, hash_seed: str) -> bytes:
    call = "import sys; from flux.commands.main import main; sys.exit(main())"
    command = [sys.executable, "-c", call, "spec", "simulate", "--trace", "--seed", str(seed)]
    return subprocess.run(
        command, env={**os.environ, "PYTHONHASHSEED": hash_seed}, stdout=subprocess.PIPE, check=True
    ).stdout


def test_the_same_seed_gives_the_same_trace_byte_for_byte_whatever_the_hash_seed() -> None:
    first, second = (traced(SEED_OF_THE_TRACE, hash_seed) for hash_seed in ("1", "2"))
    assert first == second
    assert first.count(b"\n") > 500 and b"fault: " in first, "it is a world with faults"


def test_two_seeds_give_different_worlds() -> None:
    assert ProcessWorld(1, faults_max=0).run().digest != ProcessWorld(2, faults_max=0).run().digest


@pytest.mark.long
def test_a_swarm_of_worlds_gives_right_output() -> None:
    swarm = simulate_worlds(first=SEED_OF_THE_LONG_SWARM, worlds=WORLDS_LONG, minutes=None)
    assert not swarm.failures, swarm.failures


@pytest.mark.long
def test_thirty_worlds_have_the_same_digest_twice() -> None:
    for seed in range(30):
        assert ProcessWorld(seed).run().digest == ProcessWorld(seed).run().digest, seed
