"""Remote flow: a flow in a remote run, the description that its processes compare, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import astuple, dataclass
from functools import partial
from typing import Any

import pyarrow as pa

from ...model.operator import OperatorStep
from ...model.stateless import Filter, FlatMap, Map, Select
from ...plan import Availability, Plan, Policy
from ...plan.logical_flow import POOL_ROWS, LogicalFlow
from ...sinks import Collect, Sink
from ...sources import Source
from ...types.errors import PlanError
from ...types.normalize import describe_columns
from .importable import check_importable


@dataclass(frozen=True, kw_only=True)
class RemoteFlow:
    """A dataflow as each process has rebuilt it."""

    plan: Plan
    sources: tuple[Source, ...]
    sinks: tuple[Sink, ...]

    @staticmethod
    def of(flow: LogicalFlow, sites: int, standby: int, availability: Availability, policy: Policy) -> RemoteFlow:
        """Return the flow for so many sites; `PlanError` if it needs the user's program: a remote run has none."""
        plan = flow.plan(sites, standby, availability, POOL_ROWS, policy)
        if any(isinstance(sink, Collect) for sink in flow.sinks):
            raise PlanError(
                f"{flow.name}: flux.sinks.Collect holds the output in the program that started the run, and a remote "
                "run has none: use flux.sinks.Parquet(directory) or flux.sinks.Jsonl(path)"
            )
        for source in flow.sources:
            if type(source).start is not Source.start:
                raise PlanError(
                    f"{flow.name}: source {type(source).__name__} begins in the program that started the run, and a "
                    "remote run has none: use Files, Lines, Generator or Table of flux.sources"
                )
        for segment in (plan.first, *plan.segments):
            for step in segment.steps:
                check_importable(f"step {step.name!r}", [*_functions(step), step.parameters])
        for kind, ends in (("source", flow.sources), ("sink", flow.sinks)):
            for end in ends:
                check_importable(f"{kind} {type(end).__name__}", list(_made_of(end)))
        return RemoteFlow(plan=plan, sources=tuple(flow.sources), sinks=tuple(flow.sinks))


def description(plan: Plan) -> str:
    """Return the description of a dataflow: processes whose descriptions differ must not join one run."""
    segments = [
        [
            *(segment.columns, segment.partitions, segment.availability, segment.ordered),
            [[step.name, _place(step), step.level, _columns(step.output)] for step in segment.steps],
            segment.parents,
            [_columns(side) for side in segment.sides],
        ]
        for segment in (plan.first, *plan.segments)
    ]
    edges = [astuple(edge) for edge in plan.edges]
    return json.dumps([plan.name, segments, edges, plan.sinks, sorted(plan.unordered_sinks)], default=str)


def _made_of(end: Source | Sink) -> Iterator[Any]:
    """Yield the class of a source or sink and what it holds, such as a function; a source may hold another."""
    yield type(end)
    for held in vars(end).values():
        if isinstance(held, Source | Sink):
            yield from _made_of(held)
        else:
            yield held


def _functions(step: OperatorStep) -> list[Any]:
    """Return the user's operator, or the functions of a step without state."""
    factory = step.factory
    if not isinstance(factory, partial) or factory.func not in (Map, Filter, FlatMap, Select):
        return [factory]
    [first, *_] = factory.args
    return [made for made in first.values() if callable(made)] if isinstance(first, dict) else [first]


def _place(step: OperatorStep) -> list[str]:
    """Return where the code of a step is defined: another release most likely has it elsewhere."""
    return [
        f"{getattr(made, '__module__', '')}.{getattr(made, '__qualname__', '')}:"
        f"{getattr(getattr(made, '__code__', None), 'co_firstlineno', '')}"
        for made in map(_whole, _functions(step))
    ]


def _whole(made: Any) -> Any:
    while isinstance(made, partial):
        made = made.func
    return made


def _columns(schema: pa.Schema | None) -> str | None:
    return None if schema is None else describe_columns(schema)
