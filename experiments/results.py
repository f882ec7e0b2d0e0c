"""Results of experiments: rows as CSV, with what made them (commit, machine, parameters) beside as JSON."""

from __future__ import annotations

import csv
import json
import os
import platform
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent


def out(experiment: str) -> Path:
    """The directory of an experiment's results; it is not kept in git."""
    directory = ROOT / experiment / "out"
    directory.mkdir(parents=True, exist_ok=True)
    return directory


def write(experiment: str, name: str, rows: Sequence[Mapping[str, Any]], **about: Any) -> Path:
    """Write `rows` as NAME.csv and what made them as NAME.json; return the CSV's path."""
    path = out(experiment) / f"{name}.csv"
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    path.with_suffix(".json").write_text(json.dumps({**made_by(), **about}, indent=2) + "\n")
    return path


def made_by() -> dict[str, Any]:
    """Commit, machine and versions."""
    import numpy
    import pyarrow

    commit = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, cwd=ROOT, check=False)
    return {
        "commit": commit.stdout.strip() or None,
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "python": sys.version.split()[0],
        "pyarrow": pyarrow.__version__,
        "numpy": numpy.__version__,
    }


def spread(values: Sequence[float]) -> dict[str, float]:
    """Median, least and greatest."""
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}


def shown(values: Sequence[float], scale: float = 1.0, digits: int = 2) -> str:
    """Median and range for people."""
    return (
        f"{statistics.median(values) * scale:.{digits}f} "
        f"({min(values) * scale:.{digits}f} to {max(values) * scale:.{digits}f})"
    )
