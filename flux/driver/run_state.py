"""Heard: everything the program's thread has learnt of a run."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ..controller.divergence import Divergence
from ..plan import Plan
from ..types.errors import OperatorError
from .dropped_rows import DroppedRows
from .history import History
from .processes import Process

MOVES_MAX = 10_000  # Of more moves, a report tells the last.


@dataclass
class StateMove:
    """The state of one partition that went to another site, and for how long it kept both sites from all else."""

    version: int  # The copy that was built from it.
    at: float
    to: str
    size_bytes: int
    cut_s: float
    install_s: float = 0.0
    step: str = ""
    partition: int = 0
    donor: str = ""
    send_s: float = 0.0  # From the cut until all was on its way.


class Completeness(NamedTuple):
    """When every partition had all its copies; `versions` of copies had been begun by then, and none was left."""

    at: float
    versions: int


@dataclass
class SinkProgress:
    """What one sink has taken: in its own positions up to `upto`; the dataflow had `reached` that then."""

    upto: int = 0
    reached: tuple[int, Sequence[Any]] = (0, ())
    rows: int = 0
    ended: bool = False


@dataclass
class RunState:
    """What the program knows of the run. Times are of the monotonic clock."""

    outputs: int = 0  # Of all sinks.
    safe_upto: int = 0  # Up to here all sinks have everything.
    sinks: list[SinkProgress] = field(default_factory=lambda: [SinkProgress()])
    started_at: float | None = None
    ended: bool = False
    error: BaseException | None = None
    history: History = field(default_factory=History)
    closed_at: dict[str, float] = field(default_factory=dict)  # When the controller noticed that a node is dead.
    seen_at: dict[str, float] = field(default_factory=dict)  # The last sign of life of those that fell silent.
    wholes: list[Completeness] = field(default_factory=list)
    whole: bool = False  # Whether it is so now.
    copies: dict[str, int] = field(default_factory=dict)  # How many copies of partitions each node holds.
    building: int = 0  # Copies that are on their way.
    buffered_rows: dict[str, int] = field(default_factory=dict)  # What each node keeps until it is acknowledged.
    draining: set[str] = field(default_factory=set)  # Sites that the controller is to empty.
    moved: list[StateMove] = field(default_factory=list)  # Those that a death may yet need.
    moves: deque[StateMove] = field(default_factory=lambda: deque(maxlen=MOVES_MAX))
    changes: list[tuple[float, str]] = field(default_factory=list)  # Of which sites there are, as the user wanted.
    left_out: DroppedRows = field(default_factory=DroppedRows)
    byes: set[str] = field(default_factory=set)
    diverged: OperatorError | None = None  # Two copies had emitted different rows when the run ended.
    deaths: list[Process] = field(default_factory=list)  # In the order in which they were noticed.
    declared: list[Process] = field(default_factory=list)  # Dead for the controller while the process was there.

    def take(self, header: dict[str, Any], now: float) -> None:
        """A sink has taken rows, of which the egress tells; what it tells again changes nothing."""
        sink = self.sinks[header.get("sink", 0)]
        if header["upto"] > sink.upto or header.get("total", 0) > sink.rows:
            # A sink outlives its egress: what one had not told any more is in the total of the next.
            count = header["total"] - sink.rows if "total" in header else header["count"]
            position, ahead = header.get("reached") or (header["upto"], ())
            sink.upto, sink.reached, sink.rows = header["upto"], (position, ahead), sink.rows + count
            self.history.add_output((now, position, count))
        sink.ended = sink.ended or header["end"]
        self.outputs = sum(sink.rows for sink in self.sinks)
        self.safe_upto = min(sink.reached[0] for sink in self.sinks)
        self.ended = self.ended or all(sink.ended for sink in self.sinks)

    def hear_gone(self, header: dict[str, Any]) -> None:
        """The controller says that a node is dead; what it says again changes nothing."""
        if header["node"] not in self.closed_at and header.get("seen_at") is not None:
            self.seen_at[header["node"]] = header["seen_at"]
        self.closed_at.setdefault(header["node"], header["at"])

    def hear_moved(self, donor: str, header: dict[str, Any], plan: Plan, now: float) -> None:
        """A site has sent the state of a partition to another."""
        moved = StateMove(
            version=header["version"],
            at=now,
            to=header["to"],
            size_bytes=header["bytes"],
            cut_s=header["cut_s"],
            step=plan.segment(header["stage"]).title,
            partition=header["partition"],
            donor=donor,
            send_s=header["send_s"],
        )
        self.moved.append(moved)
        self.moves.append(moved)

    def hear_installed(self, header: dict[str, Any]) -> None:
        """The other has it in place."""
        for moved in self.moved:
            if moved.version == header["version"]:
                moved.install_s += header["install_s"]

    def hear_bye(self, node: str, header: dict[str, Any], divergence: Divergence) -> None:
        """A process has ended as it was told; a site says last what its copies have emitted in all."""
        self.byes.add(node)
        for place in header.get("digests", ()):
            self.diverged = divergence.compare(node, *place) or self.diverged
