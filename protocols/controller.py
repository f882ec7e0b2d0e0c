"""Controller: owns the view and announces failures to everyone in one order (thesis 3.2.3.1, 3.4.3.3).

It waits until every node of the plan is there, publishes the first view, and from then on a view for
each node that dies. When a partition has no copy left it says so, and the dataflow stops.
Not here yet: standbys, catch-up, the journal.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from .machine import Machine, Rule, ignore
from .messages import Closed, Effect, Hello, Lost, Publish, View


class Controller(Machine):
    """Keeper of the view that starts as `plan` (a view with number 0)."""

    def __init__(self, plan: View) -> None:
        self.view = plan
        self.present: tuple[str, ...] = ()

    # Guards.

    def completes_the_plan(self, message: Hello) -> bool:
        return self.is_awaited(message) and len(self.present) + 1 == len(self.view.nodes)

    def is_awaited(self, message: Hello) -> bool:
        return message.node in self.view.nodes and message.node not in self.present and self.view.number == 0

    def is_setting_up(self, message: Closed) -> bool:
        return self.view.number == 0

    def was_alive(self, message: Closed) -> bool:
        return self.view.alive(message.node)

    def is_known_dead(self, message: Closed) -> bool:
        return message.node in self.view.dead

    # Actions.

    def admit(self, message: Hello) -> Iterator[Effect]:
        self.present = (*self.present, message.node)
        yield from ()

    def publish_the_first_view(self, message: Hello) -> Iterator[Effect]:
        self.present = (*self.present, message.node)
        self.view = replace(self.view, number=1)
        yield Publish(view=self.view)

    def announce(self, message: Closed) -> Iterator[Effect]:
        self.view = replace(self.view, number=self.view.number + 1, dead=self.view.dead | {message.node})
        lost = self.view.lost()
        if lost:
            yield Lost(partitions=lost)
        else:
            yield Publish(view=self.view)


_ROWS = (
    Rule(
        on=Hello,
        guard=Controller.completes_the_plan,
        action=Controller.publish_the_first_view,
        cites="3.2.3.1: set up the dataflow",
    ),
    Rule(on=Hello, guard=Controller.is_awaited, action=Controller.admit, cites="3.2.3.1: set up the dataflow"),
    Rule(on=Closed, guard=Controller.is_setting_up, action=ignore, cites="whoever started it sees it fail"),
    Rule(on=Closed, guard=Controller.was_alive, action=Controller.announce, cites="3.2.3.1: fail"),
    Rule(on=Closed, guard=Controller.is_known_dead, action=ignore, cites="a node dies once"),
)
Controller.RULES = _ROWS
