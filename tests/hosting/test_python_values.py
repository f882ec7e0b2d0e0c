"""Keys that Python takes for one and are not, and values that Python has no objects for."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import flux
from flux.hosting import host
from flux.model.batch import Batch
from flux.model.operator import KeyedOperator, Operator, Punctuation
from flux.site.row_skipper import RowSkipper
from flux.testing.harness import ship
from flux.types.errors import OperatorError
from tests.operators.feeding import opened, step_of

BERLIN = pa.timestamp("s", "Europe/Berlin")
# 02:30 comes twice in the night in which summer time ends.
FIRST = int(datetime(2021, 10, 31, 0, 30, tzinfo=UTC).timestamp())
SECOND = FIRST + 3_600


class Counts(KeyedOperator):
    output = {"at": "int64", "n": "int64"}  # noqa: RUF012

    def on_tuple(self, key: Any, row: Any, state: Any) -> Any:
        assert key[0] == row[0] and key[0].fold == row[0].fold
        self.set_timer(1_000)
        n = (state or 0) + 1
        return n, [{"at": int(key[0].timestamp()), "n": n}]

    def on_timer(self, key: Any, time: int, state: Any) -> Any:
        assert str(key[0].tzinfo) == "Europe/Berlin"
        return None, [{"at": int(key[0].timestamp()), "n": -state}]


def batch_of(columns: dict[str, Any], first_sn: int = 0) -> Batch:
    rows = pa.record_batch(columns)
    sn = np.arange(first_sn, first_sn + rows.num_rows)
    return Batch(rows, sn, None, np.zeros(rows.num_rows, np.uint16))


def times(*seconds: int) -> dict[str, Any]:
    return {"t": pa.array(seconds).cast(BERLIN)}


def found(batch: Batch | None) -> list[tuple[Any, ...]]:
    return [] if batch is None else [tuple(row.values()) for row in batch.arrow.to_pylist()]


def test_two_instants_that_clocks_show_alike_are_two_keys_also_after_a_move() -> None:
    step = step_of(Counts, pa.schema({"t": BERLIN}), ("t",))
    here, there = opened(step, [0]), opened(step, [])
    assert found(here.process(batch_of(times(SECOND, FIRST, SECOND)))) == [(SECOND, 1), (FIRST, 1), (SECOND, 2)]
    ship(here, 0, there)
    assert found(there.process(batch_of(times(FIRST, SECOND), 3))) == [(FIRST, 2), (SECOND, 3)]
    fired = there.punctuate(Punctuation(5, "end", None))
    assert found(fired) == [(FIRST, -2), (SECOND, -3)], "by time, and then by key"


class Tally:
    """A logic of bytewax that counts."""

    def __init__(self, snapshot: int | None) -> None:
        self.n = snapshot or 0

    def on_item(self, value: Any) -> tuple[list[Any], bool]:
        self.n += 1
        return [{"n": self.n}], False

    def snapshot(self) -> int:
        return self.n


def test_they_are_two_keys_of_a_logic_of_bytewax_too() -> None:
    tally = flux.wrap_bytewax(Tally, output={"t": BERLIN, "n": "int64"})
    step = step_of(tally, pa.schema({"t": BERLIN}), ("t",))
    here, there = opened(step, [0]), opened(step, [])
    here.process(batch_of(times(SECOND, FIRST, SECOND)))
    ship(here, 0, there)
    out = there.process(batch_of(times(FIRST, SECOND), 3))
    assert out is not None
    assert out.arrow["t"].cast(pa.int64()).to_pylist() == [FIRST, SECOND]
    assert out.arrow["n"].to_pylist() == [2, 3]


class Total(KeyedOperator):
    output = {"n": "int64"}  # noqa: RUF012

    def on_tuple(self, key: Any, row: Any, state: Any) -> Any:
        n = (state or 0) + row.n
        return n, [{"n": n}]


class ByRows(Operator):
    output = {"n": "int64"}  # noqa: RUF012

    def open(self, context: Any) -> None:
        self.n = 0

    def process(self, batch: Batch) -> Batch | None:
        out = []
        for row in batch.rows():
            self.n += row.n
            out.append(self.n)
        return batch.emit({"n": out})

    def get_state(self) -> Any:
        return self.n

    def install_state(self, state: Any) -> None:
        self.n = state


class Wrapped:
    def __init__(self) -> None:
        self.n = 0

    def update(self, row: dict[str, Any]) -> dict[str, int]:
        self.n += row["n"]
        return {"n": self.n}

    def getState(self) -> int:
        return self.n

    def installState(self, state: int) -> None:
        self.n = state


class Sum(Tally):
    def on_item(self, value: Any) -> tuple[list[Any], bool]:
        self.n += value["n"]
        return [{"n": self.n}], False


OPERATORS = {
    "keyed": Total,
    "by rows": ByRows,
    "wrapped": flux.wrap(Wrapped, process="update", output={"n": "int64"}),
    "bytewax": flux.wrap_bytewax(Sum, emit=lambda key, value: value, output={"n": "int64"}),
}
# What Python cannot hold, and how it is told.
FAR = {
    "timestamp": (pa.timestamp("us"), 2**62, "4611686018427387904"),
    "zoned": (BERLIN, 2**38, "10680-"),
    "date": (pa.date32(), 3_663_382, "12000-01-01"),
    "duration": (pa.duration("s"), 2**62, "4611686018427387904"),
    "time": (pa.time64("ns"), 1_001, "00:00:00.000001001"),
    "no time": (pa.timestamp("ns"), -(2**63), "1677-09-21"),
    "no duration": (pa.duration("ns"), -(2**63), "-9223372036854775808"),
}


def with_far(which: str, numbers: Sequence[Any] = (1, 2, 4, 8)) -> dict[str, Any]:
    """Rows of which the third has a value that Python cannot hold, in a column that nobody looks at."""
    kind, far, _ = FAR[which]
    width = pa.int32() if kind.bit_width == 32 else pa.int64()
    return {"k": [7] * 4, "n": list(numbers), "x": pa.array([0, 0, far, 0], width).cast(kind)}


@pytest.mark.parametrize("which", FAR)
@pytest.mark.parametrize("form", OPERATORS)
def test_a_value_that_python_cannot_hold_is_told_with_its_row(form: str, which: str) -> None:
    batch = batch_of(with_far(which), 100)
    hosted = opened(step_of(OPERATORS[form], batch.arrow.schema, ("k",)), [0])
    with pytest.raises(OperatorError) as raised:
        hosted.process(batch)
    error = raised.value
    assert (error.step, error.partition, error.row) == ("step", 0, 102)
    said = str(error)
    assert "column 'x'" in said and FAR[which][2] in said and 'on_error="skip"' in said


@pytest.mark.parametrize("which", FAR)
@pytest.mark.parametrize("key", ["k", "x"])
@pytest.mark.parametrize("form", OPERATORS)
def test_the_row_of_a_value_that_python_cannot_hold_is_skipped_alone(form: str, key: str, which: str) -> None:
    batch = batch_of(with_far(which), 100)
    skipping = RowSkipper(host(step_of(OPERATORS[form], batch.arrow.schema, (key,))))
    skipping.open([0])
    assert found(skipping.process(batch)) == [(1,), (3,), (11,)]
    counts, [row] = skipping.take_skipped()
    assert counts == {0: 1} and row.sn == 102
    assert row.shown is not None and FAR[which][2] in row.shown[0] and "column 'x'" in row.shown[1]


def test_an_error_of_a_row_before_it_comes_first() -> None:
    """So it is whether they come in one batch or in several."""
    batch = batch_of(with_far("date", ["1", "2", "4", "8"]), 100)
    hosted = opened(step_of(Total, batch.arrow.schema, ("k",)), [0])
    with pytest.raises(OperatorError, match="TypeError") as raised:
        hosted.process(batch)
    assert raised.value.row == 100 and "the row was {'k': 7, 'n': '1'" in str(raised.value)


WITHOUT_PANDAS = """
import sys
class No:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "pandas":
            raise ModuleNotFoundError("No module named 'pandas'", name="pandas")
sys.meta_path.insert(0, No())
from tests.hosting.test_python_values import Total, batch_of, opened, pa, step_of
batch = batch_of({"k": [7] * 3, "n": [1, 2, 4], "x": pa.array([1_000, 1_001, 0], pa.timestamp("ns"))})
opened(step_of(Total, batch.arrow.schema, ("k",)), [0]).process(batch)
"""


def test_without_pandas_nanoseconds_are_told_with_their_row() -> None:
    here = Path(__file__).parent.parent.parent
    command = [sys.executable, "-c", WITHOUT_PANDAS]
    ran = subprocess.run(command, cwd=here, capture_output=True, text=True, timeout=120, check=False)
    last = ran.stderr.strip().splitlines()[-1]
    assert "OperatorError: step 'step', partition 0, row 1: " in last
    assert "column 'x'" in last and "00:00:00.000001001" in last and "pandas" in last
