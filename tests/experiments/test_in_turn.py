"""The comparison of two variants by CPU: its interval, and one pair of short runs."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest

from experiments.bench.in_turn import interval

ROOT = Path(__file__).parent.parent.parent


@pytest.mark.parametrize("count", [5, 15, 40])
def test_the_median_lies_in_the_interval_with_nine_tenths_and_in_the_next_narrower_one_with_less(count: int) -> None:
    low, high = interval([float(n) for n in range(count)])
    outside = int(low)
    assert high == count - 1 - outside

    def covered(outside: int) -> float:
        return 1 - 2 * sum(math.comb(count, k) for k in range(outside + 1)) / 2**count

    assert covered(outside) >= 0.9 > covered(outside + 1)


def test_a_pair_of_runs_gives_their_ratio() -> None:
    call = [sys.executable, "-m", "experiments.bench.in_turn", ".", ".", "--second", "balance=off", "--rows", "131072"]
    done = subprocess.run([*call, "--pairs-max", "1", "--json"], cwd=ROOT, capture_output=True, text=True, check=True)
    figures = json.loads(done.stdout)
    [pair] = figures["taken"]
    assert figures["pairs"] == 1 and figures["median"] == pytest.approx(pair["second_cpu_s"] / pair["first_cpu_s"])
