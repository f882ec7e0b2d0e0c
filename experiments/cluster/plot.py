"""Pictures of the figures of thesis chapter 4, with the thesis's values in them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from . import figure_4_2, figure_4_6, figure_4_7, figure_4_8
from .cases import Rows


def plot(figure: str, rows: Rows, path: Path) -> None:
    """Draw the rows of a figure, and what the thesis says of it, into `path`."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    canvas, axes = pyplot.subplots(figsize=(8, 5))
    _PICTURES[figure](axes, rows)
    axes.legend(fontsize=8)
    axes.grid(alpha=0.3)
    canvas.tight_layout()
    canvas.savefig(path, dpi=120)
    pyplot.close(canvas)


def _curves(axes: Any, rows: Rows, by: tuple[str, ...], x: str, y: str) -> None:
    for key in dict.fromkeys(tuple(row[name] for name in by) for row in rows):
        own = [row for row in rows if tuple(row[name] for name in by) == key]
        axes.plot([row[x] for row in own], [row[y] for row in own], marker=".", label=", ".join(map(str, key)))


def _figure_4_2(axes: Any, rows: Rows) -> None:
    _curves(axes, rows, ("case", "kind"), "pool_rows", "rate")
    axes.axhline(figure_4_2.REACHED, color="grey", linestyle=":", label="95 % of the unloaded rate")
    without = figure_4_2.THESIS["rate_without_buffer"]
    axes.plot([min(row["pool_rows"] for row in rows)], [without], "k*", label="thesis, without a buffer")
    axes.set(xscale="log", xlabel="rows of a producer's pool", ylabel="rate, as a part of the unloaded")


def _figure_4_6(axes: Any, rows: Rows) -> None:
    _curves(axes, rows, ("policy",), "at_s", "rate")
    axes.axhline(rows[0]["best"], color="grey", linestyle=":", label="best placement")
    thesis = figure_4_6.THESIS
    for name in ("felt_at_s", "steady_at_s"):
        axes.axvline(thesis[name], color="black", linestyle="--", label=f"thesis: {name[:-2].replace('_', ' ')}")
    axes.set(xlabel="s", ylabel="rate, as a part of the unloaded", ylim=(0, 1.1))


def _figure_4_7(axes: Any, rows: Rows) -> None:
    _curves(axes, rows, ("policy",), "loaded", "sustained")
    for name, values in figure_4_7.THESIS.items():
        axes.plot(list(values), list(values.values()), "k--", alpha=0.5, label=f"thesis, {name}")
    axes.set(xlabel="loaded sites", ylabel="sustained rate, as a part of the unloaded", ylim=(0, 1.1))


def _figure_4_8(axes: Any, rows: Rows) -> None:
    own = [row for row in rows if row["keys"] == "self-similar"] or rows
    for loaded in sorted({row["loaded"] for row in own}):
        some = [row for row in own if row["loaded"] == loaded]
        best = some[0]["best"]
        climbing = [row for row in some if row["collect_min_s"]]
        times = [row["collect_min_s"] for row in climbing]
        axes.plot(times, [row["rate"] / best for row in climbing], marker=".", label=f"hill climbing, {loaded} loaded")
        for name in ("static", "level"):
            rate = next(row["rate"] for row in some if row["policy"] == name) / best
            axes.axhline(rate, linestyle=":" if name == "static" else "-", alpha=0.6, label=f"{name}, {loaded} loaded")
    for name in ("better_from_s", "better_from_with_8_loaded_s"):
        axes.axvline(
            figure_4_8.THESIS[name], color="black", linestyle="--", label=f"thesis: {name[:-2]}".replace("_", " ")
        )
    axes.set(xscale="log", xlabel="least collection time, s", ylabel="rate, as a part of the best placement")


_PICTURES: dict[str, Callable[[Any, Rows], None]] = {
    "4.2": _figure_4_2,
    "4.6": _figure_4_6,
    "4.7": _figure_4_7,
    "4.8": _figure_4_8,
}
