"""Online learning: to the bit what river alone gives, with a model for each station, through a kill."""

from __future__ import annotations

import math
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import strategies as st
from river import evaluate, metrics

import flux
from experiments.examples import learning, running
from flux.testing import check_operator
from flux.wire.state import decode, encode
from flux.wire.values import Vocabulary


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


def test_the_output_is_that_of_river_to_the_bit_though_a_site_is_killed() -> None:
    data = learning.hours(3_000, seed=7)
    report = running.run_with_kill(data, learning.flow, kill_at=data.num_rows // 2)
    assert [failure.site for failure in report.failures] == [running.VICTIM]
    check(report.table.to_pylist(), data.to_pylist())
    assert report.table.column("rides").null_count > 0


MISSING = [None, math.nan]


def adversarial(stations: int, rows: int = 300) -> list[dict[str, Any]]:
    """Stations without a name, features and rides that are missing in both ways, and huge ones."""
    values = [0.0, -0.0, 1.0, 1e6, -1e-9, *MISSING]
    return [
        {
            "hour": n,
            "station": None if n % stations == 0 else str(n % stations),
            "degrees": values[n * 5 % 7],
            "wind": values[n * 3 % 7],
            "is_rush": (None, True, False)[n % 3],
            "rides": values[n * 2 % 7] if n % 2 else float(n % 13),
        }
        for n in range(rows)
    ]


@pytest.mark.parametrize("stations", [1, 5, 300])
def test_what_is_missing_is_left_out_and_any_number_of_stations_will_do(stations: int) -> None:
    rows = adversarial(stations)
    schema = learning.hours(1).schema
    table = pa.Table.from_pylist(rows, schema)
    nothing = schema.empty_table()
    pieces = [nothing, table.slice(0, 1), nothing, table.slice(1, 120), nothing, table.slice(121), nothing]
    report = learning.flow(flux.sources.Table(pieces, batch_rows=50)).run(sites=2)
    check(report.table.to_pylist(), rows)


def test_a_model_comes_back_from_its_bytes_with_the_same_floats() -> None:
    words = Vocabulary.of(learning.Forecasts, "Forecasts")
    here, there = learning.new_model(), learning.new_model()
    for row in learning.hours(400).to_pylist():
        x, rides = told(row, "degrees", "wind", "is_rush"), row["rides"] or 0.0
        there = decode(encode(there, "test", words=words), words=words)
        assert there.predict_one(x) == here.predict_one(x)
        here.learn_one(x, rides)
        there.learn_one(x, rides)
    assert list(here["LinearRegression"].weights.items()) == list(there["LinearRegression"].weights.items())


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
