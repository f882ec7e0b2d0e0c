"""Keys with times of a zone: in the hour that comes twice there are two of each, to Spark's operators too."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from pyspark.sql import Row
from pyspark.sql.streaming import StatefulProcessor

from flux.hosting import Hosted, host
from flux.model.batch import Batch
from flux.model.operator import OperatorStep, Punctuation, output_of
from flux.spark import pandas_with_state, stateful_processor
from flux.testing.harness import ship

ZONE = "Europe/Berlin"
# 02:30 comes twice in the night in which summer time ends.
SUMMER = datetime(2021, 10, 31, 0, 30, tzinfo=UTC)
WINTER = SUMMER + timedelta(hours=1)
INPUT = pa.schema({"at": pa.timestamp("us", "UTC"), "n": pa.int64()})
OUTPUT = "fold int, clock string, total long"


class Totals(StatefulProcessor):  # type: ignore[misc]  # pyspark is untyped here
    """Value state; the key is shown as the processor is given it."""

    def init(self, handle: Any) -> None:
        self.total = handle.getValueState("total", "total long")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        assert type(key) is tuple and key == (key[0],)
        [total] = self.total.get() if self.total.exists() else (0,)
        total += sum(row.n for row in rows)
        self.total.update((total,))
        yield Row(fold=key[0].fold, clock=f"{key[0]:%H:%M}", total=total)


def totals(key: Any, frames: Any, state: Any) -> Iterator[pd.DataFrame]:
    assert type(key) is tuple and key == (key[0],)
    [total] = state.get if state.exists else (0,)
    total += sum(int(frame.n.sum()) for frame in frames)
    state.update((total,))
    yield pd.DataFrame({"fold": [0], "clock": [f"{key[0]:%H:%M}"], "total": [total]})


def opened(operator: Any) -> Hosted:
    step = OperatorStep(operator, {}, "step", ("at",), 1, 0, output_of(operator, {}, ("at",), INPUT))
    hosted = host(step)
    hosted.open([0])
    return hosted


def micro_batch(hosted: Hosted, sn: int, rows: list[tuple[datetime, int]]) -> list[Any]:
    arrow = pa.RecordBatch.from_pylist([dict(zip(INPUT.names, row, strict=True)) for row in rows], INPUT)
    hosted.process(Batch(arrow, np.arange(sn, sn + len(rows)), None, np.zeros(len(rows), np.uint16)))
    out = hosted.punctuate(Punctuation(sn + len(rows), "batch", 0))
    assert out is not None
    return [tuple(row.values()) for row in out.arrow.to_pylist()]


@pytest.mark.parametrize(
    ("operator", "fold"),
    [
        (stateful_processor(Totals, OUTPUT, "append", "None", time_zone=ZONE), 1),
        (pandas_with_state(totals, OUTPUT, "total long", "append", "NoTimeout", time_zone=ZONE), 0),
    ],
    ids=["processor", "pandas"],
)
def test_two_instants_that_clocks_show_alike_are_two_keys_also_after_a_move(operator: Any, fold: int) -> None:
    here, there = opened(operator), opened(operator)
    first = micro_batch(here, 0, [(SUMMER, 1), (WINTER, 10), (SUMMER, 2)])
    assert first == [(0, "02:30", 3), (fold, "02:30", 10)]
    ship(here, 0, there)
    second = micro_batch(there, 10, [(WINTER, 20), (SUMMER, 4)])
    assert second == [(0, "02:30", 7), (fold, "02:30", 30)]
