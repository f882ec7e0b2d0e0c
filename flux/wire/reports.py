"""Reports and commands: the conversation between the processes of a run and its driver.

A process reports what it did; the driver, or the controller that takes its part in a remote run, sends commands. Each
is a frozen dataclass that travels in one frame: ``{"kind": "report", "m": {"$": name, field: value, ...}}``. A frame
that is malformed, of an unknown name or of a newer release is a `BadFrame`, and closes the link it came on.

Times are of the monotonic clock of the process that reports. `on_clock_of_reader` replaces them where clocks differ.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, TypeAlias, cast

from ..protocols.messages import Ahead, Block
from .codec import Codec, read_frame, subclasses_in

REPORT_KIND, COMMAND_KIND = "report", "command"  # The kinds of their frames.

Reached: TypeAlias = tuple[int, tuple[Ahead, ...]]  # A position, and how far beyond it each producer's rows were taken.


class Report:
    """What a process reports."""

    __slots__ = ()


class Command:
    """What the driver commands."""

    __slots__ = ()


# What any process reports.


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessUp(Report):
    """The process is connected: always the first report on a link."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogLine(Report):
    """A line for the log of the run; `level` is one of `logging`."""

    node: str
    level: int
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessFailed(Report):
    """The run cannot go on; `error` is what `FluxError.to_dict` gave."""

    node: str
    error: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessStopped(Report):
    """The process obeys `StopProcess`: its last report."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Load(Report):
    """Rows that the process buffers until its consumers have acknowledged them."""

    buffered_rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StageMeasures:
    """What a process has done for `stage`, and what it holds of it.

    `rows` are those that each of the `partitions` has consumed: since the run began, on whatever sites it was. `keys`
    are those of their states; none if they are not known. `busy_s` is the time of the stage's steps in this process.
    Rows wait for the stage, and in its pool for others. The watermark is the last that the stage has passed.
    """

    stage: int
    partitions: tuple[int, ...]
    rows: tuple[int, ...]
    keys: tuple[int, ...]
    busy_s: float
    pending_rows: int
    pool_rows: int
    pool_rows_max: int
    watermark_ms: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Measures(Report):
    """What a process has done since it began, `elapsed_s` ago, and what it buffers now.

    In `busy_s` its loop worked, without the time in which it moved state. `waits` are (stage, edge, seconds): how long
    the stage had input and no room for output, because of that edge. `kept` are (edge, node, rows, most): the rows that
    are kept for a consumer until it has acknowledged them, and how many may be.
    """

    elapsed_s: float
    busy_s: float
    moving_s: float
    stages: tuple[StageMeasures, ...]
    waits: tuple[tuple[int, int, float], ...]
    kept: tuple[tuple[int, str, int, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessStuck(Report):
    """Code of the user in the process `node` does not return; `text` is empty when it has."""

    node: str
    text: str


# What the ingress reports.


@dataclass(frozen=True, slots=True, kw_only=True)
class RowsNumbered(Report):
    """Ranges that were numbered since the last report, as (time, last number, rows); and the rows of the whole run.

    `total` are the rows of all ingresses of the run, with numbers up to `upto`.
    """

    log: tuple[tuple[float, int, int], ...]
    total: int
    upto: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RowsShed(Report):
    """Rows of the whole run that were dropped because there was no room for them."""

    total: int


# What sites report, and the ingress for the steps that run there.


@dataclass(frozen=True, slots=True, kw_only=True)
class SkippedContent:
    """A row that an operator refused: the `nth` of its partition."""

    partition: int
    nth: int
    sn: int
    values: str
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RowsSkipped(Report):
    """Rows that step `number` of `stage` refused: new totals by partition, and the content of some.

    `numbers` are the sequence numbers of rows that the ingress skipped: after a restart it skips some of them again.
    """

    step: str
    stage: int
    number: int
    totals: tuple[tuple[int, int], ...]
    rows: tuple[SkippedContent, ...]
    numbers: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RowsLate(Report):
    """Late rows of step `number` of `stage`: the totals by partition that changed."""

    step: str
    stage: int
    number: int
    totals: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StateSent(Report):
    """The state of a partition was sent to another site; `snapshot_s` is how long the snapshot held up the donor."""

    version: int
    stage: int
    partition: int
    to: str
    size_bytes: int
    snapshot_s: float
    send_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StateInstalled(Report):
    """The copy `version` is in place; installing it held up the site for `install_s`."""

    version: int
    install_s: float


# What the egress reports.


@dataclass(frozen=True, slots=True, kw_only=True)
class RowsWritten(Report):
    """A sink has the output in (after, upto], or, if the driver collects it, these rows are for it.

    `total` are the rows of all egresses of the run; None where the driver keeps count.
    """

    sink: int
    after: int
    upto: int
    rows: int
    end: bool
    position: int
    ahead: tuple[Ahead, ...]
    total: int | None = None


# What the controller reports.


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewPublished(Report):
    """View `number` is out; `versions` copies were begun up to it, and `whole` says that no copy is missing."""

    number: int
    versions: int
    whole: bool
    at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement(Report):
    """How many copies of partitions each live node holds, and how many are being built."""

    copies: dict[str, int]
    building: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteLoad:
    """How busy a site is: the part of its time in which it works, its lag, and its speed as a multiple of the median.

    `lag` is the part of its producers' pools that is kept for it. The speed of a site that has not worked is None. One
    of its producers keeps `kept_rows` for it, and can keep `kept_rows_max`. For a slow site, `time_left_s` is in how
    long the producer will wait for it: 0 if it does, None if not.
    """

    site: str
    utilisation: float
    lag: float
    speed: float | None
    slow: bool
    kept_rows: int = 0
    kept_rows_max: int = 0
    time_left_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteLoads(Report):
    """The load of all sites, in a run that is balanced, and what balance is doing."""

    sites: tuple[SiteLoad, ...]
    phase: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CopiesRetired(Report):
    """The copies of a slow site were given up, so many; they are rebuilt elsewhere, or when the site is not slow."""

    site: str
    copies: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundId:
    """The `number`-th round of balance of a controller that is the `controller`-th of its run."""

    controller: int
    number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CopiesBegun(Report):
    """The copies `versions` are built for a reason: "drain", or the round of that number; lost ones are not listed."""

    versions: tuple[int, ...]
    why: str
    round: RoundId | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundChanged(Report):
    """A round of balance has begun or ended, or its gain is known: all of what is known of it now.

    It began `age_s` ago. `dropped` moves were not begun, and the copies of `failed` ones were not built.
    """

    round: RoundId
    age_s: float
    why: str
    moves: int
    dropped: int
    failed: int
    ended: str
    took_s: float | None
    gain_expected: float
    gain_measured: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeDecided(Report):
    """What became of change `number` of the code: "committed" at `position`, "closed" there, "refused" or "superseded".

    `attempts` positions were proposed for it, and copies that came to the last one waited for at most `held_s`; None if
    this controller does not know.
    """

    number: int
    outcome: str
    position: int
    reason: str
    at: float
    attempts: int | None = None
    held_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangePassed(Report):
    """These copies are past the position of change `number`: those of one site, one of each partition, or all.

    `copies` is "first", "each" or "all".
    """

    number: int
    copies: str
    at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeDead(Report):
    """A node is dead since `at`; one that fell silent gave its last sign of life at `seen_at`."""

    node: str
    at: float
    seen_at: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteDrained(Report):
    """No partition is left on a site."""

    site: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparisonAdvanced(Report):
    """The comparison that `CompareCopies` began goes on: a copy that it waits for has advanced."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CopiesCompared(Report):
    """Answers `CompareCopies`; `error` is what `FluxError.to_dict` gave, if copies had emitted different rows."""

    error: dict[str, Any] | None


# What the driver commands.


@dataclass(frozen=True, slots=True, kw_only=True)
class StopProcess(Command):
    """End with this exit status."""

    status: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class KillProcess(Command):
    """End as if by SIGKILL: the process may be on another machine than the command that wants it killed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Collected(Command):
    """To the egress: the driver has collected the output of a sink up to here."""

    sink: int
    upto: int
    position: int
    ahead: tuple[Ahead, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RowsDurable(Command):
    """To the egress: the driver holds what it was sent for a sink up to here."""

    sink: int
    upto: int


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputReached(Command):
    """To the ingress: all sinks have the output up to this number."""

    upto: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DeclareDead(Command):
    """To the controller: this process has ended."""

    node: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainSite(Command):
    """To the controller: move everything off this site."""

    site: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SpareSites(Command):
    """To the controller: these sites were added as spares, beside those of the plan."""

    sites: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestChange(Command):
    """To the controller: change the code of `stages` as `spec` says; the number is above that of every one before."""

    number: int
    stages: frozenset[int]
    spec: bytes
    scheduler: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GiveUpChange(Command):
    """To the controller: give up change `number`, unless it is committed."""

    number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CompareCopies(Command):
    """To the controller: the stream has ended; report whether all copies have emitted the same."""


_PARTS = (StageMeasures, SkippedContent, SiteLoad, RoundId, Ahead, Block)
_REPORTS = Codec([*subclasses_in(globals(), Report), *_PARTS])
_COMMANDS = Codec([*subclasses_in(globals(), Command), *_PARTS])


def report_frame(report: Report) -> dict[str, Any]:
    """Return the header of the frame that carries a report."""
    return {"kind": REPORT_KIND, "m": _REPORTS.to_plain(report)}


def read_report(header: dict[str, Any]) -> Report:
    """Return the report in a frame; `BadFrame` if there is none."""
    return cast(Report, read_frame(_REPORTS, REPORT_KIND, header, (Report,)))


def command_frame(command: Command) -> dict[str, Any]:
    """Return the header of the frame that carries a command."""
    return {"kind": COMMAND_KIND, "m": _COMMANDS.to_plain(command)}


def read_command(header: dict[str, Any]) -> Command:
    """Return the command in a frame; `BadFrame` if there is none."""
    return cast(Command, read_frame(_COMMANDS, COMMAND_KIND, header, (Command,)))


def on_clock_of_reader(report: Report, now: float) -> Report:
    """Return the report with times of the reader's clock: everything in it happened when it arrived."""
    match report:
        case RowsNumbered():
            return replace(report, log=tuple((now, upto, rows) for _, upto, rows in report.log))
        case ViewPublished() | ChangePassed() | ChangeDecided():
            return replace(report, at=now)
        case NodeDead(seen_at=float(seen_at)):
            return replace(report, at=now, seen_at=now - (report.at - seen_at))
        case NodeDead():
            return replace(report, at=now)
        case _:
            return report
