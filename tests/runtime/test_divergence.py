"""An operator whose copies emit different rows ends the run by name; one that is sound never does."""

from __future__ import annotations

import os
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pytest

import flux
from flux.errors import OperatorError
from flux.site.digests import EVERY, Digests
from flux.wire.rows import Rows


class Random(flux.KeyedOperator):
    """Emits something of its own process for one row in a hundred."""

    output: ClassVar = {"v": "int64"}

    def on_tuple(self, key: Any, row: Any, state: Any) -> Any:
        return None, [{"v": os.getpid() if row.v % 100 == 77 else row.v}]


def flow_of(rows: int, operator: Any = Random) -> flux.Dataflow:
    flow = flux.Dataflow("diverging")
    table = pa.table({"k": np.arange(rows) % 50, "v": np.arange(rows)})
    stream = flow.source(flux.sources.Table(table, batch_rows=1_000))
    stream.exchange("k", partitions=4).apply(operator).sink(flux.sinks.Null())
    return flow


@pytest.mark.parametrize("rows", [500, 3 * EVERY])
def test_copies_that_emit_different_rows_end_the_run(rows: int) -> None:
    with pytest.raises(OperatorError, match="not deterministic") as caught:
        flow_of(rows).run(sites=2)
    assert caught.value.step == "Random"
    assert caught.value.partition in range(4)
    assert caught.value.row is not None and 1 <= caught.value.row <= rows


def rows_of(first: int, last: int) -> Rows:
    sn = np.arange(first, last + 1)
    user = pa.record_batch({"v": sn * 7, "s": pa.array([f"s{n % 13}" for n in sn])})
    producer = (sn % 3).astype(np.uint16)
    return Rows.of(user, sn, None, producer, np.zeros(len(sn), np.uint16))


@pytest.mark.parametrize("cuts", [(), (1,), (EVERY - 1, EVERY, EVERY + 1), (5, 70_000, 130_000)])
def test_a_digest_does_not_depend_on_how_rows_were_cut(cuts: tuple[int, ...]) -> None:
    last = 2 * EVERY + 10
    whole, cut = Digests(3), Digests(3)
    expected = whole.add(rows_of(1, last), 0, last)
    found = []
    after = 0
    for upto in (*cuts, last):
        found += cut.add(rows_of(after + 1, upto), after, upto)
        after = upto
    assert [position for position, _ in expected] == [EVERY, 2 * EVERY]
    assert [(position, sums.tolist()) for position, sums in found] == [(p, s.tolist()) for p, s in expected]
    assert [cut.get(p) for p in range(3)] == [whole.get(p) for p in range(3)]


def test_a_digest_does_not_depend_on_whether_a_row_stands_beside_one_that_became_several() -> None:
    # Only then has it a `sub`, and it is zero.
    alone, beside = Digests(3), Digests(3)
    rows = rows_of(1, 5)
    alone.add(rows, 0, 5)
    hidden = np.arange(1, 6), np.zeros(5, np.uint64), (np.arange(1, 6) % 3).astype(np.uint16), np.zeros(5, np.uint16)
    beside.add(Rows.of(rows.user, *hidden), 0, 5)
    assert [alone.get(p) for p in range(3)] == [beside.get(p) for p in range(3)]


def test_a_digest_tells_a_value_a_place_and_a_partition_apart() -> None:
    def digests(user: Any, sn: list[int], producer: list[int]) -> list[int]:
        made = Digests(2)
        rows = Rows.of(user, np.array(sn), None, np.array(producer, np.uint16), np.zeros(len(sn), np.uint16))
        made.add(rows, 0, 10)
        return [made.get(0), made.get(1)]

    user = pa.record_batch({"v": [1, 2]})
    seen = [
        digests(user, [1, 2], [0, 0]),
        digests(user, [1, 3], [0, 0]),
        digests(user, [1, 2], [0, 1]),
        digests(pa.record_batch({"v": [2, 1]}), [1, 2], [0, 0]),
    ]
    assert len({tuple(digest) for digest in seen}) == 4
