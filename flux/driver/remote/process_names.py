"""Process names: the name and the incarnation of each process that joins.

The name of a dead node is never given again: nodes refuse what a dead node may still have sent. So a site that a
supervisor restarts gets a further name, and an ingress or egress is the next incarnation of its kind. Sites are
numbered, because views drop those that died long ago, and keep only the highest number among them.
"""

from __future__ import annotations

from collections.abc import Iterable

from ...plan import Plan
from ...plan.plan import EGRESS, INGRESS
from ...protocols.messages import View
from ...protocols.view import number_of


class ProcessNames:
    """The names given since this controller started; earlier ones are in the view."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._names: set[str] = set()
        self._incarnations: dict[str, int] = {}

    def incarnation(self, end: str, view: View) -> int:
        """Return the incarnation of the next ingress or egress process."""
        stage = {INGRESS: 0, EGRESS: self._plan.sink_stages[0]}[end]
        served = dict(view.incarnations).get(stage, 1 if view.number else 0)
        self._incarnations[end] = max(served, self._incarnations.get(end, 0)) + 1
        return self._incarnations[end]

    def site(self, wish: str | None, view: View, connected: Iterable[str]) -> str:
        """Return the preferred `site-N` if it was never used; else a free name of the plan, else a further number."""
        taken = self._names | set(connected) | view.dead | (set(view.nodes) if view.number else set())
        names = (wish or "", *self._plan.site_names)
        free = [name for name in names if number_of(name) and name not in taken and not view.has_forgotten(name)]
        highest = max(view.forgotten, *map(number_of, (*taken, *self._plan.site_names)))
        name = [*free, f"site-{highest + 1}"][0]
        self._names.add(name)
        return name
