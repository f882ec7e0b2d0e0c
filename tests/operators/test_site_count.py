"""The result of an operator of the library is the same on any number of sites, also behind steps that change keys."""

from __future__ import annotations

from typing import Any

import pytest

import flux
from flux.operators import Distinct, GroupBy

ROWS = [{"k": i, "v": i % 4} for i in range(60)]


def remade(operator: Any, sites: int, availability: Any, **parameters: Any) -> list[tuple[Any, ...]]:
    """What comes out where a function has put another key into the rows, which the plan cannot know."""
    flow = flux.Dataflow("remade")
    exchanged = flow.source(flux.sources.Table(ROWS)).exchange("k", partitions=8)
    stream = exchanged.map(lambda row: {"k": row.v}, {"k": "int64"})
    stream.apply(operator, **parameters).sink(flux.sinks.Collect())
    return [tuple(row.values()) for row in flow.run(sites=sites, availability=availability).table.to_pylist()]


@pytest.mark.parametrize(("operator", "parameters"), [(Distinct, {}), (GroupBy, {"aggregates": {"n": "count"}})])
def test_state_is_kept_by_partition_whatever_the_key(operator: Any, parameters: Any) -> None:
    alone = remade(operator, 1, "none", **parameters)
    assert remade(operator, 3, "none", **parameters) == alone
    assert remade(operator, 3, "pairs", **parameters) == alone
