"""The CPU seconds of a run, by two variants in turns: two trees of Flux, or two settings of one.

Each run is a process of its own, with the tree first on its path. What counts is the CPU time of that process and of
all that it started, from the start of the flow to its end. A pair is one run of each, the first by turns one and the
other. The figure is the median of the pairs' ratios, second over first. Its 90 % interval is that of the order of the
ratios, whatever their distribution. After PAIRS it goes on until the interval is narrower than WIDTH, up to PAIRS_MAX.

    git worktree add ../before COMMIT
    python -m experiments.bench.in_turn ../before . [--rows N] [--pairs N] [--width W] [--json]
    python -m experiments.bench.in_turn . . --first balance=off --second balance=auto
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from experiments import results

RUN = Path(__file__).with_name("one_run.py")
CONFIDENCE = 0.9


def interval(ratios: Sequence[float]) -> tuple[float, float]:
    """The interval in which the median lies with 90 %: between two of the ratios, by the binomial distribution.

    >>> interval([1.0, 2.0, 3.0, 4.0, 5.0])
    (1.0, 5.0)
    """
    ordered, count = sorted(ratios), len(ratios)
    below, outside = 0.0, 0
    for k in range(count // 2):
        below += math.comb(count, k) / 2**count
        if below > (1 - CONFIDENCE) / 2:
            break
        outside = k
    return ordered[outside], ordered[count - 1 - outside]


def cpu_s(tree: Path, rows: int, options: Sequence[str]) -> float:
    """The CPU seconds of one run by the Flux of `tree`."""
    environment = {**os.environ, "PYTHONPATH": str(tree)}
    call = [sys.executable, str(RUN), str(rows), *options]
    done = subprocess.run(call, cwd=tree, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    found = json.loads(done.stdout)
    assert Path(found["flux"]).resolve().is_relative_to(tree.resolve()), f"{tree} was not used, but {found['flux']}"
    return float(found["cpu_s"])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trees", nargs=2, type=Path, help="the folder of each variant")
    parser.add_argument("--first", nargs="*", default=[], help="NAME=VALUE of flow.start() for the first")
    parser.add_argument("--second", nargs="*", default=[], help="the same for the second")
    parser.add_argument("--rows", type=int, default=40_000_000)
    parser.add_argument("--pairs", type=int, default=15)
    parser.add_argument("--pairs-max", type=int, default=60)
    parser.add_argument("--width", type=float, default=0.03)
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    options = parser.parse_args()
    variants = list(zip(map(Path.resolve, options.trees), (options.first, options.second), strict=True))
    taken: list[dict[str, float]] = []
    ratios: list[float] = []
    while len(ratios) < options.pairs_max:
        order = (0, 1) if len(ratios) % 2 == 0 else (1, 0)
        used = {i: cpu_s(variants[i][0], options.rows, variants[i][1]) for i in order}
        taken.append({"first_cpu_s": used[0], "second_cpu_s": used[1]})
        ratios.append(used[1] / used[0])
        low, high = interval(ratios)
        if not options.json:
            print(
                f"{len(ratios):3}  {used[0]:7.2f} {used[1]:7.2f} CPU s  {ratios[-1]:.3f}  "
                f"median {statistics.median(ratios):.3f}, 90 % {low:.3f} to {high:.3f}",
                flush=True,
            )
        if len(ratios) >= options.pairs and high - low < options.width:
            break
    results.write("bench", "in_turn", taken, input_rows=options.rows, trees=[str(tree) for tree in options.trees])
    if options.json:
        figures = {"median": statistics.median(ratios), "low": low, "high": high, "pairs": len(ratios)}
        print(json.dumps({**figures, "rows": options.rows, "taken": taken}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
