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

    panels = list(dict.fromkeys(map(_panel_of, rows)))
    canvas, axes = pyplot.subplots(1, len(panels), figsize=(3.5 + 4.5 * len(panels), 5), squeeze=False)
    for place, panel in zip(axes[0], panels, strict=True):
        _PICTURES[figure](place, [row for row in rows if _panel_of(row) == panel], rows)
        place.set_title(panel, fontsize=10)
        place.legend(fontsize=8)
        place.grid(alpha=0.3)
    canvas.tight_layout()
    canvas.savefig(path, dpi=120)
    pyplot.close(canvas)


def _panel_of(row: dict[str, Any]) -> str:
    """The title of the panel that a row is drawn in; figs. 4.6 and 4.7 have one without a title."""
    if "keys" in row:
        return f"{row['keys']} keys, {row['loaded']} loaded"
    return str(row.get("case", ""))


def _curves(axes: Any, rows: Rows, by: tuple[str, ...], x: str, y: str) -> None:
    for key in dict.fromkeys(tuple(row[name] for name in by) for row in rows):
        own = [row for row in rows if tuple(row[name] for name in by) == key]
        axes.plot([row[x] for row in own], [row[y] for row in own], marker=".", label=", ".join(map(str, key)))


def _figure_4_2(axes: Any, rows: Rows, _: Rows) -> None:
    _curves(axes, rows, ("kind",), "pool_rows", "rate")
    axes.axhline(figure_4_2.REACHED, color="grey", linestyle=":", label="95 % of the unloaded rate")
    if rows[0]["case"] == figure_4_2.ROTATING:
        without = figure_4_2.THESIS["rate_without_buffer"]
        axes.plot([min(row["pool_rows"] for row in rows)], [without], "k*", label="thesis, without a buffer")
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter("{x:g}")
    axes.set(xlabel=f"rows of a producer's pool, {rows[0]['sites']} sites", ylim=(0, 1.05))
    axes.set_ylabel("rate, as a part of the unloaded")


def _figure_4_6(axes: Any, rows: Rows, _: Rows) -> None:
    _curves(axes, rows, ("policy",), "at_s", "rate")
    axes.axhline(rows[0]["best"], color="grey", linestyle=":", label="best placement")
    thesis = figure_4_6.THESIS
    for name in ("felt_at_s", "steady_at_s"):
        axes.axvline(thesis[name], color="black", linestyle="--", label=f"thesis: {name[:-2].replace('_', ' ')}")
    axes.set(xlabel="s", ylabel="rate, as a part of the unloaded", ylim=(0, 1.1))


def _figure_4_7(axes: Any, rows: Rows, _: Rows) -> None:
    _curves(axes, rows, ("policy",), "loaded", "sustained")
    for name, values in figure_4_7.THESIS.items():
        axes.plot(list(values), list(values.values()), "k--", alpha=0.5, label=f"thesis, {name}")
    axes.set(xlabel="loaded sites", ylabel="sustained rate, as a part of the unloaded", ylim=(0, 1.1))


def _figure_4_8(axes: Any, rows: Rows, all_rows: Rows) -> None:
    best = rows[0]["best"]
    for form in dict.fromkeys(row["policy"] for row in rows if row["collect_min_s"]):
        climbing = [row for row in rows if row["policy"] == form]
        axes.plot(
            [row["collect_min_s"] for row in climbing],
            [row["rate_at_end"] / best for row in climbing],
            marker=".",
            linestyle="-" if form.endswith("printed") else "none",
            markersize=6 if form.endswith("printed") else 12,
            label=form,
        )
    for name, style in (("static", ":"), ("level", "--")):
        rate = next(row["rate_at_end"] for row in rows if row["policy"] == name) / best
        axes.axhline(rate, linestyle=style, color="grey" if name == "static" else "C2", label=name)
    if rows[0]["loaded"]:
        [unloaded] = [row for row in all_rows if row["policy"] == "static" and _is_unloaded(row, rows[0]["keys"])]
        axes.axhline(unloaded["rate_at_end"] / best, linestyle="-.", color="grey", label="static, unloaded")
    if rows[0]["keys"] == "self-similar":
        name = "better_from_with_8_loaded_s" if rows[0]["loaded"] else "better_from_s"
        axes.axvline(figure_4_8.THESIS[name], color="black", alpha=0.5, linewidth=1, label="thesis: better from here")
    axes.set(xscale="log", xlabel="least collection time, s", ylim=(0, 1.1))
    axes.set_ylabel("rate, as a part of the best placement")
    axes.xaxis.set_major_formatter("{x:g}")


def _is_unloaded(row: dict[str, Any], keys: str) -> bool:
    return (row["keys"], row["loaded"]) == (keys, 0)


_PICTURES: dict[str, Callable[[Any, Rows, Rows], None]] = {
    "4.2": _figure_4_2,
    "4.6": _figure_4_6,
    "4.7": _figure_4_7,
    "4.8": _figure_4_8,
}
