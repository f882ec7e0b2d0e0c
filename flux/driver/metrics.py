"""Metrics: a run in numbers at one moment, as values of a program, as JSON, and in the text format of Prometheus."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

__all__ = ["CONTENT_TYPE", "Family", "Metrics", "Sample"]

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


@dataclass(frozen=True)
class Sample:
    """One value of a metric."""

    labels: Mapping[str, str]
    value: float


@dataclass(frozen=True)
class Family:
    """A metric: its name, whether it is a "counter", which never falls, or a "gauge", and its samples."""

    name: str
    kind: str
    help: str
    samples: list[Sample] = field(default_factory=list)


class Metrics(dict[str, Family]):
    """What `run.metrics()` returns: the metrics by name; docs/metrics.rst explains each.

    >>> taken = Metrics([Family("flux_rows_total", "counter", "Rows.", [Sample({"step": "Words"}, 7)])])
    >>> taken.total("flux_rows_total", step="Words")
    7
    >>> print(taken.to_text(), end="")
    # HELP flux_rows_total Rows.
    # TYPE flux_rows_total counter
    flux_rows_total{step="Words"} 7
    """

    def __init__(self, families: Iterable[Family]) -> None:
        super().__init__({family.name: family for family in families})

    def total(self, name: str, **labels: str) -> float:
        """Return the sum of the samples of a metric that have these labels."""
        found = [each.value for each in self[name].samples if labels.items() <= each.labels.items()]
        return sum(found)

    def to_dict(self) -> dict[str, Any]:
        """Return the metrics as JSON types."""
        return {
            name: {
                "type": family.kind,
                "help": family.help,
                "samples": [{"labels": dict(each.labels), "value": each.value} for each in family.samples],
            }
            for name, family in self.items()
        }

    @staticmethod
    def from_dict(document: Mapping[str, Any]) -> Metrics:
        """Return the metrics that `to_dict` gave."""
        return Metrics(
            Family(name, each["type"], each["help"], [Sample(s["labels"], s["value"]) for s in each["samples"]])
            for name, each in document.items()
        )

    def to_text(self) -> str:
        """Return the metrics in the text format of Prometheus, version 0.0.4."""
        lines: list[str] = []
        for name, family in self.items():
            lines.append(f"# HELP {name} {_escaped(family.help)}")
            lines.append(f"# TYPE {name} {family.kind}")
            lines += [f"{name}{_labels(each.labels)} {each.value!r}" for each in family.samples]
        return "".join(f"{line}\n" for line in lines)


def _labels(labels: Mapping[str, str]) -> str:
    if not labels:
        return ""
    pairs = ",".join(f'{name}="{_escaped(value, quotes=True)}"' for name, value in labels.items())
    return f"{{{pairs}}}"


def _escaped(text: str, quotes: bool = False) -> str:
    escaped = text.replace("\\", "\\\\").replace("\n", "\\n")
    return escaped.replace('"', '\\"') if quotes else escaped
