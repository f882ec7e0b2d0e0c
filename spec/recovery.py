"""Invariants of recovery: where and in which order copies are rebuilt, which nodes are removed, what numbers mean.

The controller decides the first two. What numbers mean must hold for an ingress that is started again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from ..protocols.messages import Move, Pull, Standby, View
from ..protocols.pooler import Pooler
from ..protocols.view import RETIRED, number_of
from .dataflow import EGRESS, INGRESS, WANTED_MAX, Scenario
from .process import Checker, CopyPlace, SimulatedProcess


class OneCopyPerSite(Checker):
    """Section 3.4: no two copies of a partition are on the same site, or in transfer to it."""

    claim = "never two copies on one site"

    def published(self, scenario: Scenario, before: View, view: View) -> None:
        for stage, partitions in enumerate(view.copies):
            for partition, copies in enumerate(partitions):
                in_transfer = [s.node for s in view.standby if (s.stage, s.partition) == (stage, partition)]
                nodes = [node for node in copies if node not in view.dead] + in_transfer
                if len(nodes) != len(set(nodes)):
                    raise self.violated(f"stage {stage}, partition {partition} lives on {nodes}")

    def installed(self, process: SimulatedProcess, place: CopyPlace) -> None:
        if place in process.states:
            raise self.violated(f"{process.name} has a copy of {place} and is given another")


class RecoveryEnds(Checker):
    """Section 3.4.3: every lost copy is rebuilt, if there is a site that may hold it."""

    claim = "recovery ends"

    def published(self, scenario: Scenario, before: View, view: View) -> None:
        # A fault costs each copy at most its place and one transfer, and so does `Retire`. More than that is a cycle.
        faults = scenario.crashes + scenario.restarts + scenario.suspicions + scenario.cuts
        faults += len(scenario.retires) * len(scenario.slow)
        copies = sum(len(copies) for partitions in view.copies for copies in partitions)
        moves = 100 * WANTED_MAX if scenario.restless else len(scenario.moves)
        if view.versions > 2 * faults * copies + (faults + 1) * moves:
            raise self.violated(f"{faults} faults, {copies} copies, and {view.versions} were begun: it does not end")

    def at_rest(self, scenario: Scenario, live: Sequence[SimulatedProcess], view: View) -> None:
        if view.standby:
            raise self.violated(f"nothing is left to happen, and {view.standby} are not live")
        for stage in (0, len(view.copies) - 1):
            if not view.live_copies(stage, 0):
                raise self.violated(f"nothing is left to happen, and no node serves the end {stage}")
        sites = {process.name for process in live if process.role not in (INGRESS, EGRESS)}
        for stage, partitions in enumerate(view.copies[1:-1], start=1):
            for partition, copies in enumerate(partitions):
                places = sites - set(copies) - (view.slow if _is_only_retired(view, copies) else set())
                if set(copies) & view.dead and places:
                    raise self.violated(f"stage {stage}, partition {partition} is left with {copies}")
                for node in set(copies) - view.dead:
                    if not any(p.name == node and (stage, partition) in p.states for p in live):
                        raise self.violated(f"{node} has no state of stage {stage}, partition {partition}")


class SourceFirst(Checker):
    """Section 3.4.3.3: lost copies are rebuilt from source to destination, a stage at a time, a few at once."""

    claim = "rebuilt from the source on"

    def published(self, scenario: Scenario, before: View, view: View) -> None:
        building = Counter(standby.stage for standby in view.standby)
        lacking = (s for s in range(1, scenario.stages + 1) if building[s] or _to_be_rebuilt(view, s))
        first = next(lacking, len(view.copies))
        if not building[first] and first < len(view.copies) and scenario.at_once:
            raise self.violated(f"nothing is done about the lost copies of stage {first}: {view.copies[first]}")
        for new in _begun(before, view):
            if new.stage > first or building[new.stage] > scenario.at_once:
                raise self.violated(f"{new} is begun while stage {first} lacks copies, or is one too many")


class LeastFirst(Checker):
    """Section 3.4.3.3, rule 38: a lost copy is rebuilt where copies cost least, of the sites that may have it."""

    claim = "rebuilt where least is"

    def published(self, scenario: Scenario, before: View, view: View) -> None:
        for new in _begun(before, view):
            free = _free(view, view.copies[new.stage][new.partition])
            load = {node: self._load(scenario, view, node, new.version) for node in free}
            if load[new.node] > min(load.values()):
                raise self.violated(f"version {new.version} is built on {new.node}, where the load is {load}")

    def _load(self, scenario: Scenario, view: View, node: str, version: int) -> tuple[bool, float]:
        held = sum(copies.count(node) for partitions in view.copies for copies in partitions)
        building = sum(standby.node == node for standby in view.standby if standby.version < version)
        costs = dict(scenario.copy_costs)
        usual = sum(costs.values()) / len(costs) if costs else 1.0
        return node in view.slow, (held + building + 1) * costs.get(node, usual)


class CutAtOnce(Checker):
    """Rules 3, 16: a donor cuts a state that was requested when its operator has finished the step it is in."""

    claim = "a state is cut at once"

    def answered(self, process: SimulatedProcess, stage: int) -> None:
        machine = process.node.machines[stage]
        if isinstance(machine, Pooler) and len(machine.cons.cohorts) == 1 and machine.mover.wanted:
            versions, reached = sorted(machine.mover.wanted), machine.cons.consumed
            raise self.violated(f"{process.name} has finished a step at {reached}, and has not cut {versions}")


class MovesBegin(Checker):
    """Section 5.1: a copy that is asked to move, and may, is in transfer; else nothing changes."""

    claim = "moves begin"

    def asked(self, before: View, move: Move, view: View) -> None:
        copies = before.copies[move.stage][move.partition]
        ends = {node for partitions in (before.copies[0], before.copies[-1]) for node in partitions[0]}
        is_free = before.alive(move.to) and move.to not in (*ends, *copies)
        is_still = all((s.stage, s.partition) != (move.stage, move.partition) for s in before.standby)
        may = before.number > 0 and is_free and is_still and before.alive(copies[move.slot])
        begun = [s for s in view.standby if s not in before.standby]
        wanted = [(move.stage, move.partition, move.slot, move.to)] if may else []
        if wanted != [(s.stage, s.partition, s.slot, s.node) for s in begun[:1]] or (not may and view != before):
            raise self.violated(f"{move} is asked for in view {before.number}, and {begun or 'nothing'} begins")


class NothingGivenUp(Checker):
    """Rule 17: the controller reports a partition lost only when no process has a copy that is in the view."""

    claim = "nothing given up"

    def lost(self, live: Sequence[SimulatedProcess], view: View, places: Sequence[CopyPlace]) -> None:
        for stage, partition in places:
            if stage in (0, len(view.copies) - 1):
                raise self.violated(f"the end {stage} is started again, and needs no copy")
            in_transfer = {s.node for s in view.standby if (s.stage, s.partition) == (stage, partition)}
            for process in live:
                counts = process.name in in_transfer or process.name in view.copies[stage][partition]
                if counts and (stage, partition) in process.states:
                    raise self.violated(f"{process.name} has a copy of stage {stage}, partition {partition}")


class LastCopyStays(Checker):
    """Rule 19: of nodes that may be alive, one that can be spared is removed, and never the holder of a last copy."""

    claim = "the last copy stays"

    def doubted(self, view: View, doubted: Sequence[str], removed: Sequence[str]) -> None:
        for node in removed:
            if self._is_needed(view, node):
                raise self.violated(f"{node} is declared dead in view {view.number}, and has the last copy")
        if removed and not all(view.alive(node) for node in doubted):
            raise self.violated(f"of {doubted} one was dead in view {view.number}, and {removed} were removed as well")
        sites = [node for node in doubted if node not in (*view.copies[0][0], *view.copies[-1][0])]
        spared = [node for node in sites if not self._is_needed(view, node)]
        if spared and not removed and all(view.alive(node) for node in doubted):
            raise self.violated(f"{spared} could be spared in view {view.number}, and none of them was removed")

    def _is_needed(self, view: View, node: str) -> bool:
        for stage, partitions in enumerate(view.copies[1:-1], start=1):
            for partition, copies in enumerate(partitions):
                others = {copy for copy in copies if copy not in view.dead and copy != node}
                in_transfer = {s.node for s in view.standby if (s.stage, s.partition) == (stage, partition)}
                if not others and (node in copies or node in in_transfer):
                    return True
        return False


class ViewsStaySmall(Checker):
    """Rule 32: a death is listed once; then the dead are left out, except those in a slot, and never return."""

    claim = "views stay small"

    def published(self, scenario: Scenario, before: View, view: View) -> None:
        placed = {node for partitions in view.copies for copies in partitions for node in copies} - {RETIRED}
        listed = before.dead - {RETIRED} if before.number else frozenset()
        if too_many := (view.dead & listed) - placed:
            raise self.violated(f"view {view.number} lists {sorted(too_many)}, whose death was listed before")
        left_out = set(before.nodes) - set(view.nodes)
        if unlisted := (left_out - listed) | (placed - set(view.nodes)):
            raise self.violated(f"view {view.number} leaves out {sorted(unlisted)}, which are still needed")
        back = [node for node in set(view.nodes) - set(before.nodes) if 0 < number_of(node) <= before.forgotten]
        unknown = [node for node in left_out if number_of(node) > view.forgotten]
        if back or unknown or not view.dead - {RETIRED} <= set(view.nodes):
            raise self.violated(f"{back} may be back in view {view.number}, or {unknown} may return")


class OneMeaning(Checker):
    """A number that a node or a sink has seen is given to other rows by no later ingress (rule 39)."""

    claim = "a number has one meaning"

    def numbering(self, seen: Mapping[str, int], process: SimulatedProcess, pull: Pull) -> None:
        if pull.after > process.numbered:
            raise self.violated(
                f"{process.name} numbers rows after {pull.after}, and its source stands at the end of its journal, "
                f"after {process.numbered}"
            )
        if pull.after < max(process.numbered, pull.given_upto):
            return  # It is in the journal, or the ingress knows that it must give the same rows again.
        for name, highest in seen.items():
            if highest > pull.after:
                raise self.violated(f"{process.name} numbers rows after {pull.after}, and {name} has seen {highest}")


def _begun(before: View, view: View) -> list[Standby]:
    """The copies that are rebuilt from this view on, without moves, which are requested."""
    new = [standby for standby in view.standby if standby.version > before.versions]
    return [standby for standby in new if view.copies[standby.stage][standby.partition][standby.slot] in view.dead]


def _free(view: View, copies: Sequence[str]) -> list[str]:
    """The sites that may have one more copy of a partition; slow ones not if that replaces a copy that was retired."""
    ends = {node for partitions in (view.copies[0], view.copies[-1]) for node in partitions[0]}
    others = {*ends, *copies, *(view.slow if _is_only_retired(view, copies) else ())}
    return [node for node in view.nodes if view.alive(node) and node not in others]


def _is_only_retired(view: View, copies: Sequence[str]) -> bool:
    """Whether copies were retired and none has died."""
    return RETIRED in copies and view.dead.isdisjoint(set(copies) - {RETIRED})


def _to_be_rebuilt(view: View, stage: int) -> list[int]:
    """The partitions of a stage that lack a copy, and for which there is a place."""
    partitions = enumerate(view.copies[stage])
    return [p for p, copies in partitions if not view.dead.isdisjoint(copies) and _free(view, copies)]
