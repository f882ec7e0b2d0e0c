"""Errors a user can cause: what the tests of them share.

A case is a function that errs, the kind of error, and what its text must hold; the last of that is the advice.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest

import flux

ROWS = [{"k": n % 13, "v": n} for n in range(300)]


class Counts(flux.KeyedOperator):
    output: ClassVar = {"k": "int64", "n": "int64"}

    def on_tuple(self, key: Any, row: Any, state: Any) -> Any:
        n = (state or 0) + 1
        return n, [{"k": row.k, "n": n}]


def flow_of(operator: Any = Counts, source: Any = None, sink: Any = None) -> flux.Dataflow:
    flow = flux.Dataflow("wrong")
    rows = flow.source(flux.sources.Table(ROWS) if source is None else source)
    rows.exchange("k", partitions=8).apply(operator).sink(flux.sinks.Collect() if sink is None else sink)
    return flow


def keyed(on_tuple: Callable[..., Any], **attributes: Any) -> type[Any]:
    methods = {"on_tuple": lambda self, *args: on_tuple(*args), "output": {"k": "int64"}}
    return type("Mine", (flux.KeyedOperator,), methods | attributes)


def batched(process: Callable[..., Any], **attributes: Any) -> type[Any]:
    methods = {"process": lambda self, batch: process(batch), "output": {"k": "int64"}}
    return type("Mine", (flux.Operator,), methods | attributes)


@dataclass(frozen=True)
class Case:
    """What a user does, and what it says."""

    do: Callable[[Path], Any]
    kind: type[flux.FluxError]
    says: tuple[str, ...]


class Cases(dict[str, Case]):
    """Cases by name."""

    def add(self, kind: type[flux.FluxError], *says: str) -> Callable[[Callable[[Path], Any]], None]:
        def named(do: Callable[[Path], Any]) -> None:
            self[do.__name__] = Case(do, kind, says)

        return named


def check(wrong: Case, tmp_path: Path) -> None:
    """Err, and see what is said of it."""
    with pytest.raises(wrong.kind) as caught:
        wrong.do(tmp_path)
    assert type(caught.value) is wrong.kind
    text = str(caught.value)
    for part in wrong.says:
        assert part in text, f"{part!r} is not in: {text}"
