"""Run state: everything that a driver knows of a run, as its processes report it.

`RunState.apply` changes values only. What a report makes necessary besides, it returns as data: a driver carries that
out, over forked processes or over machines. Times are of the driver's clock.
"""

from __future__ import annotations

import logging
from collections import deque
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ..plan import Plan
from ..plan.plan import CONTROLLER, EGRESS, INGRESS
from ..types.errors import DataLost, FluxError, from_dict
from ..wire import reports
from ..wire.frames import BadFrame, format_value
from . import actions
from .balance_log import BalanceLog
from .dropped_rows import DroppedRows
from .history import History
from .known_changes import KnownChanges
from .measured import EventTotals, Measured
from .processes import Process

INPUTS_TIMEOUT_S = 0.5  # A status waits this long for `has_inputs_of_outputs`: the ingress may just be restarted.
TRANSFERS_MAX = 10_000  # A report has the last transfers, up to this number.


@dataclass
class StateTransfer:
    """The transfer of one partition's state to another site, and for how long it held up both sites."""

    version: int  # The copy that was built from it.
    at: float
    to: str
    size_bytes: int
    snapshot_s: float
    install_s: float = 0.0
    step: str = ""
    partition: int = 0
    donor: str = ""
    send_s: float = 0.0  # From the snapshot until the last chunk was queued.


class Completeness(NamedTuple):
    """When every partition had all its copies; `versions` of copies were begun until then, and none was left."""

    at: float
    versions: int


@dataclass
class SinkProgress:
    """What one sink has taken: in its own positions up to `upto`; the dataflow had `reached` that then."""

    upto: int = 0
    reached: reports.Reached = (0, ())
    rows: int = 0
    ended: bool = False


_ROLES: dict[type[reports.Report], str] = {
    reports.RowsWritten: EGRESS,
    reports.RowsNumbered: INGRESS,
    reports.RowsShed: INGRESS,
    reports.ViewPublished: CONTROLLER,
    reports.Placement: CONTROLLER,
    reports.ProcessStuck: CONTROLLER,
    reports.NodeDead: CONTROLLER,
    reports.SiteDrained: CONTROLLER,
    reports.ComparisonAdvanced: CONTROLLER,
    reports.SiteLoads: CONTROLLER,
    reports.CopiesRetired: CONTROLLER,
    reports.RoundChanged: CONTROLLER,
    reports.CopiesBegun: CONTROLLER,
    reports.CopiesCompared: CONTROLLER,
    reports.ChangeDecided: CONTROLLER,
    reports.ChangePassed: CONTROLLER,
}


@dataclass
class RunState:
    """What is known of the run of `plan`."""

    plan: Plan
    outputs: int = 0  # Of all sinks.
    safe_upto: int = 0  # Up to here all sinks have everything.
    inputs_upto: int = 0  # Up to here the ingress has reported what it has numbered.
    sinks: list[SinkProgress] = field(default_factory=lambda: [SinkProgress()])
    started_at: float | None = None
    ended: bool = False
    error: BaseException | None = None
    history: History = field(default_factory=History)
    closed_at: dict[str, float] = field(default_factory=dict)  # When the controller noticed that a node is dead.
    seen_at: dict[str, float] = field(default_factory=dict)  # The last sign of life of nodes that fell silent.
    wholes: list[Completeness] = field(default_factory=list)
    whole: bool = False  # Whether every partition has all its copies now.
    copies: dict[str, int] = field(default_factory=dict)  # How many copies of partitions each node holds.
    building: int = 0  # Copies in transfer.
    stuck: dict[str, str] = field(default_factory=dict)  # Where code of the user on a node does not return.
    buffered_rows: dict[str, int] = field(default_factory=dict)  # What each node buffers until it is acknowledged.
    spares: tuple[str, ...] = ()  # Sites that were added as such; those of the plan are not among them.
    draining: set[str] = field(default_factory=set)  # Sites that the controller is to empty.
    recent_transfers: list[StateTransfer] = field(default_factory=list)  # Those that a failure may yet need.
    last_transfers: deque[StateTransfer] = field(default_factory=lambda: deque(maxlen=TRANSFERS_MAX))
    changes: list[tuple[float, str]] = field(default_factory=list)  # Of which sites there are, as the user wanted.
    dropped_rows: DroppedRows = field(default_factory=DroppedRows)
    balance: BalanceLog = field(default_factory=BalanceLog)
    known_changes: KnownChanges = field(default_factory=KnownChanges)
    measured: Measured = field(init=False)
    events: EventTotals = field(default_factory=EventTotals)
    stopped: set[str] = field(default_factory=set)  # Nodes that have ended as commanded.
    compared: bool = False  # Whether the controller has compared the copies at the end of the stream.
    comparison_steps: int = 0  # How often a copy that this comparison waits for has advanced.
    diverged: FluxError | None = None  # Two copies had emitted different rows when the run ended.
    deaths: list[Process] = field(default_factory=list)  # In the order in which they were noticed.
    declared: list[Process] = field(default_factory=list)  # Declared dead while the process was there.

    def __post_init__(self) -> None:
        self.measured = Measured(self.plan)

    def apply(self, report: reports.Report, node: str, now: float) -> list[actions.DriverAction]:
        """Take in a report of `node`; return what is to be done. A report that is repeated changes nothing.

        `BadFrame` if a process of its kind does not report that, or if it names what the plan does not have.
        """
        role = _ROLES.get(type(report))
        if role is not None and node.partition(".")[0] != role:
            raise BadFrame(f"expected a report of {node}, got {type(report).__name__}, which only the {role} sends")
        match report:
            case reports.RowsWritten():
                return self._apply_written(report, now)
            case reports.RowsNumbered():
                self.history.add_inputs(report.log, report.total)
                self.inputs_upto = max(self.inputs_upto, report.upto)
            case reports.ViewPublished():
                return self._apply_view(report)
            case reports.Placement():
                self.copies, self.building = report.copies, report.building
            case reports.Load():
                self.buffered_rows[node] = report.buffered_rows
            case reports.Measures():
                self.measured.apply(report, node, now, is_dead=node in self.closed_at)
            case reports.SiteLoads():
                self.balance.apply_loads(report, now)
            case reports.CopiesRetired():
                self.balance.apply_retired(report, now)
            case reports.RoundChanged():
                self.balance.apply_round(report, now)
            case reports.CopiesBegun():
                self.balance.apply_begun(report)
            case reports.ChangeDecided():
                self.known_changes.apply_decided(report)
            case reports.ChangePassed():
                self.known_changes.apply_passed(report)
            case reports.ProcessStuck():
                self.stuck[report.node] = report.text
                text = report.text or "the code that had not returned has: it goes on"
                return [actions.WriteLog(logging.WARNING, report.node, f"{report.node}: {text}")]
            case reports.StateSent():
                self._apply_sent(report, node, now)
            case reports.StateInstalled():
                for transfer in self.recent_transfers:
                    if transfer.version == report.version:
                        transfer.install_s += report.install_s
            case reports.NodeDead():
                return self._apply_dead(report)
            case reports.SiteDrained():
                return [actions.SiteEmpty(report.site)]
            case reports.ProcessFailed():
                return [actions.EndRun(_error_in(report.error))]
            case reports.ComparisonAdvanced():
                self.comparison_steps += 1
            case reports.CopiesCompared():
                error = None if report.error is None else _error_in(report.error)
                self.compared, self.diverged = True, error
                return [actions.ComparisonDone(error)]
            case reports.ProcessStopped():
                self.stopped.add(node)
            case reports.RowsSkipped() | reports.RowsShed() | reports.RowsLate():
                return [actions.WriteLog(logging.WARNING, node, text) for text in self.dropped_rows.apply(report)]
            case reports.LogLine():
                return [actions.WriteLog(report.level, report.node, f"{report.node}: {report.text}")]
            case reports.ProcessUp():
                pass
        return []

    def _apply_written(self, report: reports.RowsWritten, now: float) -> list[actions.DriverAction]:
        if not 0 <= report.sink < len(self.sinks):
            raise BadFrame(f"expected output of one of {len(self.sinks)} sinks, got number {report.sink}")
        sink, had_ended = self.sinks[report.sink], self.ended
        if report.upto > sink.upto or (report.total or 0) > sink.rows:
            # A sink outlives its egress: what one could not report any more is in the total of the next.
            count = report.rows if report.total is None else report.total - sink.rows
            sink.upto, sink.reached, sink.rows = report.upto, (report.position, report.ahead), sink.rows + count
            self.history.add_output((now, report.position, count))
        sink.ended = sink.ended or report.end
        self.outputs = sum(sink.rows for sink in self.sinks)
        self.safe_upto = min(sink.reached[0] for sink in self.sinks)
        self.ended = self.ended or all(sink.ended for sink in self.sinks)
        needed: list[actions.DriverAction] = [actions.StreamEnded()] if self.ended and not had_ended else []
        if self.plan.policy.max_latency_ms is not None:
            needed.append(actions.SendCommand(INGRESS, reports.OutputReached(upto=self.safe_upto)))
        return needed

    def _apply_view(self, report: reports.ViewPublished) -> list[actions.DriverAction]:
        needed: list[actions.DriverAction] = []
        if self.started_at is None:
            self.started_at = report.at
        if self.whole != report.whole:
            what = "every partition has all its copies" if report.whole else "copies are missing"
            needed.append(actions.WriteLog(logging.INFO, CONTROLLER, f"view {report.number}: {what}"))
        self.whole = report.whole
        if self.whole:
            self.wholes.append(Completeness(report.at, report.versions))
        return needed

    def _apply_dead(self, report: reports.NodeDead) -> list[actions.DriverAction]:
        if report.node in self.closed_at:
            return []
        if report.seen_at is not None:
            self.seen_at[report.node] = report.seen_at
        self.closed_at[report.node] = report.at
        self.measured.forget(report.node)
        return [actions.NodeDied(report.node)]

    def _apply_sent(self, report: reports.StateSent, donor: str, now: float) -> None:
        if report.stage not in self.plan.stages:
            raise BadFrame(f"expected state of a stage from 1 to {len(self.plan.segments)}, got {report.stage}")
        transfer = StateTransfer(
            version=report.version,
            at=now,
            to=report.to,
            size_bytes=report.size_bytes,
            snapshot_s=report.snapshot_s,
            step=self.plan.segment(report.stage).title,
            partition=report.partition,
            donor=donor,
            send_s=report.send_s,
        )
        self.events.add_move(report.stage, report.size_bytes)
        self.measured.note_state(report.stage, report.partition, report.size_bytes)
        self.recent_transfers.append(transfer)
        self.last_transfers.append(transfer)

    @property
    def has_inputs_of_outputs(self) -> bool:
        """Whether the ingress has reported all input that the output stems from: it reports less often than the egress.

        Until then a status would have more rows out than in.
        """
        return self.error is not None or max(sink.reached[0] for sink in self.sinks) <= self.inputs_upto

    @property
    def failure(self) -> BaseException | None:
        """Why the run has failed. That copies differ may only be known after the end of the stream."""
        return self.error or (self.diverged if self.ended else None)

    @property
    def stuck_text(self) -> str:
        """Where code of the user does not return, to be added to an error; empty if there is no such code."""
        return "".join(f". {node}: {text}" for node, text in sorted(self.stuck.items()))

    def safe(self, error: BaseException) -> BaseException:
        """Return the error with what is known to be safe."""
        if isinstance(error, DataLost):
            return DataLost(error.partitions, self.safe_upto or None, copies=error.copies)
        return error


def _error_in(document: dict[str, Any]) -> FluxError:
    try:
        return from_dict(document)
    except (AttributeError, TypeError, ValueError) as error:
        raise BadFrame(f"expected an error of Flux, got {format_value(document)}") from error
