"""Why a join keeps its rows until the end of the stream."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..model.operator import Retained
from ..operators.join_spec import JoinSpec
from .graph import FlowNode
from .lineage import sources_of, why_not_event_time

__all__ = ["why_kept"]


def why_kept(
    joined: JoinSpec, tails: Sequence[FlowNode], sources: Sequence[Any], has_watermarks: bool
) -> Retained | None:
    """Return why a join of these streams keeps rows until the end of the stream; None if it does not.

    `has_watermarks` says whether any source of the flow emits watermarks.
    """
    why = None
    if joined.column is not None:
        why = _why_no_event_time(joined.column, tails, sources, has_watermarks)
    elif joined.is_unbounded:
        why = "within=None: give within=, such as within={'ts': 60_000} for a column of event time"
    if why is None:
        return None
    endless = [type(sources[n]).__name__ for n in sorted(sources_of(tails)) if sources[n].is_endless]
    return Retained(why, tuple(dict.fromkeys(endless)))


def _why_no_event_time(
    column: str, tails: Sequence[FlowNode], sources: Sequence[Any], has_watermarks: bool
) -> str | None:
    times = {n: None if each.event_time is None else each.event_time.column for n, each in enumerate(sources)}
    whys = [why_not_event_time(tail, column, times) for tail in tails]
    if not any(whys) and not has_watermarks:
        whys = ["no source has event time: use flow.source(..., event_time=...)"]
    why = next(filter(None, whys), None)
    return None if why is None else f"the plan does not know that {column!r} is event time: {why}"
