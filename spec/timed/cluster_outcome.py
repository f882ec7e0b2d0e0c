"""What a run of a simulated cluster has shown: rows processed, and what each placement sustains."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ...protocols.balance_messages import Round


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSample:
    """The cluster at `at_s`: the rows that the live copies have processed, and the rows/s that the placement sustains.

    Rows that two copies processed during a move count once. Rows that were sent count for nothing: a rate over a short
    time would measure the pools.
    """

    at_s: float
    rows: int
    sustained_rate: float
    moves: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterOutcome:
    """All samples of a run, its rounds of balance, and when each of its copies was moved."""

    samples: Sequence[ClusterSample]
    rounds: tuple[Round, ...]
    moved_s: tuple[float, ...]
    messages: int

    def rate(self, begin_s: float, end_s: float) -> float:
        """The rows per second that were processed between two times."""
        inside = [sample for sample in self.samples if begin_s - 1e-9 <= sample.at_s <= end_s + 1e-9]
        assert len(inside) > 1, f"no samples between {begin_s} and {end_s} s"
        return (inside[-1].rows - inside[0].rows) / (inside[-1].at_s - inside[0].at_s)

    @property
    def sustained_rate(self) -> float:
        """The rows per second that the last placement sustains."""
        return self.samples[-1].sustained_rate

    def reached_s(self, rate: float, begin_s: float = 0.0) -> float | None:
        """When after `begin_s` the placement began to sustain `rate` for the rest of the run; None if it does not."""
        short = [sample.at_s for sample in self.samples if sample.at_s >= begin_s and sample.sustained_rate < rate]
        if not short:
            return begin_s
        return next((sample.at_s for sample in self.samples if sample.at_s > short[-1]), None)

    @property
    def is_settled(self) -> bool:
        """Whether no move was under way at the end."""
        return not self.rounds or self.rounds[-1].ended_s is not None
