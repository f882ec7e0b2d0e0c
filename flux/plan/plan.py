"""The plan: segments between exchanges, their partitions, and where each copy lives.

Stage 0 is the ingress, stages 1 to n are the segments, and after them each sink is a stage of its own. All sinks are in
one egress process. A segment is a tree of steps: several operators may take the output of one. An *edge* runs from a
place in a segment's tree, its *tap*, to another stage, and is partitioned as that stage requires. The number of an edge
is the tie-break between rows of different branches; the plan fixes it.

A place in a tree is the number of a step, meaning its output, or `INPUT - n`: the n-th input itself. The ingress has an
input for each source, all others have one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

import pyarrow as pa

from ..exchange.routes import Route
from ..exchange.stage_output import OutputEdge
from ..model.operator import OperatorStep, has_transferable_state, operator_class
from ..model.stateless import STATELESS
from ..protocols.messages import View
from ..types.errors import PlanError
from .policy import Policy

Availability = Literal["pairs", "none"]
INGRESS, EGRESS, CONTROLLER = "ingress", "egress", "controller"
INPUT = -1


@dataclass(frozen=True, kw_only=True)
class Segment:
    """Operators that need no repartitioning between them, after one exchange (thesis 2.3).

    `parents` are the places from which the steps take their rows; left out, the steps are a chain. If inputs have
    different columns, `sides` are their schemas.
    """

    columns: tuple[str, ...]
    partitions: int
    availability: Availability | None  # None: that of the run.
    steps: tuple[OperatorStep, ...]
    parents: tuple[int, ...] = ()
    ordered: bool = True
    sides: tuple[pa.Schema, ...] = ()
    balance: bool = True  # Whether its partitions are moved to even out the load.

    def __post_init__(self) -> None:
        if not self.parents:
            object.__setattr__(self, "parents", tuple(range(INPUT, len(self.steps) - 1)))

    @property
    def title(self) -> str:
        """Its name in messages: its steps."""
        return " or ".join(step.name for step in self.steps) or f"exchange({', '.join(self.columns)})"

    @property
    def copies(self) -> int:
        """The number of copies of each partition, on as many sites."""
        return 2 if self.availability == "pairs" else 1


@dataclass(frozen=True, kw_only=True)
class Edge:
    """Rows of `tap` in stage `producer` go to stage `consumer`, to the partition that `route` selects."""

    producer: int
    tap: int
    consumer: int
    route: Route
    side: int = 0


_NO_STEPS = Segment(columns=(), partitions=1, availability="none", steps=())


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Everything the processes of a run need to know about it.

    Left out, `edges` make a chain of the segments, from one source to one sink. `first` holds the steps in the ingress,
    before rows are partitioned. The `unordered_sinks` take rows as they arrive.
    """

    name: str
    segments: tuple[Segment, ...]
    sites: int
    standby: int
    pool_rows: int
    rebuild_at_once: int = 1  # Copies of one stage that are rebuilt at the same time after a failure.
    policy: Policy = field(default_factory=Policy)
    first: Segment = _NO_STEPS
    edges: tuple[Edge, ...] = ()
    sinks: int = 1
    unordered_sinks: frozenset[int] = frozenset()
    notes: tuple[str, ...] = ()  # Warnings about the whole.

    def __post_init__(self) -> None:
        for name in ("sites", "standby", "pool_rows", "rebuild_at_once"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool):
                raise PlanError(f"{name} is a whole number, got {value!r}")
        if self.pool_rows < 1:
            raise PlanError(f"pool_rows counts rows and is at least 1, got {self.pool_rows}")
        if self.rebuild_at_once < 1:
            raise PlanError(f"rebuild_at_once counts copies and is at least 1, got {self.rebuild_at_once}")
        if self.sites < 1:
            raise PlanError(f"a run needs at least one site, got sites={self.sites}")
        if self.sites < 2 and any(segment.availability == "pairs" for segment in self.segments):
            raise PlanError(
                'availability="pairs" keeps every partition on two sites: '
                f'give sites=2 or more, or availability="none"; got sites={self.sites}'
            )
        if self.standby < 0:
            raise PlanError(f"standby counts sites, got standby={self.standby}")
        if not self.edges:
            object.__setattr__(self, "edges", self._chain())

    def _chain(self) -> tuple[Edge, ...]:
        """Return one edge from each stage to the next."""
        stages = (self.first, *self.segments)
        routes = [*(Route(columns=s.columns, partitions=s.partitions) for s in self.segments), Route()]
        return tuple(
            Edge(producer=stage, tap=len(segment.steps) - 1, consumer=stage + 1, route=route)
            for stage, (segment, route) in enumerate(zip(stages, routes, strict=True))
        )

    @property
    def stages(self) -> range:
        """The stages that live on sites."""
        return range(1, len(self.segments) + 1)

    @property
    def sink_stages(self) -> range:
        """The stages of the sinks."""
        return range(len(self.segments) + 1, len(self.segments) + 1 + self.sinks)

    @property
    def site_names(self) -> tuple[str, ...]:
        """site-1 to site-N; standbys continue the numbering."""
        return tuple(f"site-{i + 1}" for i in range(self.sites + self.standby))

    @property
    def spares(self) -> tuple[str, ...]:
        """The standbys: no policy moves load to them before they hold a copy."""
        return self.site_names[self.sites :]

    @property
    def pinned_stages(self) -> frozenset[int]:
        """The stages whose partitions no policy moves.

        A stage of single copies may have state that no site could install: only a move would need that, and would end
        the run. With pairs a state that cannot be copied ends it in any case.
        """
        return frozenset(stage for stage in self.stages if self._is_pinned(self.segment(stage)))

    @staticmethod
    def _is_pinned(segment: Segment) -> bool:
        return not segment.balance or (segment.copies == 1 and not all(map(has_transferable_state, segment.steps)))

    @property
    def stateful_steps(self) -> tuple[str, ...]:
        """The names of the steps that may hold state: all but those of `map`, `flat_map`, `filter` and `select`."""
        steps = [step for segment in (self.first, *self.segments) for step in segment.steps]
        return tuple(step.name for step in steps if not isinstance(operator_class(step.factory, step.name), STATELESS))

    def segment(self, stage: int) -> Segment:
        """Return the segment of a stage; that of the ingress is `first`."""
        return self.first if stage == 0 else self.segments[stage - 1]

    def partitions(self, stage: int) -> int:
        """Return the number of partitions of a stage; ingress and sinks have one each."""
        return self.segments[stage - 1].partitions if stage in self.stages else 1

    def warnings(self) -> Iterator[str]:
        """Yield the warnings that a run logs at its start."""
        yield from self.notes
        for stage in self.stages:
            for step in self.segment(stage).steps:
                if step.kept is not None and step.kept.warning:
                    yield f"dataflow {self.name!r}, stage {stage}, {step.name}: it {step.kept.warning}"
                shared = getattr(step.factory, "shares_state", None)
                if shared is not None and step.key_columns:
                    yield f"dataflow {self.name!r}, stage {stage}, {step.name}: it {shared}"

    def outputs(self, stage: int) -> tuple[int, ...]:
        """Return the edges out of a stage."""
        return self._outputs[stage]

    def output_edges(self, stage: int) -> tuple[OutputEdge, ...]:
        """The edges out of a stage, each with the step that it begins at and its route."""
        edges = ((number, self.edges[number]) for number in self.outputs(stage))
        return tuple(OutputEdge(number, edge.tap, edge.route) for number, edge in edges)

    def inputs(self, stage: int) -> dict[int, int]:
        """Return the edges into a stage, each with its side."""
        return {number: edge.side for number, edge in enumerate(self.edges) if edge.consumer == stage}

    def unsettled(self, stage: int) -> frozenset[int]:
        """Return the edges into a stage whose rows are not in the same order in all copies."""
        unordered = self.view().unordered
        return frozenset(number for number in self.inputs(stage) if self.edges[number].producer in unordered)

    def sides(self, stage: int) -> tuple[pa.Schema, ...]:
        """Return the columns of each side of a stage whose inputs have different columns; else nothing."""
        return self.segment(stage).sides if stage in self.stages else ()

    @cached_property
    def _outputs(self) -> list[tuple[int, ...]]:
        return [
            tuple(number for number, edge in enumerate(self.edges) if edge.producer == stage)
            for stage in range(self.sink_stages.stop)
        ]

    def view(self) -> View:
        """Return the view the controller starts from: every copy where the plan puts it."""
        segments = tuple(self._place_copies(segment) for segment in self.segments)
        unordered = [stage for stage in self.stages if not self.segment(stage).ordered]
        unordered += [self.sink_stages[sink] for sink in self.unordered_sinks]
        return View(
            number=0,
            nodes=(INGRESS, *self.site_names, EGRESS),
            dead=frozenset(),
            copies=(((INGRESS,),), *segments, *[((EGRESS,),) for _ in range(self.sinks)]),
            edges=tuple((edge.producer, edge.consumer) for edge in self.edges),
            unordered=frozenset(unordered),
        )

    @property
    def copies(self) -> int:
        """The number of sites that it takes to hold every partition."""
        return max((segment.copies for segment in self.segments), default=1)

    def _place_copies(self, segment: Segment) -> tuple[tuple[str, ...], ...]:
        """Place copies by chained declustering: each primary's replica is on the next site (thesis 3.4.4)."""
        return tuple(
            tuple(self.site_names[(partition + copy) % self.sites] for copy in range(segment.copies))
            for partition in range(segment.partitions)
        )
