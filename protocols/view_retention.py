"""View retention: which views the live nodes have seen, and so which ones the journal may drop (rule 33).

A node that connects to a controller that was started again is sent every view after the last one it has seen
(rule 26). So a view stays in the journal until every live node has seen it. A node that has not connected since the
controller began may have seen none; a new node begins with the view that first lists it. The last view always stays:
the next controller begins with it.
"""

from __future__ import annotations

from .machine import Machine
from .messages import View


class ViewRetention(Machine):
    """The views that live nodes have seen, as far as the controller that began with the view `last` knows."""

    def __init__(self, last: View | None) -> None:
        living = [] if last is None else [node for node in last.nodes if last.alive(node)]
        self.upto: dict[str, int] = dict.fromkeys(living, 0)

    def publish(self, view: View) -> None:
        """Record that `view` is the last one from now on."""
        self.upto = {node: self.upto.get(node, view.last_number) for node in view.nodes if view.alive(node)}

    def take(self, node: str, number: int) -> None:
        """Record that `node` has seen the views up to `number`, or will have before it sends anything else."""
        if node in self.upto:
            self.upto[node] = max(self.upto[node], number)

    @property
    def by_all(self) -> int:
        """The number of the last view that all live nodes have seen."""
        return min(self.upto.values(), default=0)
