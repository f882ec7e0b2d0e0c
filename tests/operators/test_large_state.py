"""State of more keys than a table has room for at first comes to a site that has none of them yet."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from experiments.dmz import Sessions
from flux.model.batch import Batch
from flux.model.punctuation import Punctuation
from flux.operators import CountWindow, Distinct, GroupBy, SessionWindow, TimeWindow, TopK
from tests.operators.feeding import moved, opened, step_of, tuples

KEYS = 3_000
NUMBERS = np.arange(KEYS)
ROWS = pa.record_batch(
    {
        "src": NUMBERS,
        "dst": NUMBERS,
        "ts": NUMBERS % 50,
        "dur": NUMBERS * 2**40 - 2**50,
        "data": pa.array([b"S1"] * KEYS, pa.binary(2)),
    }
)
ENDS = ROWS.set_column(4, "data", pa.array([b"E."] * KEYS, pa.binary(2)))
AGGREGATES = {"total": ("sum", "dur"), "mean": ("avg", "dur"), "var": ("variance", "dur"), "most": ("max", "dur")}
WINDOW = {"time": "ts", "size_ms": 20}


@pytest.mark.parametrize(
    ("operator", "parameters"),
    [
        (TimeWindow, {**WINDOW, "aggregates": AGGREGATES | {"median": ("quantile", "dur", 0.5)}}),
        (TimeWindow, {**WINDOW, "slide_ms": 10, "aggregates": AGGREGATES}),
        (SessionWindow, {"time": "ts", "gap_ms": 20, "aggregates": AGGREGATES}),
        (SessionWindow, {"time": "ts", "gap_ms": 20, "aggregates": {"median": ("quantile", "dur", 0.5)}}),
        (GroupBy, {"aggregates": AGGREGATES}),
        (GroupBy, {"aggregates": AGGREGATES, "emit": "watermarks"}),
        (TopK, {"k": 2, "by": "dur"}),
        (TopK, {"k": 2, "by": "dur", **WINDOW}),
        (Distinct, {}),
        (Distinct, WINDOW),
        (CountWindow, {}),
        (Sessions, {}),
    ],
)
def test_many_keys_come_to_a_site_that_had_none(operator: Any, parameters: dict[str, Any]) -> None:
    step = step_of(operator, ROWS.schema, ("src",), **parameters)
    partition = np.zeros(KEYS, np.uint16)

    def result(moves: bool) -> list[Any]:
        old, new = opened(step), opened(step, [])
        found = tuples(old.process(Batch(ROWS, NUMBERS, None, partition)))
        if moves:
            moved(old, new, 0)
            old = new
        found += tuples(old.process(Batch(ENDS, NUMBERS + KEYS, None, partition)))
        return found + tuples(old.punctuate(Punctuation(2 * KEYS, "end", None, frozenset({0}))))

    assert len(result(moves=False)) >= KEYS
    assert result(moves=True) == result(moves=False)
