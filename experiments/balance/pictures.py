"""Pictures of the experiments of balance: ours and the thesis's values side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

OURS, THESIS, LIMIT = "#2b6cb0", "#c05621", "#4a5568"

Bars = Sequence[tuple[str, float]]
Lines = Mapping[str, Sequence[tuple[float, float]]]


def draw_bars(
    path: Path, title: str, unit: str, ours: Bars, thesis: Bars = (), limits: Mapping[str, float] | None = None
) -> None:
    """Bars for our values and the thesis's, and a line for each limit."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    bars = [(name, value, OURS) for name, value in ours] + [(name, value, THESIS) for name, value in thesis]
    figure, axes = plt.subplots(figsize=(max(6.0, 1.3 * len(bars)), 4.5))
    axes.bar([name for name, _, _ in bars], [value for _, value, _ in bars], color=[color for _, _, color in bars])
    for number, (_, value, _) in enumerate(bars):
        axes.text(number, value, f"{value:.3g}", ha="center", va="bottom", fontsize=8)
    for name, value in (limits or {}).items():
        axes.axhline(value, color=LIMIT, linewidth=1, linestyle="--")
        axes.text(len(bars) - 0.5, value, name, ha="right", va="bottom", fontsize=8, color=LIMIT)
    axes.set_title(f"{title} (blue: Flux, orange: thesis)")
    axes.set_ylabel(unit)
    axes.tick_params(axis="x", labelsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    plt.close(figure)


def draw_lines(path: Path, title: str, across: str, unit: str, lines: Lines, thesis: Lines | None = None) -> None:
    """A line for each series; those of the thesis are dashed."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(8, 4.5))
    for name, points in lines.items():
        axes.plot([x for x, _ in points], [y for _, y in points], marker="o", markersize=3, label=name)
    for name, points in (thesis or {}).items():
        axes.plot([x for x, _ in points], [y for _, y in points], linestyle="--", color=THESIS, label=f"thesis: {name}")
    axes.set(title=title, xlabel=across, ylabel=unit)
    axes.legend(fontsize=8)
    axes.grid(alpha=0.3)
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    plt.close(figure)
