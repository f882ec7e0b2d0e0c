"""Memory that a process has freed is kept for its next arrays, unless the user has set how it is to be done."""

from __future__ import annotations

import os
import subprocess
import sys

PROGRAM = """
import resource
import numpy as np
from flux.system.memory import keep_freed_memory

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(20):
        kept = [np.ones(100_000) for _ in range(4)]
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

is_kept = keep_freed_memory()
faults()
print(is_kept, faults())
"""


def faults_of(**environment: str) -> tuple[str, int]:
    said = subprocess.run(
        [sys.executable, "-c", PROGRAM], env={**os.environ, **environment}, capture_output=True, text=True, check=True
    )
    kept, faults = said.stdout.split()
    return kept, int(faults)


def test_arrays_get_memory_that_was_freed() -> None:
    kept, faults = faults_of()
    assert kept == "True" and faults < 200  # Of the 15,000 pages that they have.


def test_what_the_user_has_set_stays() -> None:
    kept, faults = faults_of(MALLOC_MMAP_THRESHOLD_="131072", MALLOC_TRIM_THRESHOLD_="131072")
    assert kept == "False" and faults > 10_000
