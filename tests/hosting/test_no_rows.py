"""No operator is ever given a batch without rows, whatever its form and whatever stands before it."""

# ruff: noqa: RUF012 - operators declare `output` as users do, without ClassVar.

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import flux
from flux.hosting import host
from flux.model.batch import Batch
from flux.model.operator import OperatorStep
from flux.model.stateless import Filter, FlatMap, Map, Select

ROWS = pa.schema([("k", "int64"), ("v", "int64")])


class Refusing:
    """Raises for a batch without rows; passes on what is odd, which may be nothing."""

    output = {"v": "int64"}

    def process(self, batch: Any) -> Any:
        if len(batch) == 0:
            raise AssertionError("a batch without rows")
        odd = np.flatnonzero(batch["v"] % 2)
        return batch.emit({"v": batch["v"][odd]}, origin=odd)


class PerPartition(Refusing, flux.Operator):
    pass


class Pooled(Refusing, flux.PooledOperator):
    def get_partition_state(self, pid: int) -> None:
        return None

    def drop_partition(self, pid: int) -> None:
        pass


def refuse(batch: Any) -> Any:
    raise AssertionError(f"a batch of {len(batch)} rows")


FORMS: dict[str, Any] = {
    "Operator": PerPartition,
    "PooledOperator": Pooled,
    "map": lambda: Map(refuse, batch=True),
    "filter": lambda: Filter(refuse, batch=True),
    "flat_map": lambda: FlatMap(refuse, batch=True),
    "select": lambda: Select({"v": refuse}),
}


@pytest.mark.parametrize("form", FORMS)
def test_a_batch_without_rows_does_not_reach_an_operator(form: str) -> None:
    hosted = host(OperatorStep(FORMS[form], {}, form, ("k",), 2, 0, None))
    hosted.open([0, 1])
    none = Batch(pa.RecordBatch.from_pylist([], ROWS), np.zeros(0, np.int64), None, np.zeros(0, np.uint16))
    assert hosted.process(none) is None


def test_nothing_comes_of_batches_that_a_source_or_a_step_has_emptied() -> None:
    given = [{"k": n % 3, "v": n} for n in range(40)]
    flow = flux.Dataflow("sparse")
    batches = [pa.RecordBatch.from_pylist(rows, ROWS) for rows in ([], given[:20], [], given[20:], [])]
    stream = flow.source(flux.sources.Table(batches))
    stream = stream.filter(lambda batch: batch["v"] >= 30, batch=True)  # Of the first batch nothing remains.
    stream = stream.exchange("k", partitions=4).apply(PerPartition).apply(PerPartition).apply(Pooled)
    stream.sink(flux.sinks.Collect())
    assert flow.run(sites=2).table.to_pydict() == {"v": list(range(31, 40, 2))}
