"""Online learning: to the bit what river alone gives, with a model for each station, whoever is killed."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from hypothesis import strategies as st
from river import evaluate, metrics

from experiments.examples import learning
from flux.testing import check_operator
from flux.wire.state_codec import decode, encode
from flux.wire.state_types import StateTypes

from .shapes import SHAPES, run_through_kills, with_columns

ROWS = 300


def told(row: dict[str, Any], *names: str) -> dict[str, Any]:
    """What pandas does not take for missing: neither null nor NaN."""
    return {name: row[name] for name in names if not pd.isna(row[name])}


def in_river(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The hours with a known number of rides, by river's own progressive validation of each station on its own."""
    expected: dict[int, dict[str, Any]] = {}
    for station in {row["station"] for row in rows}:
        own = [i for i, row in enumerate(rows) if row["station"] == station and told(row, "rides")]
        pairs = [(told(rows[i], "degrees", "wind", "is_rush"), rows[i]["rides"]) for i in own]
        validated = evaluate.iter_progressive_val_score(
            pairs, learning.new_model(), error := metrics.MAE(), yield_predictions=True
        )
        for i, step in zip(own, validated, strict=True):
            hour = {name: rows[i][name] for name in ("hour", "station", "rides")}
            expected[i] = {**hour, "predicted": step["Prediction"], "mae": error.get()}
    return [expected[i] for i in sorted(expected)]


def check(found: list[dict[str, Any]], rows: list[dict[str, Any]]) -> None:
    assert [(row["hour"], row["station"]) for row in found] == [(row["hour"], row["station"]) for row in rows]
    known = [row for row in found if told(row, "rides")]
    # repr tells all digits of a float.
    assert list(map(repr, known)) == list(map(repr, in_river(rows)))
    assert all(row["predicted"] is not None for row in found)


MISSING = [None, math.nan]
VALUES = [0.0, -0.0, 1.0, 1e6, -1e-9, *MISSING]
COLUMNS = SHAPES | {
    "one key": {"station": ["only"] * ROWS},
    "all keys distinct": {"station": [str(n) for n in range(ROWS)]},
    "nulls and NaN": {
        "station": [None if n % 5 == 0 else str(n % 5) for n in range(ROWS)],
        "degrees": [VALUES[n * 5 % 7] for n in range(ROWS)],
        "wind": [VALUES[n * 3 % 7] for n in range(ROWS)],
        "is_rush": [(None, True, False)[n % 3] for n in range(ROWS)],
        "rides": [VALUES[n * 2 % 7] if n % 2 else float(n % 13) for n in range(ROWS)],
    },
}


@pytest.mark.long
@pytest.mark.parametrize("shape", COLUMNS)
def test_the_output_is_that_of_river_to_the_bit_though_every_first_copy_dies(shape: str, tmp_path: Path) -> None:
    data = with_columns(learning.hours(ROWS, seed=7), COLUMNS[shape])
    report = run_through_kills(learning.flow, data, shape, tmp_path)
    check(report.table.to_pylist(), data.to_pylist())
    assert report.table.column("rides").null_count > 0


def test_a_model_comes_back_from_its_bytes_with_the_same_floats() -> None:
    words = StateTypes.of(learning.Forecasts, "Forecasts")
    here, there = learning.new_model(), learning.new_model()
    for row in learning.hours(400).to_pylist():
        x, rides = told(row, "degrees", "wind", "is_rush"), row["rides"] or 0.0
        there = decode(encode(there, "test", words=words), words=words)
        assert there.predict_one(x) == here.predict_one(x)
        here.learn_one(x, rides)
        there.learn_one(x, rides)
    assert list(here["LinearRegression"].weights.items()) == list(there["LinearRegression"].weights.items())


@pytest.mark.long
def test_its_operator_keeps_its_promises() -> None:
    missing = st.sampled_from(MISSING)
    hour = st.fixed_dictionaries(
        {
            "hour": st.integers(0, 9),
            "station": st.sampled_from(["north", "south", None]),
            "degrees": missing | st.floats(-40, 40),
            "wind": missing | st.floats(0, 99) | st.just(math.inf),
            "is_rush": st.none() | st.booleans(),
            "rides": missing | st.integers(0, 99).map(float),
        }
    )
    hours, schema = st.lists(hour, max_size=10), learning.hours(1).schema
    checked = check_operator(learning.Forecasts, hours, key="station", schema=schema, examples=8)
    assert "hash order" in checked.claims
