"""The plan: segments between exchanges, their partitions, and where each copy lives.

Stage 0 is the ingress, stages 1 to n the segments, stage n + 1 the egress. Edge e runs from stage e to
stage e + 1 and is partitioned as segment e + 1 asks; the last one has a single partition, the egress.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from ..errors import PlanError
from ..operator import OperatorStep
from ..protocols.messages import View
from .policy import Policy

Availability = Literal["pairs", "none"]
INGRESS, EGRESS, CONTROLLER = "ingress", "egress", "controller"


@dataclass(frozen=True, kw_only=True)
class Segment:
    """Operators that need no repartitioning between them, behind one exchange (thesis 2.3)."""

    columns: tuple[str, ...]
    partitions: int
    availability: Availability | None  # None until the run says.
    steps: tuple[OperatorStep, ...]


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Everything the processes of a run need to know about it."""

    name: str
    segments: tuple[Segment, ...]
    sites: int
    standby: int
    pool_rows: int
    rebuild_at_once: int = 1  # Copies of one stage that are rebuilt at the same time after a failure.
    policy: Policy = field(default_factory=Policy)

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

    @property
    def egress_stage(self) -> int:
        """The number of the egress's stage."""
        return len(self.segments) + 1

    @property
    def site_names(self) -> tuple[str, ...]:
        """site-1 to site-N; standbys continue the numbering."""
        return tuple(f"site-{i + 1}" for i in range(self.sites + self.standby))

    def partitions(self, stage: int) -> int:
        """How many partitions a stage has; ingress and egress are one each."""
        return 1 if stage in (0, self.egress_stage) else self.segments[stage - 1].partitions

    def view(self) -> View:
        """The view the controller starts from: every copy where the plan puts it."""
        segments = tuple(self._placed(segment) for segment in self.segments)
        return View(
            number=0,
            nodes=(INGRESS, *self.site_names, EGRESS),
            dead=frozenset(),
            copies=(((INGRESS,),), *segments, ((EGRESS,),)),
        )

    def _placed(self, segment: Segment) -> tuple[tuple[str, ...], ...]:
        """Chained declustering: each primary's replica is on the next site (thesis 3.4.4)."""
        copies = 2 if segment.availability == "pairs" else 1
        return tuple(
            tuple(self.site_names[(partition + copy) % self.sites] for copy in range(copies))
            for partition in range(segment.partitions)
        )
