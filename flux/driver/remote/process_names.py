"""The roll: which name and which incarnation a process gets that asks to join.

A name that has died is never given again: nodes refuse what the dead may still have sent. So a site that a supervisor
starts again is a further one, and an ingress or egress the next incarnation of its kind. Sites are numbered, because
views leave out those that died long ago, and have only the highest number among them.
"""

from __future__ import annotations

from collections.abc import Iterable

from ...plan import Plan
from ...plan.plan import EGRESS, INGRESS
from ...protocols.messages import View
from ...protocols.view import number_of


class ProcessNames:
    """What was given out since this controller began; the view knows what was before."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._names: set[str] = set()
        self._incarnations: dict[str, int] = {}

    def incarnation(self, end: str, view: View) -> int:
        """Of the next process that serves the ingress or the egress."""
        stage = {INGRESS: 0, EGRESS: self._plan.sink_stages[0]}[end]
        served = dict(view.incarnations).get(stage, 1 if view.number else 0)
        self._incarnations[end] = max(served, self._incarnations.get(end, 0)) + 1
        return self._incarnations[end]

    def site(self, wish: str | None, view: View, connected: Iterable[str]) -> str:
        """The wished `site-N` if nobody has or had it; else a place of the plan that is free, else a further number."""
        taken = self._names | set(connected) | view.dead | (set(view.nodes) if view.number else set())
        names = (wish or "", *self._plan.site_names)
        free = [name for name in names if number_of(name) and name not in taken and not view.has_forgotten(name)]
        highest = max(view.forgotten, *map(number_of, (*taken, *self._plan.site_names)))
        name = [*free, f"site-{highest + 1}"][0]
        self._names.add(name)
        return name
