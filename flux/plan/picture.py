"""A plan as a picture: a box for each stage with its steps, and an arrow for each edge.

Stages stand in columns, each after the last stage that it takes rows from. An edge that passes a column has a lane of
its own there, between boxes. It bends directly after a column and is straight before the next: its label is there, at a
height that no other edge has.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from ..types.errors import FluxError
from .explain import describe_partitions, describe_route, describe_sites, heading, place_name
from .plan import EGRESS, INGRESS, INPUT, Plan, Segment

_BOX_WIDTH, _LINE_HEIGHT, _GAP = 3.0, 0.32, 0.5
_BEND_WIDTH, _LABEL_WIDTH = 1.0, 1.8  # Between two columns.
_COLUMN_WIDTH = _BOX_WIDTH + _BEND_WIDTH + _LABEL_WIDTH
_ENTRY_HEIGHT = 0.26
_COLOURS = {"end": ("#f6f8fa", "#57606a"), "site": ("#eef4ff", "#1f6feb")}
_INK, _MUTED = "#1f2328", "#57606a"


def draw_plan(plan: Plan, sources: Sequence[str], sinks: Sequence[str], path: Path) -> None:
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
    paths = _place_boxes(plan, boxes)
    right = max(box.left for box in boxes) + _BOX_WIDTH
    bottom = min(place.top - place.height for places in paths for place in places)
    figure = Figure(figsize=(right + 0.6, 1.2 - bottom))
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set_xlim(-0.3, right + 0.3)
    axes.set_ylim(bottom - 0.3, 0.9)
    axes.axis("off")
    _write(axes, (-0.05, 0.45), f"{plan.name} {describe_sites(plan)}", fontsize=13, fontweight="bold", color=_INK)
    for box in boxes:
        box.draw(axes)
    _draw_edges(axes, plan, paths)
    try:
        figure.savefig(path, dpi=150)
    except (ValueError, OSError) as error:
        raise FluxError(f"the plan cannot be drawn to {path}: {error}. Give a .png, .svg or .pdf file") from error


class _Place:
    """An area of a column: a stage's box or, as this base class, the lane of an edge that passes."""

    height = _ENTRY_HEIGHT

    def __init__(self) -> None:
        self.left = self.top = 0.0

    @property
    def middle(self) -> float:
        return self.top - self.height / 2


class _Box(_Place):
    """A stage: its title, a note below it, and its steps; with the heights of its lines and of its incoming edges."""

    def __init__(self, kind: str, title: str, note: str, lines: Sequence[str], entries: int) -> None:
        super().__init__()
        self.kind, self.title, self.note, self.lines = kind, title, note, lines
        self.height = max(_LINE_HEIGHT * (len(lines) + 2) + 0.3, _ENTRY_HEIGHT * entries + 0.3)

    def entry(self, index: int) -> float:
        """Return the height of an incoming edge, counted from the top."""
        return self.top - 0.25 - _ENTRY_HEIGHT * index

    def line(self, index: int) -> float:
        """Return the height of a line; -1 is the title."""
        return self.top - 0.3 - _LINE_HEIGHT * (index + 2 if index >= 0 else 0.5)

    def draw(self, axes: Any) -> None:
        from matplotlib.patches import FancyBboxPatch

        fill, border = _COLOURS[self.kind]
        corner = (self.left, self.top - self.height)
        style = "round,pad=0,rounding_size=0.08"
        axes.add_patch(
            FancyBboxPatch(corner, _BOX_WIDTH, self.height, boxstyle=style, facecolor=fill, edgecolor=border)
        )
        x, y = self.left + 0.15, self.top - 0.28
        _write(axes, (x, y), _shorten(self.title, 34), fontsize=9, fontweight="bold", color=_INK)
        _write(axes, (x, y - _LINE_HEIGHT), _shorten(self.note, 44), fontsize=7.5, color=_MUTED)
        for index, text in enumerate(self.lines):
            _write(axes, (x + 0.1, self.line(index) - 0.02), _shorten(text, 36), fontsize=8.5, color=_INK, va="center")


def _boxes(plan: Plan, sources: Sequence[str], sinks: Sequence[str]) -> list[_Box]:
    """Return a box for each stage, not placed yet."""
    entries = Counter(edge.consumer for edge in plan.edges)
    first = [f"source {n + 1}: {name}" for n, name in enumerate(sources)]
    boxes = [_Box("end", INGRESS, "numbers all rows", [*first, *_steps(plan.first, is_ingress=True)], 0)]
    for stage, segment in enumerate(plan.segments, 1):
        boxes.append(_Box("site", heading(segment), describe_partitions(segment), _steps(segment), entries[stage]))
    for number, (stage, name) in enumerate(zip(plan.sink_stages, sinks, strict=True)):
        order = "as rows arrive" if number in plan.unordered_sinks else "in order"
        boxes.append(_Box("end", f"{EGRESS}: {name}", order, [], entries[stage]))
    return boxes


def _place_boxes(plan: Plan, boxes: Sequence[_Box]) -> list[list[_Place]]:
    """Place all boxes; return the path of each edge: the places it goes through, from box to box."""
    columns: list[int] = []
    for stage in range(len(boxes)):
        columns.append(max((columns[edge.producer] + 1 for edge in plan.edges if edge.consumer == stage), default=0))
    inside: list[list[_Place]] = [[] for _ in range(max(columns) + 1)]
    for column, box in zip(columns, boxes, strict=True):
        inside[column].append(box)
    paths: list[list[_Place]] = []
    for edge in plan.edges:
        lanes = [_Place() for _ in range(columns[edge.producer] + 1, columns[edge.consumer])]
        for column, lane in enumerate(lanes, columns[edge.producer] + 1):
            inside[column].append(lane)
        paths.append([boxes[edge.producer], *lanes, boxes[edge.consumer]])
    for column, places in enumerate(inside):
        _stack(places, paths, column * _COLUMN_WIDTH)
    highest = max(place.top for places in inside for place in places)
    for place in (place for places in inside for place in places):
        place.top -= highest
    return paths


def _stack(places: list[_Place], paths: Sequence[Sequence[_Place]], left: float) -> None:
    """Stack the places of a column: each about as high as those before it, so that few edges cross."""

    def preferred_height(place: _Place) -> float:
        before = [a.middle for path in paths for a, b in pairwise(path) if b is place]
        return sum(before) / len(before) if before else 0.0

    ordered = sorted(places, key=preferred_height, reverse=True)
    gaps = [_GAP if isinstance(a, _Box) or isinstance(b, _Box) else 0.0 for a, b in pairwise(ordered)]
    top = (sum(place.height for place in ordered) + sum(gaps)) / 2
    for place, gap in zip(ordered, [*gaps, 0.0], strict=True):
        place.left, place.top = left, top
        top -= place.height + gap


def _steps(segment: Segment, is_ingress: bool = False) -> list[str]:
    """Return a line for each step; one that does not follow the line above it names the step it follows."""
    lines = []
    for number, parent in enumerate(segment.parents):
        follows = parent == number - 1 and not (is_ingress and number == 0)
        name = place_name(segment, number, is_ingress)
        lines.append(name if follows else f"{name} of {place_name(segment, parent, is_ingress)}")
    return lines


def _draw_edges(axes: Any, plan: Plan, paths: Sequence[Sequence[_Place]]) -> None:
    begins = [_begin(plan, number, paths[number][0]) for number in range(len(paths))]
    before = [places[-2].middle if len(places) > 2 else begin for places, begin in zip(paths, begins, strict=True)]
    entered: Counter[int] = Counter()
    # Edges enter a box in the order of the heights at which they start.
    for number in sorted(range(len(paths)), key=lambda number: -before[number]):
        edge, (start, *lanes, end) = plan.edges[number], paths[number]
        assert isinstance(end, _Box)
        x, y = end.left, end.entry(entered[edge.consumer])
        entered[edge.consumer] += 1
        stops = [*((lane.left, lane.middle) for lane in lanes), (x, y)]
        _draw_edge(axes, (start.left + _BOX_WIDTH, begins[number]), stops)
        tap = place_name(plan.segment(edge.producer), edge.tap, edge.producer == 0)
        label = " ".join(filter(None, [f"{number}:", describe_route(edge) or f"of {tap}"]))
        _write(axes, (x - 0.15, y + 0.03), _shorten(label, 30), fontsize=7, color=_MUTED, ha="right", va="bottom")


def _begin(plan: Plan, number: int, start: _Place) -> float:
    """Return the height of the line at which an edge leaves its box."""
    assert isinstance(start, _Box)
    edge = plan.edges[number]
    if edge.producer != 0:
        return start.line(edge.tap)
    # The sources are the first lines of the ingress.
    return start.line(INPUT - edge.tap if edge.tap <= INPUT else edge.tap + len(start.lines) - len(plan.first.steps))


def _draw_edge(axes: Any, begin: tuple[float, float], stops: Sequence[tuple[float, float]]) -> None:
    """Draw an arrow that is straight before each stop, and through the column after it."""
    from matplotlib.patches import FancyArrowPatch
    from matplotlib.path import Path as Line

    points, codes = [begin], [Line.MOVETO]
    for x, y in stops:
        (left, before), half = points[-1], _BEND_WIDTH / 2
        points += [(left + half, before), (left + half, y), (left + _BEND_WIDTH, y), (x, y)]
        codes += [Line.CURVE4, Line.CURVE4, Line.CURVE4, Line.LINETO]
        if (x, y) != stops[-1]:
            points.append((x + _BOX_WIDTH, y))
            codes.append(Line.LINETO)
    axes.add_patch(
        FancyArrowPatch(path=Line(points, codes), arrowstyle="-|>", mutation_scale=10, color=_COLOURS["site"][1])
    )


def _write(axes: Any, at: tuple[float, float], text: str, **style: Any) -> None:
    """Write a text literally: matplotlib would take some signs in names for formulas."""
    axes.text(*at, text, parse_math=False, **style)


def _shorten(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 3]}..."
