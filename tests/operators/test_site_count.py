"""What an operator of the library makes of a row does not depend on which partitions are at the same site.

Rows that are equal in the key are in one partition, and a run makes sure of it. Here they are not, which must not show.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from flux.operators import Distinct, GroupBy
from tests.operators.feeding import PARTITIONS, batch_of, opened, step_of

SCHEMA = pa.schema({"k": pa.int64(), "v": pa.int64()})
ROWS = [(i % 4, i) for i in range(60)]
PARTITION = [i // 3 % PARTITIONS for i in range(60)]


def emitted(sites: list[list[int]], operator: Any, parameters: Any) -> list[tuple[Any, ...]]:
    found = []
    for held in sites:
        hosted = opened(step_of(operator, SCHEMA, ("k",), **parameters), held)
        own = [place for place, pid in enumerate(PARTITION) if pid in held]
        batch = batch_of(ROWS, SCHEMA, PARTITION).take(own)
        made = hosted.process(batch)
        assert made is not None
        found += list(zip(made.sn.tolist(), *(column.to_pylist() for column in made.arrow.columns), strict=True))
    return sorted(found)


@pytest.mark.parametrize(("operator", "parameters"), [(Distinct, {}), (GroupBy, {"aggregates": {"n": "count"}})])
def test_state_is_kept_by_partition_whatever_the_key(operator: Any, parameters: Any) -> None:
    alone = emitted([[0, 1, 2, 3]], operator, parameters)
    assert len(alone) == (len(set(zip(PARTITION, (k for k, _ in ROWS), strict=True))) if operator is Distinct else 60)
    assert emitted([[0, 2], [1, 3]], operator, parameters) == alone
    assert emitted([[0], [1], [2], [3]], operator, parameters) == alone
