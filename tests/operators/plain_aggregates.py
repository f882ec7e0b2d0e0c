"""The aggregates of a column `x` that tests ask for, and the same in plain Python to compare with; shared by tests."""

from __future__ import annotations

import math
import statistics
from fractions import Fraction
from typing import Any

import numpy as np


def spread(x: Any) -> float:
    """A function of a user's own, of values that may be masked."""
    with np.errstate(invalid="ignore", over="ignore"):
        return float(np.ma.max(x) - np.ma.min(x)) if np.ma.count(x) else -1.0


RUNNING: dict[str, Any] = {
    "rows": "count",
    "n": ("count", "x"),
    "total": ("sum", "x"),
    "least": ("min", "x"),
    "most": ("max", "x"),
    "mean": ("avg", "x"),
    "var": ("variance", "x"),
}
# Those for which every value has to be kept.
KEPT: dict[str, Any] = {
    "median": ("quantile", "x", 0.5),
    "p90": ("quantile", "x", 0.9),
    "spread": (spread, "x", "float64"),
}

# Of text `s` and decimals `d`, and values as they are.
OF_ANY_TYPE: dict[str, Any] = {
    "first_text": ("first", "s"),
    "last_float": ("last", "x"),
    "most_text": ("max", "s"),
    "least_decimal": ("min", "d"),
    "decimals": ("sum", "d"),
    "decimal_mean": ("avg", "d"),
    "texts": ("count_distinct", "s"),
    "floats": ("count_distinct", "x"),
}


def aggregated(values: list[Any]) -> tuple[Any, ...]:
    """What `RUNNING | KEPT` tells of values, in that order."""
    x = [value for value in values if value is not None]
    if not x:
        return (len(values), 0, None, None, None, None, None, None, None, -1.0)
    floats, bad = [float(value) for value in x], any(value != value for value in x)
    total = x[0]
    for value in x[1:]:
        total += value
    low, high = (math.nan, math.nan) if bad else (min(x), max(x))
    quantiles = [math.nan if bad else quantile(sorted(floats), fraction) for fraction in (0.5, 0.9)]
    return (len(values), len(x), total, low, high, total / len(x), variance(x), *quantiles, high - low)


def variance(x: list[Any]) -> float | None:
    """That of a sample, exact before it is rounded; NaN once a value is not finite, infinite where floats end."""
    if len(x) < 2:
        return None
    if not all(math.isfinite(value) for value in x):
        return math.nan
    try:
        return float(statistics.variance([Fraction(value) for value in x]))
    except OverflowError:
        return math.inf


def quantile(ordered: list[float], fraction: float) -> float:
    """Between two values in proportion; between an infinity and something else, that infinity."""
    below = math.floor(fraction * (len(ordered) - 1))
    part = fraction * (len(ordered) - 1) - below
    low, high = ordered[below], ordered[min(below + 1, len(ordered) - 1)]
    if part == 0 or low == high:
        return low
    return low + high if math.isinf(low) or math.isinf(high) else low * (1 - part) + high * part


def alike(found: Any, expected: Any) -> bool:
    if isinstance(found, float) and isinstance(expected, float | int):
        if not math.isfinite(found) or not math.isfinite(expected):
            return repr(found) == repr(float(expected))
        return math.isclose(found, expected, rel_tol=1e-9, abs_tol=1e-3)
    return found == expected
