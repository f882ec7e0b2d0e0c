"""Invariants of space and of steps: what pools may keep, for which consumers, and how much is consumed at once."""

from __future__ import annotations

from collections.abc import Set

from ..protocols.buffer import Buffer
from ..protocols.charges import Dest, Group
from ..protocols.egress import Egress
from ..protocols.fh_prod import FhProd
from ..protocols.messages import Ack, Consume, OutputRun, PeerMessage, Pull
from .process import Checker, SimulatedProcess


class WithinBounds(Checker):
    """Fig. 3.4, rule 8: no work begins when the pool is full, except by a cohort that lags what the pool holds.

    Such a cohort takes no frame that begins beyond its work. The pool is full when it keeps the bound for any consumer;
    if rows are counted, when all consumers together need that much beyond a run each. For one with a state transfer in
    flight, and until it has caught up, more may be kept. With each ack this quota shrinks by at least half of what was
    acknowledged (rule 31).
    """

    claim = "buffers within their bound"

    def __init__(self) -> None:
        self._quota_rows: int | None = None  # What may be kept for the sender of an ack, before the ack is taken,
        self._kept = 0  # and what is kept.

    def acknowledging(self, process: SimulatedProcess, ack: Ack) -> None:
        buffer, dest = _buffer_for(process, ack), (ack.edge, ack.sender)
        self._quota_rows = None
        if buffer is not None and dest in buffer.quota_rows and dest not in buffer.in_transfer:
            self._quota_rows, self._kept = buffer.quota_rows[dest], buffer.kept_for(dest)

    def accepted(self, process: SimulatedProcess, message: PeerMessage) -> None:
        if self._quota_rows is None or type(message) is not Ack:
            return
        buffer, dest = _buffer_for(process, message), (message.edge, message.sender)
        assert buffer is not None
        quota_rows = buffer.quota_rows.get(dest)  # None: it has caught up.
        if quota_rows is not None and 2 * (self._quota_rows - quota_rows) < self._kept - buffer.kept_for(dest):
            raise self.violated(f"{process.name} may keep {quota_rows} rows for {dest[1]}, which catches up")

    def given(self, process: SimulatedProcess, work: Consume | Pull) -> None:
        machine = process.node.machines[work.stage if isinstance(work, Consume) else 0]
        if isinstance(machine, Egress):
            return
        view = process.node.view
        assert view is not None
        building = {(standby.stage, standby.node) for standby in view.standby}
        building |= {(stage, node) for node in view.slow for stage in range(len(view.copies))}
        others = [dest for dest in machine.prod.buffer.in_transfer if (view.edges[dest[0]][1], dest[1]) not in building]
        if others:
            raise self.violated(f"{process.name} keeps more for {others}: not slow, no state transfer in flight")
        crowded = self._crowded(process, machine.prod)
        if crowded and all(run.upto <= work.after for run in machine.prod.buffer.runs):
            raise self.violated(f"{process.name} begins {work} and keeps {crowded}")
        early = [f for f in work.frames if f.after >= work.upto] if isinstance(work, Consume) else []
        if crowded and early:
            raise self.violated(f"{process.name} takes early rows in {work} and keeps {crowded}")

    def _crowded(self, process: SimulatedProcess, prod: FhProd) -> str:
        """Name the first consumer for which too much is kept; empty if there is none."""
        bound, more = process.scenario.bound_rows, process.scenario.transfer_rows_max
        if process.scenario.counted:
            return _crowded_by_need(process, prod.buffer)
        for dest, floor in prod.buffer.floors.items() or [((0, "no consumer"), 0)]:
            kept = sum(len(run.body) for run in prod.buffer.runs if run.upto > floor)
            if kept >= (bound if more is None or dest not in prod.buffer.quota_rows else more):
                return f"{kept} rows for {dest[1]}"
        for edge in {edge for edge, _ in prod.buffer.floors}:
            kept = rows_for_all(prod.buffer, edge)
            if kept >= bound:
                return f"{kept} rows that no consumer has consumed"
        return ""


class ChargedByNeed(Checker):
    """Rule 37: a pool is full of what consumers need, and what it holds beyond that is cut out of its runs."""

    claim = "pools hold what is needed"

    def answered(self, process: SimulatedProcess, stage: int) -> None:
        machine = process.node.machines[stage]
        if not isinstance(machine, Egress):
            self._expect(process, machine.prod.buffer)

    def _expect(self, process: SimulatedProcess, buffer: Buffer) -> None:
        if not process.scenario.counted:
            return
        self._expect_sums(process, buffer)
        held = sum(len(run.body) for run in buffer.runs)
        if buffer.full() and not _crowded_by_need(process, buffer):
            raise self.violated(f"{process.name} has no room, and holds {held} rows of which few are needed")
        if 2 * held <= buffer.bound_rows:
            return
        for position in sorted({run.upto for run in buffer.runs}):
            runs = [run for run in buffer.runs if run.upto == position and _is_counted(process, run)]
            here, needed = sum(len(run.body) for run in runs), sum(_needed(process, buffer, run) for run in runs)
            if here and 4 * needed <= 3 * here:
                raise self.violated(
                    f"{process.name} holds {held} rows, and of {here} up to {position} only {needed} are needed"
                )

    def _expect_sums(self, process: SimulatedProcess, buffer: Buffer) -> None:
        """The sums that the pool keeps are those of its rows, counted one by one."""
        here = sum(len(run.body) for run in buffer.runs)
        if buffer.rows != here:
            raise self.violated(f"{process.name} counts {buffer.rows} rows, and holds {here}")
        for dest in buffer.floors:
            needed = sum(_needed(process, buffer, run, dest) for run in buffer.runs)
            if buffer.kept_for(dest) != needed:
                raise self.violated(f"{process.name} counts {buffer.kept_for(dest)} rows for {dest[1]}, not {needed}")


class ShortSteps(Checker):
    """Rule 36: a step takes no more positions than was set, and than was asked for after the last one."""

    claim = "steps are short"

    def given(self, process: SimulatedProcess, work: Consume | Pull) -> None:
        if not isinstance(work, Consume) or isinstance(process.node.machines[work.stage], Egress):
            return
        asked = (process.scenario.step, process.paced.get(work.stage))
        most = min([each for each in asked if each is not None], default=None)
        if most is None or (work.ordered and work.upto - work.after <= most):
            return
        spans = [(frame.after, frame.upto) for frame in work.frames]
        if work.ordered or (spans and max(upto for _, upto in spans) - min(after for after, _ in spans) > most):
            raise self.violated(f"{process.name} begins {work}, and a step may take {most}")


def rows_for_all(buffer: Buffer, edge: int) -> int:
    """The rows that no consumer of an edge has consumed, as far as is known, if more is kept for each of them."""
    dests = {dest for dest in buffer.floors if dest[0] == edge}
    if not dests <= buffer.quota_rows.keys():
        return 0
    lead = max(map(buffer.progress, dests))
    return sum(len(run.body) for run in buffer.runs if run.upto > lead)


def _crowded_by_need(process: SimulatedProcess, buffer: Buffer) -> str:
    """Say how much all consumers need, if that is too much, or name one for which too much is kept."""
    quotas = buffer.quota_rows
    for dest, rows in quotas.items():
        kept = sum(_needed(process, buffer, run, dest) for run in buffer.runs)
        if kept >= rows:
            return f"{kept} rows for {dest[1]}"
    positions = _by_position(process, buffer, quotas.keys()).values()
    total = sum(sum(counts.values()) - counts[min(counts)] for counts in positions)
    others = [floor for dest, floor in buffer.floors.items() if dest not in quotas]
    uncounted = [run for run in buffer.runs if not _is_counted(process, run)]
    others = others or [max(map(buffer.progress, buffer.floors), default=buffer.newest)]
    total += sum(len(run.body) for run in uncounted if run.upto > min(others))
    return f"{total} rows beyond a run for each consumer" if total >= buffer.bound_rows else ""


def _is_counted(process: SimulatedProcess, run: OutputRun) -> bool:
    """Whether the rows of a run are charged by destination."""
    return bool(run.counts) if process.scenario.some_uncounted else process.scenario.counted


def _by_position(process: SimulatedProcess, buffer: Buffer, without: Set[Dest]) -> dict[Group, dict[int, int]]:
    """How many rows each group of nodes, but for some of them, still needs of the runs that end at each position."""
    found: dict[Group, dict[int, int]] = {}
    for run in [run for run in buffer.runs if _is_counted(process, run)]:
        for takers, count in _needed_by(process, buffer, run, without).items():
            positions = found.setdefault(takers, {})
            positions[run.upto] = positions.get(run.upto, 0) + count
    return found


def _needed(process: SimulatedProcess, buffer: Buffer, run: OutputRun, dest: Dest | None = None) -> int:
    """How many rows of a run have not been acknowledged by all that take them, or by `dest`; all, if not counted."""
    needed = _needed_by(process, buffer, run)
    if dest is None:
        return sum(needed.values())
    if buffer.floors[dest] >= run.upto:
        return 0
    if not _is_counted(process, run):
        return len(run.body)
    return sum(count for (edge, nodes), count in needed.items() if edge == dest[0] and dest[1] in nodes)


def _needed_by(
    process: SimulatedProcess, buffer: Buffer, run: OutputRun, without: Set[Dest] = frozenset()
) -> dict[Group, int]:
    """How many rows of a run each group of nodes that take the same partitions still needs, but for some of them."""
    view = process.node.view
    assert view is not None
    needed: dict[Group, int] = {}
    for row in run.body:
        nodes = view.takers(view.edges[row.edge][1])[row.consumer]
        dests = [(row.edge, node) for node in nodes if (row.edge, node) in buffer.floors]
        floors = [buffer.floors[dest] for dest in dests if dest not in without]
        if not floors and dests:  # Of those that all lag, the one that is furthest ahead is waited for.
            floors = [max(map(buffer.progress, dests))]
        if any(floor < run.upto for floor in floors):
            needed[row.edge, nodes] = needed.get((row.edge, nodes), 0) + 1
    return needed


def _buffer_for(process: SimulatedProcess, ack: Ack) -> Buffer | None:
    """The buffer that an ack is for."""
    view = process.node.view
    if view is None or not 0 <= ack.edge < len(view.edges):
        return None
    machine = process.node.machines.get(view.edges[ack.edge][0])
    return None if machine is None or isinstance(machine, Egress) else machine.prod.buffer
