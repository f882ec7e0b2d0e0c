"""What Prometheus's own parser makes of the metrics of a run; shared by the tests."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

from prometheus_client.parser import text_string_to_metric_families

Series: TypeAlias = tuple[str, tuple[tuple[str, str], ...]]  # A name, and its labels.


def parsed(text: str) -> dict[Series, float]:
    """The value of each series."""
    found: dict[Series, float] = {}
    for family in text_string_to_metric_families(text):
        assert family.type in ("counter", "gauge") and family.documentation, family
        for sample in family.samples:
            series = sample.name, tuple(sorted(sample.labels.items()))
            assert series not in found, f"{series} is there twice"
            found[series] = sample.value
    return found


def total(values: Mapping[Series, float], name: str, **labels: str) -> float:
    """The sum of the series of that name with these labels."""
    return sum(value for (of, has), value in values.items() if of == name and labels.items() <= dict(has).items())


def assert_nothing_fell(before: Mapping[Series, float], after: Mapping[Series, float]) -> None:
    """Counters without the label `site` are still there, and no smaller."""
    for (name, labels), value in before.items():
        if name.endswith("_total") and "site" not in dict(labels):
            assert after.get((name, labels), -1) >= value, f"{name} {labels} fell from {value:,}"


def kinds(metrics: Mapping[str, Any]) -> dict[str, str]:
    """The type of each metric."""
    return {name: family.kind for name, family in metrics.items()}
