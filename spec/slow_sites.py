"""Invariants of slow sites: what is taken from them, that nothing waits for them, what is retired (rules 34, 35, 42).

A slow site may be arbitrarily slow. The hardest case is one that does nothing at all from the moment it is marked
(`Scenario.freezes`): all others must then come to rest with the whole output at the sinks, and with its copies moved
off if that was requested.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..protocols.egress import Egress
from ..protocols.ingress import Ingress
from ..protocols.messages import Attach, View
from ..protocols.view import RETIRED
from .dataflow import EGRESS, Scenario
from .process import Checker, SimulatedProcess, channels_of


class AnotherDonates(Checker):
    """Rule 34: a copy is built from another one than it replaces, and from one that is not slow, if there is one."""

    claim = "another copy is the donor"

    def published(self, scenario: Scenario, before: View, view: View) -> None:
        for new in [standby for standby in view.standby if standby.version > before.versions]:
            live = view.live_copies(new.stage, new.partition)
            leaving = view.copies[new.stage][new.partition][new.slot]
            others = [node for node in live if node != leaving] or list(live)
            prompt = [node for node in others if node not in view.slow] or others
            if new.donor not in prompt:
                raise self.violated(f"version {new.version} is built from {new.donor}, and could be from {prompt}")


class SlowFeedNone(Checker):
    """Rule 35: a slow site feeds no consumer for which another live copy is not slow."""

    claim = "slow sites feed none"

    def attached(self, process: SimulatedProcess, sender: str, attach: Attach) -> None:
        view = process.node.view
        assert view is not None, f"{process.name} attaches before its first view"
        for _, producer, _ in channels_of(attach):
            self._expect(process, view, sender, attach.edge, producer)

    def at_rest(self, scenario: Scenario, live: Sequence[SimulatedProcess], view: View) -> None:
        if not view.slow:
            return
        for process in live:
            for machine in process.node.machines.values():
                lanes = [] if isinstance(machine, Ingress) else machine.cons.lanes.values()
                for lane in lanes:
                    for block in lane.channels:
                        for producer in block.producers:
                            self._expect(process, view, lane.sender, lane.edge, producer)

    def _expect(self, process: SimulatedProcess, view: View, sender: str, edge: int, producer: int) -> None:
        prompt = [node for node in view.live_copies(view.edges[edge][0], producer) if node not in view.slow]
        if sender in view.slow and prompt:
            raise self.violated(f"{process.name} is fed by {sender}, which is slow, and {prompt} are not")


class PromptCopyStays(Checker):
    """Rule 42: only a slow site's copies are retired, all at once, each with a live partner on a site that is not slow.

    None is rebuilt on a slow site: it would be retired again.
    """

    claim = "a copy that is not slow stays"

    def published(self, scenario: Scenario, before: View, view: View) -> None:
        retired = set()
        for stage, partitions in enumerate(view.copies):
            for partition, copies in enumerate(partitions):
                slots = zip(before.copies[stage][partition], copies, strict=True)
                new = {old for old, now in slots if now == RETIRED != old}
                retired |= new
                live = view.live_copies(stage, partition)
                if new and (not new <= before.slow or view.slow.issuperset(live)):
                    raise self.violated(f"{new} of stage {stage}, partition {partition} are retired, left: {live}")
        if left := [node for node in retired if any(node in slots for stage in view.copies for slots in stage)]:
            raise self.violated(f"only some copies of {left} are retired")
        for begun in [standby for standby in view.standby if standby.version > before.versions]:
            if view.copies[begun.stage][begun.partition][begun.slot] == RETIRED and begun.node in view.slow:
                raise self.violated(f"version {begun.version} was retired, and is built on {begun.node}, which is slow")


class NoneWaits(Checker):
    """Rules 34, 35: a slow site that stands still holds up no output, no rebuilt copy and no move."""

    claim = "none waits for slow sites"

    def standing(self, scenario: Scenario, live: Sequence[SimulatedProcess], view: View) -> None:
        if view.standby:
            raise self.violated(f"{sorted(view.slow)} stand still, and {view.standby} are not live")
        for process in live:
            if process.role != EGRESS:
                continue
            for stage, machine in process.node.machines.items():
                consumed = machine.cons.consumed if isinstance(machine, Egress) else 0
                if consumed < scenario.last_sn:
                    raise self.violated(
                        f"{sorted(view.slow)} stand still, and the sink of stage {stage} has {consumed} of "
                        f"{scenario.last_sn}"
                    )
