"""Online learning: a model for each bike station predicts the rides of the hour, then sees them and learns.

Shows an operator that was there before. Model and metric are those of the river package, put together as its manual
does, and nothing in them knows of Flux. Flux keeps one of each for every station, twice; when a site dies, those that
it had go on elsewhere with the same floats, to the last bit, so a prediction does not tell that there was a failure.

What has to be said is what a model is made of, because nothing that comes from another site is unpickled: the classes
are named, and the two that are not their attributes are taken apart and put together again.

    pip install river
    python -m experiments.examples.learning --rows 20000 --kill
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pyarrow as pa
from river import compose, linear_model, metrics, optim, preprocessing, stats, utils

import flux
from experiments.examples.running import main

STATIONS = 40
FEATURES = ("degrees", "wind", "is_rush")


def hours(rows: int, seed: int = 0) -> pa.Table:
    """Hours at stations, one after the other; sensors fail now and then, and some rides are never told."""
    draw = np.random.default_rng(seed)
    hour = np.arange(rows) // STATIONS
    station = np.arange(rows) % STATIONS
    degrees = 12 + 8 * np.sin(hour / 24) + draw.normal(0, 2, rows)
    wind = draw.gamma(2.0, 3.0, rows)
    is_rush = np.isin(hour % 24, (7, 8, 9, 16, 17, 18))
    rides = (20 + station) * (1 + 0.05 * degrees - 0.03 * wind + 0.8 * is_rush) + draw.normal(0, 3, rows)
    degrees[draw.random(rows) < 0.01] = math.nan
    return pa.table(
        {
            "hour": hour,
            "station": pa.array(np.char.add("station ", station.astype(str))),
            "degrees": degrees,
            "wind": pa.array(wind, mask=draw.random(rows) < 0.01),
            "is_rush": is_rush,
            "rides": pa.array(np.maximum(rides.round(), 0.0), mask=draw.random(rows) < 0.02),
        }
    )


def new_model() -> compose.Pipeline:
    """As in river's manual."""
    return preprocessing.StandardScaler() | linear_model.LinearRegression(optim.SGD(0.05), intercept_lr=0.1)


class Forecasts(flux.KeyedOperator):
    """For each hour what its station's model predicts from the hours before, and the mean absolute error so far.

    The state of a key is a model and a metric. To river a feature that is missing is one that is not there: so is here
    what is null or NaN. An hour whose rides are not told is predicted, and nothing is learnt from it.
    """

    output = {"hour": "int64", "station": "string", "rides": "float64", "predicted": "float64", "mae": "float64"}  # noqa: RUF012
    state_types = (
        preprocessing.StandardScaler,
        linear_model.LinearRegression,
        optim.SGD,
        optim.schedulers.Constant,
        optim.losses.Squared,
        optim.initializers.Zeros,
        metrics.MAE,
        stats.Mean,
    )

    def on_tuple(self, key: Any, row: Any, state: Any) -> Any:
        model, error = (new_model(), metrics.MAE()) if state is None else state
        x = {name: getattr(row, name) for name in FEATURES if is_told(getattr(row, name))}
        predicted = model.predict_one(x)
        if is_told(row.rides):
            error.update(row.rides, predicted)
            model.learn_one(x, row.rides)
        told = {"hour": row.hour, "station": row.station, "rides": row.rides, "predicted": predicted}
        return (model, error), [{**told, "mae": error.get()}]

    @staticmethod
    def encode_state(value: Any) -> Any:
        """A pipeline is its steps; the weights are a dict that river keeps in Rust."""
        if isinstance(value, compose.Pipeline):
            return {"steps": list(value.steps.items())}
        if isinstance(value, utils.VectorDict):
            return {"weights": value.to_dict()}
        return NotImplemented

    @staticmethod
    def decode_state(state: Any) -> Any:
        if "steps" in state:
            return compose.Pipeline(*state["steps"])
        return utils.VectorDict(state["weights"])


def is_told(value: float | None) -> bool:
    """Whether there is a value."""
    return value is not None and not math.isnan(value)


def flow(source: flux.sources.Source) -> flux.Dataflow:
    """One row for each hour of a station: hour, station, rides, predicted, mae."""
    dataflow = flux.Dataflow("learning")
    forecasts = dataflow.source(source).exchange("station", partitions=16).apply(Forecasts)
    forecasts.sink(flux.sinks.Collect())
    return dataflow


if __name__ == "__main__":
    raise SystemExit(main(__doc__, hours, flow))
