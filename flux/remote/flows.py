"""A flow in a remote run: what all its processes must agree on, and what cannot be run so."""

from __future__ import annotations

import json
from dataclasses import astuple, dataclass
from functools import partial
from typing import Any

import pyarrow as pa

from ..dataflow import POOL_ROWS, Dataflow
from ..errors import PlanError
from ..operator import OperatorStep
from ..plain import columns_of
from ..plan import Availability, Plan, Policy
from ..sinks import Collect, Sink
from ..sources import Source


@dataclass(frozen=True, kw_only=True)
class RemoteFlow:
    """A dataflow as each process has rebuilt it."""

    plan: Plan
    sources: tuple[Source, ...]
    sinks: tuple[Sink, ...]

    @staticmethod
    def of(flow: Dataflow, sites: int, standby: int, availability: Availability, policy: Policy) -> RemoteFlow:
        """The flow for so many sites; `PlanError` if it needs a program that no remote run has."""
        plan = flow._plan(sites, standby, availability, POOL_ROWS, policy)
        if any(isinstance(sink, Collect) for sink in flow._sinks):
            raise PlanError(
                f"{flow.name}: flux.sinks.Collect holds the output in the program that started the run, and a remote "
                "run has none: use flux.sinks.Parquet(directory) or flux.sinks.Jsonl(path)"
            )
        for source in flow._sources:
            if type(source).start is not Source.start:
                raise PlanError(
                    f"{flow.name}: source {type(source).__name__} begins in the program that started the run, and a "
                    "remote run has none: use Files, Lines, Generator or Table of flux.sources"
                )
        for segment in (plan.first, *plan.segments):
            for step in segment.steps:
                _check_importable(step)
        return RemoteFlow(plan=plan, sources=tuple(flow._sources), sinks=tuple(flow._sinks))


def description(plan: Plan) -> str:
    """What tells one dataflow from another: processes with different ones must not meet."""
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


def _functions(step: OperatorStep) -> list[Any]:
    """The user's operator, or the functions of a step without state."""
    if not isinstance(step.factory, partial):
        return [step.factory]
    [first, *_] = step.factory.args
    return [made for made in first.values() if callable(made)] if isinstance(first, dict) else [first]


def _place(step: OperatorStep) -> list[str]:
    """Where the code of a step is defined: another release has it elsewhere, most likely."""
    code = [getattr(made, "__code__", None) for made in _functions(step)]
    return [
        f"{getattr(made, '__module__', '')}.{getattr(made, '__qualname__', '')}:{getattr(at, 'co_firstlineno', '')}"
        for made, at in zip(_functions(step), code, strict=True)
    ]


def _check_importable(step: OperatorStep) -> None:
    """Each process of a remote run imports the flow's module: what is defined in a program is not in one."""
    for made in _functions(step):
        module = getattr(made, "__module__", None)
        if module == "__main__":
            raise PlanError(
                f"step {step.name!r}: {getattr(made, '__qualname__', made)} is defined in the program that was "
                "started, and the processes of a remote run cannot import it. Put it into the module of MODULE:FLOW, "
                "or into one that is installed wherever the run has processes"
            )


def _columns(schema: pa.Schema | None) -> str | None:
    return None if schema is None else columns_of(schema)
