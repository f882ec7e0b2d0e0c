"""Aggregates in plain Python, to compare those of the library with; shared by the tests here."""

from __future__ import annotations

import math
import statistics
from typing import Any

import numpy as np


def aggregated(values: list[Any]) -> tuple[Any, ...]:
    """Rows, count, sum, min, max, avg, variance, median, 90th percentile, and max less min."""
    x = [value for value in values if value is not None]
    if not x:
        return (len(values), 0, None, None, None, None, None, None, None, -1.0)
    floats, bad = [float(value) for value in x], any(value != value for value in x)
    total = x[0]
    for value in x[1:]:
        total += value
    finite = all(math.isfinite(value) for value in floats)
    variance = (statistics.variance(x) if finite else math.nan) if len(x) > 1 else None
    with np.errstate(invalid="ignore"):
        low, high = (math.nan, math.nan) if bad else (min(x), max(x))
        quantiles = [math.nan if bad else float(np.quantile(floats, q)) for q in (0.5, 0.9)]
    return (len(values), len(x), total, low, high, total / len(x), variance, *quantiles, high - low)


def alike(found: Any, expected: Any) -> bool:
    if isinstance(found, float) and isinstance(expected, float | int):
        if math.isnan(found) or math.isnan(expected) or math.isinf(found):
            return repr(found) == repr(float(expected)) or not math.isfinite(expected)
        return math.isclose(found, expected, rel_tol=1e-9, abs_tol=1e-3)
    return found == expected
