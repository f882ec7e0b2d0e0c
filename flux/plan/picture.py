"""Picture: a plan drawn: a box for each stage with its steps, and an arrow for each edge."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..errors import FluxError
from .explain import heading, partitioning, place_name, way
from .plan import EGRESS, INGRESS, INPUT, Plan, Segment

_BOX_WIDTH, _COLUMN_WIDTH, _LINE_HEIGHT, _GAP = 3.0, 5.0, 0.32, 0.7
_BEND = 0.22
_COLOURS = {"end": ("#f6f8fa", "#57606a"), "site": ("#eef4ff", "#1f6feb")}
_INK, _MUTED = "#1f2328", "#57606a"


def drawn(plan: Plan, sources: Sequence[str], sinks: Sequence[str], path: Path) -> None:
    """Draw the plan to `path`, a .png, .svg or .pdf file."""
    try:
        # Not pyplot: it keeps every figure alive and looks for a screen.
        from matplotlib.figure import Figure
    except ImportError as error:
        raise FluxError(
            "explain(path=...) draws with matplotlib, which is not installed; install the extra with "
            "`pip install 'flux-dataflow[plot]'`"
        ) from error
    boxes = _boxes(plan, sources, sinks)
    right = max(box.left for box in boxes) + _BOX_WIDTH
    arc = max(_arc(boxes[edge.producer], boxes[edge.consumer]) for edge in plan.edges)
    bottom = min(box.top - box.height for box in boxes) - arc
    figure = Figure(figsize=(right + 0.6, 1.2 - bottom))
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set_xlim(-0.3, right + 0.3)
    axes.set_ylim(bottom - 0.3, 0.9)
    axes.axis("off")
    axes.text(-0.05, 0.45, f"{plan.name} on {plan.sites} sites", fontsize=13, fontweight="bold", color=_INK)
    for box in boxes:
        box.draw(axes)
    _draw_edges(axes, plan, boxes)
    try:
        figure.savefig(path, dpi=150)
    except (ValueError, OSError) as error:
        raise FluxError(f"the plan cannot be drawn to {path}: {error}. Give a .png, .svg or .pdf file") from error


class _Box:
    """A stage: its title, a line below it, and its steps; where each line is."""

    def __init__(self, kind: str, title: str, note: str, lines: Sequence[str]) -> None:
        self.kind, self.title, self.note, self.lines = kind, title, note, lines
        self.left = self.top = 0.0

    @property
    def height(self) -> float:
        return _LINE_HEIGHT * (len(self.lines) + 2) + 0.3

    def line(self, index: int) -> float:
        """The height of a line; -1 is the title."""
        return self.top - 0.3 - _LINE_HEIGHT * (index + 2 if index >= 0 else 0.5)

    def draw(self, axes: Any) -> None:
        from matplotlib.patches import FancyBboxPatch

        fill, border = _COLOURS[self.kind]
        corner = (self.left, self.top - self.height)
        style = "round,pad=0,rounding_size=0.08"
        axes.add_patch(
            FancyBboxPatch(corner, _BOX_WIDTH, self.height, boxstyle=style, facecolor=fill, edgecolor=border)
        )
        axes.text(self.left + 0.15, self.top - 0.28, _cut(self.title, 34), fontsize=9, fontweight="bold", color=_INK)
        axes.text(self.left + 0.15, self.top - 0.28 - _LINE_HEIGHT, _cut(self.note, 44), fontsize=7.5, color=_MUTED)
        for index, text in enumerate(self.lines):
            axes.text(self.left + 0.25, self.line(index) - 0.02, _cut(text, 36), fontsize=8.5, color=_INK, va="center")


def _boxes(plan: Plan, sources: Sequence[str], sinks: Sequence[str]) -> list[_Box]:
    """A box for each stage, one behind the last of those that it takes rows from."""
    first = [f"source {n + 1}: {name}" for n, name in enumerate(sources)]
    boxes = [_Box("end", INGRESS, "numbers all rows", [*first, *_steps(plan.first, is_ingress=True)])]
    for segment in plan.segments:
        boxes.append(_Box("site", heading(segment), partitioning(segment), _steps(segment)))
    for number, name in enumerate(sinks):
        order = "as rows come" if number in plan.unordered_sinks else "in order"
        boxes.append(_Box("end", f"{EGRESS}: {name}", order, []))
    columns: list[int] = []
    heights: dict[int, float] = {}
    for stage, box in enumerate(boxes):
        column = max((columns[edge.producer] + 1 for edge in plan.edges if edge.consumer == stage), default=0)
        columns.append(column)
        box.left, box.top = column * _COLUMN_WIDTH, -heights.get(column, 0.0)
        heights[column] = heights.get(column, 0.0) + box.height + _GAP
    tallest = max(heights.values())
    for column, box in zip(columns, boxes, strict=True):
        box.top -= (tallest - heights[column]) / 2
    return boxes


def _steps(segment: Segment, is_ingress: bool = False) -> list[str]:
    """The steps of a segment; of one that does not follow the line above it, what it follows."""
    lines = []
    for number, (step, parent) in enumerate(zip(segment.steps, segment.parents, strict=True)):
        follows = parent == number - 1 and not (is_ingress and number == 0)
        lines.append(step.name if follows else f"{step.name} of {place_name(segment, parent, is_ingress)}")
    return lines


def _draw_edges(axes: Any, plan: Plan, boxes: Sequence[_Box]) -> None:
    ended: dict[int, int] = {}
    for number, edge in enumerate(plan.edges):
        start, end = boxes[edge.producer], boxes[edge.consumer]
        line = edge.tap
        if edge.producer == 0:  # The sources are the first lines of the ingress.
            line = INPUT - edge.tap if edge.tap <= INPUT else edge.tap + len(start.lines) - len(plan.first.steps)
        begin = (start.left + _BOX_WIDTH, start.line(line))
        nth = ended[edge.consumer] = ended.get(edge.consumer, 0) + 1
        finish = (end.left, end.top - 0.22 * nth)
        arc = _arc(start, end)
        axes.annotate(
            "",
            finish,
            begin,
            arrowprops={
                "arrowstyle": "-|>",
                "color": _COLOURS["site"][1],
                "connectionstyle": f"arc3,rad={_BEND if arc else 0.0}",
                "shrinkA": 0,
                "shrinkB": 0,
            },
        )
        tap = place_name(plan.segment(edge.producer), edge.tap, edge.producer == 0)
        label = " ".join(filter(None, [f"{number}:", way(edge) or f"of {tap}"]))
        # Where several edges come together, their labels do not: each stands at a place of its own on its way.
        part = 0.5 if arc else (0.25, 0.5, 0.75)[nth % 3]
        at = [a + part * (b - a) for a, b in zip(begin, finish, strict=True)]
        background = {"facecolor": "white", "edgecolor": "none", "pad": 0.8}
        text = axes.text(at[0], at[1] - arc, _cut(label, 30), fontsize=7, color=_MUTED, ha="center", va="center")
        text.set_bbox(background)


def _arc(start: _Box, end: _Box) -> float:
    """How far below its ends an edge runs that passes other boxes."""
    length = end.left - start.left - _BOX_WIDTH
    return 0.0 if length < _COLUMN_WIDTH else _BEND * length / 2


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 3]}..."
