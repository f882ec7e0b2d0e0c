"""What a key is made of does not matter: operators tell of keys of any type what they tell of as many integers.

Each key stands for an integer, null for null; the rows are otherwise the same, and so must the output be, but for the
partitions, and with them the order of what one mark causes.
"""

from __future__ import annotations

import datetime
import math
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from experiments.dmz import Sessions
from flux.model.event_time import EventTime
from flux.operators import CountWindow, Distinct, GroupBy, SessionWindow, TimeWindow, TopK
from tests.operators.feeding import step_of
from tests.operators.timeline import Timeline, played

ROWS = 60
KINDS: dict[Any, list[Any]] = {
    pa.int8(): [-128, 0, 127],
    pa.uint64(): [0, 2**63, 2**64 - 1],
    pa.float16(): [np.float16(1.5), np.float16(math.nan), np.float16(-math.inf)],
    pa.float64(): [5e-324, math.nan, 1e308],
    pa.bool_(): [True, False],
    pa.string(): ["", "a", "a\0"],
    pa.large_string(): ["ä", "a", "longer than a word"],
    pa.binary(): [b"", b"\0", b"\xff"],
    pa.binary(3): [b"\0\0\0", b"abc", b"ab\0"],
    pa.decimal128(9, 2): [Decimal("1.00"), Decimal("-1.00"), Decimal("0.01")],
    pa.date32(): [datetime.date(1969, 12, 31), datetime.date(1970, 1, 1)],
    pa.timestamp("ns", "Asia/Kolkata"): [-1, 0, 2**62],
    pa.time32("s"): [datetime.time(0), datetime.time(23, 59, 59)],
    pa.duration("us"): [datetime.timedelta(-1), datetime.timedelta(0)],
}
SUMS = {"n": "count", "s": ("sum", "x"), "v": ("variance", "x"), "m": ("max", "x")}
WINDOW = {"time": "ts", "size_ms": 30}
OPERATORS: list[tuple[Any, Mapping[str, Any]]] = [
    (TimeWindow, {**WINDOW, "slide_ms": 7, "aggregates": SUMS | {"q": ("quantile", "x", 0.3)}}),
    (SessionWindow, {"time": "ts", "gap_ms": 9, "aggregates": SUMS}),
    (SessionWindow, {"time": "ts", "gap_ms": 9, "aggregates": SUMS | {"q": ("quantile", "x", 0.3)}}),
    (GroupBy, {"aggregates": SUMS}),
    (GroupBy, {"aggregates": SUMS, "emit": "watermarks"}),
    (TopK, {"k": 2, "by": "x"}),
    (TopK, {"k": 2, "by": "x", "largest": False, **WINDOW}),
    (Distinct, {"on": ("src", "dst")}),
    (Distinct, WINDOW),
    (CountWindow, {"history": 3, "value": "x"}),
    (Sessions, {}),
]


def rows_of(src: pa.Array) -> pa.RecordBatch:
    draw = np.random.default_rng(7)
    packets = draw.choice(["S1", "E.", "x."], ROWS)
    return pa.record_batch(
        {
            "src": src,
            "dst": draw.integers(0, 2, ROWS),
            "ts": np.arange(ROWS) * 2 + draw.integers(-20, 20, ROWS),
            "x": pa.array(draw.integers(-9, 9, ROWS), mask=draw.random(ROWS) < 0.2),
            "data": pa.array([packet.encode() for packet in packets.tolist()]),
        }
    )


def result(operator: Any, parameters: Mapping[str, Any], src: pa.Array, numbers: Mapping[Any, int | None]) -> Any:
    """What comes out at each mark and row, in any order, with the number of each key; and how many rows were late."""
    rows = rows_of(src)
    timeline = Timeline.of(rows, ("src",), EventTime(column="ts", lateness_ms=10, every_ms=40))
    step = step_of(operator, rows.schema, ("src",), **parameters)
    place = step.output.names.index("src")
    found, late = played(step, timeline, [20, 40], [0, 1, 2, 3])
    plain = [(sn, (*row[:place], numbers[repr(row[place])], *row[place + 1 :])) for sn, row in found]
    return sorted(plain, key=repr), late


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_operators_tell_of_keys_of_any_type_what_they_tell_of_integers(kind: Any) -> None:
    values = [None, *KINDS[kind]]
    drawn = np.random.default_rng(11).integers(0, len(values), ROWS).tolist()
    keys = pa.array([values[n] for n in drawn], kind)
    integers = pa.array([n or None for n in drawn], pa.int64())
    numbers = {repr(key): number for key, number in zip(keys.to_pylist(), integers.to_pylist(), strict=True)}
    of_integers = {repr(number): number for number in integers.to_pylist()}
    for operator, parameters in OPERATORS:
        found = result(operator, parameters, keys, numbers)
        assert found[0]
        assert found == result(operator, parameters, integers, of_integers), operator.__name__
