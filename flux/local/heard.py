"""Heard: everything the program's thread has learnt of a run."""

from __future__ import annotations

from dataclasses import dataclass, field

from ..errors import OperatorError
from .history import History
from .left_out import LeftOut
from .processes import Process


@dataclass
class Moved:
    """The state of one partition that went to another site, and for how long it kept both sites from all else."""

    version: int  # The copy that was built from it.
    at: float
    to: str
    size_bytes: int
    cut_s: float
    install_s: float = 0.0


@dataclass
class Heard:
    """What the program knows of the run. Times are of the monotonic clock."""

    outputs: int = 0
    safe_upto: int = 0
    started_at: float | None = None
    ended: bool = False
    error: BaseException | None = None
    history: History = field(default_factory=History)
    closed_at: dict[str, float] = field(default_factory=dict)
    whole_at: list[float] = field(default_factory=list)  # When every partition had all its copies (again).
    whole: bool = False  # Whether it is so now.
    copies: dict[str, int] = field(default_factory=dict)  # How many copies of partitions each node holds.
    building: int = 0  # Copies that are on their way.
    buffered_rows: dict[str, int] = field(default_factory=dict)  # What each node keeps until it is acknowledged.
    draining: set[str] = field(default_factory=set)  # Sites that the controller is to empty.
    moved: list[Moved] = field(default_factory=list)
    left_out: LeftOut = field(default_factory=LeftOut)
    byes: set[str] = field(default_factory=set)
    diverged: OperatorError | None = None  # Two copies had emitted different rows when the run ended.
    deaths: list[Process] = field(default_factory=list)  # In the order in which they were noticed.
