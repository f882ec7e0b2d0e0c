"""A drawn plan can be read: nothing stands on a text, and no edge runs through a box."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch

import flux
from flux.operators import Distinct, GroupBy

TABLE = pa.table({"k": [1], "n": [1]})
COUNT = {"aggregates": {"n": "count"}}


def parallel() -> flux.Dataflow:
    """Several edges between the same two stages."""
    flow = flux.Dataflow("parallel")
    rows = flow.source(flux.sources.Table(TABLE))
    chosen = rows.filter(lambda batch: batch["k"] > 0)
    both = chosen.union(rows.select("k", "n"), chosen, rows)
    both.exchange("k", partitions=4).apply(GroupBy, **COUNT).sink(flux.sinks.Collect())
    both.sink(flux.sinks.Null())
    return flow


def far() -> flux.Dataflow:
    """Edges that pass one, two and three columns."""
    flow = flux.Dataflow("far")
    rows = flow.source(flux.sources.Table(TABLE))
    first = rows.exchange("k", partitions=3).apply(GroupBy, **COUNT)
    second = first.exchange("n", partitions=5, availability="none").apply(Distinct)
    third = first.join(second, on="k", within=5).select("k", n="n_right").union(first, second, first)
    for stream in (third.exchange("k", partitions=2).apply(Distinct), third, first, rows):
        stream.sink(flux.sinks.Null())
    rows.exchange("n", partitions=1).apply(Distinct).union(third).sink(flux.sinks.Null())
    return flow


def chain() -> flux.Dataflow:
    """Stages one behind the other, each of which is told too."""
    flow = flux.Dataflow("chain")
    stream = flow.source(flux.sources.Table(TABLE))
    for _ in range(5):
        stream = stream.exchange("k", partitions=2).apply(Distinct, on=["k"])
        stream.sink(flux.sinks.Null())
    return flow


def crosses(line: Any, box: Any) -> bool:
    """Whether a line comes inside a box, by more than the width of a line."""
    inside = (line > [box.x0 + 2, box.y0 + 2]) & (line < [box.x1 - 2, box.y1 - 2])
    return bool(inside.all(axis=1).any())


@pytest.mark.parametrize("made", [parallel, far, chain])
def test_in_a_drawn_plan_nothing_stands_on_anything_else(
    made: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    figures: list[Figure] = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, *_, **__: figures.append(figure))
    made().explain(path=tmp_path / "plan.png")
    [axes] = figures[0].axes
    figures[0].draw_without_rendering()

    texts = [text.get_window_extent() for text in axes.texts]
    boxes = [patch.get_window_extent() for patch in axes.patches if isinstance(patch, FancyBboxPatch)]
    paths = [patch.get_path() for patch in axes.patches if isinstance(patch, FancyArrowPatch)]
    lines = [axes.transData.transform(np.concatenate(path.to_polygons(closed_only=False))) for path in paths]
    lines = [np.concatenate([np.linspace(a, b, 50) for a, b in itertools.pairwise(line)]) for line in lines]

    assert len(lines) > 4 and len(boxes) > 2
    assert not [pair for pair in itertools.combinations(texts, 2) if pair[0].overlaps(pair[1])]
    assert not [pair for pair in itertools.combinations(boxes, 2) if pair[0].overlaps(pair[1])]
    assert not [box for box in [*boxes, *texts] for line in lines if crosses(line, box)]


def test_a_name_is_drawn_as_it_is_and_not_as_a_formula(tmp_path: Path) -> None:
    flow = flux.Dataflow(r"from $1 to $\frac$")
    flow.source(flux.sources.Table(pa.table({r"$\no$": [1]}))).exchange(r"$\no$").apply(Distinct).sink(
        flux.sinks.Null()
    )
    flow.explain(path=tmp_path / "plan.svg")
    assert (tmp_path / "plan.svg").stat().st_size
