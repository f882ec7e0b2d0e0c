"""A plan as text: what runs where, in which order, and how rows get from one stage to the next."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ..types.normalize import describe_columns
from .plan import EGRESS, INGRESS, INPUT, Edge, Plan, Segment

_PLACES_SHOWN = 8


def explain_plan(plan: Plan, sources: Sequence[str], sinks: Sequence[str]) -> str:
    """Return the plan as text; `sources` describe each source and its columns, `sinks` are the types of the sinks.

    >>> from flux.plan import Plan, Segment
    >>> segment = Segment(columns=("k",), partitions=2, availability="pairs", steps=())
    >>> print(explain_plan(Plan(name="p", segments=(segment,), sites=2, standby=0, pool_rows=1), ["Table"], ["Null"]))
    p: 1 source, 1 segment, 1 sink, on 2 sites
    <BLANKLINE>
    stage 0, ingress
      source 1: Table
      edge 0: source 1 -> stage 1, by hash of k
    <BLANKLINE>
    stage 1, exchange(k): 2 partitions as pairs, in order
      edge 1: input -> stage 2
      0 on site-1 and site-2; 1 on site-2 and site-1
    <BLANKLINE>
    stage 2, egress: sink Null, in order
    """
    return "\n".join(_lines(plan, sources, sinks))


def _lines(plan: Plan, sources: Sequence[str], sinks: Sequence[str]) -> Iterator[str]:
    counts = (_count(sources, "source"), _count(plan.segments, "segment"), _count(sinks, "sink"))
    yield f"{plan.name}: {', '.join(counts)}, {describe_sites(plan)}"
    yield from ("", f"stage 0, {INGRESS}")
    yield from (f"  source {number + 1}: {name}" for number, name in enumerate(sources))
    yield from _steps(plan.first, is_ingress=True)
    yield from _ingress_advice(plan.first)
    yield from _edges(plan, 0)
    view = plan.view()
    for stage, segment in enumerate(plan.segments, 1):
        yield from ("", f"stage {stage}, {heading(segment)}: {describe_partitions(segment)}")
        yield from _steps(segment)
        yield from _edges(plan, stage)
        yield f"  {_placement(view.copies[stage])}"
    for number, (stage, name) in enumerate(zip(plan.sink_stages, sinks, strict=True)):
        order = "as rows arrive" if number in plan.unordered_sinks else "in order"
        yield from ("", f"stage {stage}, {EGRESS}: sink {name}, {order}")
    for note in plan.notes:
        yield from ("", f"warning: {note}")


def describe_sites(plan: Plan) -> str:
    """Return on how many sites the plan runs."""
    standby = f" and {plan.standby} standby" if plan.standby else ""
    return f"on {plan.sites} site{'s' if plan.sites > 1 else ''}{standby}"


def heading(segment: Segment) -> str:
    """Return the exchange or join that a segment begins with."""
    return f"{'join' if segment.sides else 'exchange'}({', '.join(segment.columns) or 'by any'})"


def describe_partitions(segment: Segment) -> str:
    """Return how a segment is partitioned, and how many copies each partition has."""
    many = "s" if segment.partitions > 1 else ""
    copies = f" as pair{many}" if segment.availability == "pairs" else ", one copy of each"
    return f"{segment.partitions} partition{many}{copies}, {'in order' if segment.ordered else 'as rows arrive'}"


def describe_route(edge: Edge) -> str:
    """Return how an edge distributes rows; nothing if there is one partition."""
    route = edge.route
    if route.partitions == 1:
        return ""
    by = {"hash": "by hash of", "range": "by ranges of", "any": "by position", "all": "to all partitions"}[route.by]
    return f"{by} {', '.join(route.columns)}" if route.by in ("hash", "range") else by


def place_name(segment: Segment, place: int, is_ingress: bool) -> str:
    """Return the name of a place in a segment's tree; steps with equal names, such as lambdas, are numbered."""
    if place > INPUT:
        name = segment.steps[place].name
        alike = [number for number, step in enumerate(segment.steps) if step.name == name]
        return name if len(alike) == 1 else f"{name} #{alike.index(place) + 1}"
    return f"source {INPUT - place + 1}" if is_ingress else "input"


def _steps(segment: Segment, is_ingress: bool = False) -> Iterator[str]:
    for number, (step, parent) in enumerate(zip(segment.steps, segment.parents, strict=True)):
        emits = "its output is not declared" if step.output is None else describe_columns(step.output)
        yield f"  {place_name(segment, parent, is_ingress)} -> {place_name(segment, number, is_ingress)}: {emits}"
        if step.kept is not None:
            yield f"    keeps its rows until the end of the stream: {step.kept.why}"


def _ingress_advice(first: Segment) -> Iterator[str]:
    if first.steps:
        names = ", ".join(place_name(first, number, is_ingress=True) for number in range(len(first.steps)))
        yield f"  all rows pass {names} in the one ingress process; to spread that over the sites, put"
        yield '  exchange(by="any") before it'


def _edges(plan: Plan, stage: int) -> Iterator[str]:
    for number in plan.outputs(stage):
        edge = plan.edges[number]
        how = describe_route(edge)
        tap = place_name(plan.segment(stage), edge.tap, stage == 0)
        yield f"  edge {number}: {tap} -> stage {edge.consumer}{f', {how}' if how else ''}"


def _placement(copies: Sequence[Sequence[str]]) -> str:
    shown = [f"{partition} on {' and '.join(nodes)}" for partition, nodes in enumerate(copies[:_PLACES_SHOWN])]
    more = len(copies) - len(shown)
    return "; ".join([*shown, *([f"and {more} more"] if more else [])])


def _count(things: Sequence[object], what: str) -> str:
    return f"{len(things)} {what}{'' if len(things) == 1 else 's'}"
