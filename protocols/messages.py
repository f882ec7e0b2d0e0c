"""The messages that machines take and the effects they return; the views they share are in `view`.

A *position* is a sequence number: "everything up to and including this sn". A producer cuts its
output only between sequence numbers, so a position needs no sub-number (departure from rule 18 of
the position protocol: the run that holds one tuple's descendants is never split).

A *body* is opaque here: the rows and punctuations of a range of sequence numbers. Machines keep and
forward bodies, and never look inside; only `rows`, the count for which the pool is charged, is known.

A *channel* is one producer partition feeding one consumer copy. Channels are named in blocks, each
the product of some producer partitions and some consumer partitions.

A node's name is its incarnation: a process that replaces another has a name of its own. So no message is ever
meant for, or sent by, two processes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, TypeAlias

from .change_messages import ChangeEffect, ChangeOrder, ChangeReport, ChangeRequest
from .view import Edition as Edition
from .view import Standby as Standby
from .view import View as View

Body: TypeAlias = Any
Position: TypeAlias = int
RowCounts: TypeAlias = tuple[tuple[int, int, int], ...]  # Edge, consumer partition, its rows; in order, no zeros.

VERSION = 9  # Of this protocol, on the wire, in journals and recordings; another one is refused.
BODY = {"body": True}  # Marks fields that hold a body: recordings and the wire treat them separately.


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """Channels from each of `producers` to each of `consumers` (partition numbers)."""

    producers: tuple[int, ...]
    consumers: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputRun:
    """Output of some of a site's partitions for (after, upto], as its buffer keeps it.

    In an unordered stage a run may be incomplete: runs overlap, and a later one has the rest.
    Rows of the partitions `without` do not count: those copies have left the site, and others answer for them.
    With `counts` the pool is charged for what each destination still needs of the run; else for all of it (rule 37).
    """

    after: Position
    upto: Position
    rows: int
    without: frozenset[int] = frozenset()
    counts: RowCounts = ()
    body: Body = field(metadata=BODY)


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingInput:
    """Received rows of one lane for (after, upto], as a consumer keeps them until its frontier.

    If `channels` are given, only their rows count: the sender did not know yet that others were stopped. In an
    unordered stage they are always given: they name the producers whose rows wait.
    """

    edge: int
    after: Position
    upto: Position
    channels: tuple[Block, ...]
    body: Body = field(metadata=BODY)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ahead:
    """How far an unordered copy is ahead: it has consumed `producers` of `edge` up to `position`, beyond its own."""

    edge: int
    producers: tuple[int, ...]
    position: Position


# --- between producer and consumer nodes -------------------------------------------------------
# Each names its sender and the number of the view it was sent in (rules 9, 11).


@dataclass(frozen=True, slots=True, kw_only=True)
class Data:
    """Rows of one lane: all that its channels carry in (after, upto]. Thesis: data, with progress."""

    sender: str
    view: int
    edge: int
    lane_id: int
    after: Position
    upto: Position
    bodies: tuple[Body, ...] = field(metadata=BODY)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ack:
    """The sender's copies of the consumer have consumed everything up to `position`. Thesis: ack.

    All but those that are in transfer or catch up have consumed everything up to `reached`, if that is more. It says
    how fast rows are consumed, and releases none. Position 0 acknowledges nothing.
    """

    sender: str
    view: int
    edge: int
    position: Position
    reached: Position = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Attach:
    """Feed the sender these channels from exactly after `position`, as lane `lane_id`. Thesis: reverse."""

    sender: str
    view: int
    edge: int
    lane_id: int
    position: Position
    channels: tuple[Block, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """Take these channels out of lane `lane_id`: another copy feeds them from now on. Thesis: psync."""

    sender: str
    view: int
    edge: int
    lane_id: int
    channels: tuple[Block, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stopped:
    """In the lane: from here on the channels of one `Stop` are not in it any more."""

    sender: str
    view: int
    edge: int
    lane_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Merge:
    """Merge lane `lane_id` into lane `into`: they feed partitions that advance together."""

    sender: str
    view: int
    edge: int
    lane_id: int
    into: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Merged:
    """In the lane: from here on `into` carries the channels of `lane_id` too; both are at the same position."""

    sender: str
    view: int
    edge: int
    lane_id: int
    into: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestState:
    """Cut the state for standby `version`, between two steps of the operator. Thesis: cu-start.

    The sender acknowledges nothing until it has the state (rule 3).
    """

    sender: str
    view: int
    stage: int
    version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """All that standby `version` needs, of one instant: the state at `position` and the unacknowledged output.

    `runs` are what the donor's buffer holds; only the rows of the standby's partition count. Rows that a copy of
    an unordered stage has consumed beyond `position` are in its state too: `ahead` says which.
    """

    sender: str
    view: int
    stage: int
    version: int
    position: Position
    runs: tuple[OutputRun, ...]
    ahead: tuple[Ahead, ...] = ()
    body: Body = field(metadata=BODY)


@dataclass(frozen=True, slots=True, kw_only=True)
class HighestPosition:
    """`sender` has seen nothing after `position`. To an ingress that was started again, in each view (rule 39)."""

    sender: str
    view: int
    position: Position


PeerMessage: TypeAlias = Data | Ack | Attach | Stop | Stopped | Merge | Merged | RequestState | State | HighestPosition


# --- between a machine and the shell around it ---------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Sourced:
    """The source's next rows, numbered (after, upto] as the last `Pull` asked. Ingress only.

    `counts` are the rows for each consumer partition; left out, the pool keeps all rows until all sites have them.
    """

    after: Position
    upto: Position
    rows: int
    counts: RowCounts = ()
    body: Body = field(metadata=BODY)


@dataclass(frozen=True, slots=True, kw_only=True)
class EndOfSource:
    """The source has no more rows. Ingress only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Consumed:
    """The operator has consumed everything up to `upto`; `body` is what it emitted.

    At the egress: the sink has made everything up to `upto` durable. What an unordered stage emitted may go beyond
    `upto`, as far as `emitted_upto`. `most` are the positions that the next steps may take, so that none is long on a
    slow site (rule 36); 0 for as many as was set. `counts` are the rows for each consumer partition; left out, the
    pool keeps all rows until all sites have them.
    """

    stage: int
    cohort: int
    upto: Position
    rows: int
    emitted_upto: Position = 0
    most: Position = 0
    counts: RowCounts = ()
    body: Body = field(metadata=BODY)


@dataclass(frozen=True, slots=True, kw_only=True)
class Closed:
    """The connection to `node` broke. To the controller only."""

    node: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Suspected:
    """`node` is connected and has not answered for too long. To the controller only."""

    node: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkDown:
    """Nodes `a` and `b` cannot reach each other any more. To the controller only."""

    a: str
    b: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Connected:
    """The connection to a controller is up: the first one, or one that was started again. To a node only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hello:
    """`node` is up and has seen the views up to `view`. To the controller only. Thesis: avail.

    It serves the `ends`, as the `incarnation`-th process that does.
    """

    node: str
    view: int = 0
    ends: tuple[int, ...] = ()
    incarnation: int = 1
    version: int = VERSION


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyReady:
    """Standby `version` is built and runs. To the controller only. Thesis: cu-done, fi-done."""

    node: str
    version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyFailed:
    """The donor of standby `version` died, or lost the state, before it arrived. To the controller only."""

    node: str
    version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """A request to move the copy in `slot` to node `to`. To the controller only."""

    stage: int
    partition: int
    slot: int
    to: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Slow:
    """These sites, and no others, are slow: no node waits for them (rule 35). To the controller only."""

    nodes: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Retire:
    """Retire the copies of `node`, a slow site: no more rows can be kept for them (rule 42). To the controller only."""

    node: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyCosts:
    """What an average copy costs each site, in seconds per position (rule 38). To the controller only."""

    costs: tuple[tuple[str, float], ...]


ToController: TypeAlias = (
    Hello
    | Closed
    | Suspected
    | LinkDown
    | CopyReady
    | CopyFailed
    | Move
    | Slow
    | Retire
    | CopyCosts
    | ChangeRequest
    | ChangeReport
)
Message: TypeAlias = PeerMessage | View | Connected | Sourced | EndOfSource | Consumed | ToController | ChangeOrder

# --- effects ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Send:
    """Send `message` to node `to`; it may be the sender itself.

    A `Data` carries the bodies of whole runs: of each, only the rows of its `channels` in (after, upto] go.
    To a `State` the operator's state of the partition is added, as it is now.
    """

    to: str
    message: PeerMessage
    channels: tuple[tuple[Block, ...], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Consume:
    """Give the operator of `stage` the rows of `frames` in (after, upto], merged; answer `Consumed`.

    They are of `partitions`, which are at the same position; punctuations among them are for these only.

    If the stage is not `ordered`, every row of a frame in its own (after, upto] counts, also those beyond `upto`, in
    whatever order. Only punctuations wait: one counts when `upto` has passed it, because then no row before it can
    arrive any more. For an egress, `ahead` is how far ahead of `upto` its sink will be then, for the process that
    replaces it. The rows are consumed by the code of that `edition`, which is that of all rows after `after` (rule 43).
    """

    stage: int
    cohort: int
    partitions: frozenset[int]
    after: Position
    upto: Position
    frames: tuple[PendingInput, ...]
    ordered: bool = True
    ahead: tuple[Ahead, ...] = ()
    edition: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Pull:
    """Take the next rows from the source, number them from `after` + 1; answer `Sourced`.

    Numbers up to `given_upto` have been given before, and nodes have seen them. If the journal has lost what they were
    given to, they must be given to the same rows again, or the run must end (rule 39).
    """

    after: Position
    given_upto: Position = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Released:
    """Every live copy has consumed the ingress's rows up to `upto`: their source may forget them."""

    upto: Position


@dataclass(frozen=True, slots=True, kw_only=True)
class Trim:
    """Cut the body of `run` of `stage` down to the consumer partitions in its counts.

    No destination needs the other rows any more. `run` is as the buffer has it. Until the shell has put the shorter
    body in its place, it has the old one, which does no harm. If the same run is named again, the last one counts.
    """

    stage: int
    run: OutputRun


@dataclass(frozen=True, slots=True, kw_only=True)
class Install:
    """Install the state of `partition` in the operator of `stage`. It is of that `edition`."""

    stage: int
    partition: int
    edition: int = 0
    body: Body = field(metadata=BODY)


@dataclass(frozen=True, slots=True, kw_only=True)
class Drop:
    """The operator of `stage` forgets `partition`: its copy lives elsewhere."""

    stage: int
    partition: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SendToController:
    """Send `message` to the controller."""

    message: Hello | CopyReady | CopyFailed | ChangeReport


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportRefused:
    """Report that a message that was held for this view is refused; `text` says which and why."""

    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Publish:
    """Write `view` to the journal; when it is safe there, send it to the nodes `to`.

    It stays there until all live nodes have seen it, and while it is the last one: see `view_retention`.
    """

    view: View
    to: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Resend:
    """Send node `to` every view of the journal after number `after` that lists it, in order."""

    to: str
    after: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewsLost:
    """End the run: `node` has seen view `seen`, and the journal of views has nothing after view `last` (rule 40)."""

    node: str
    seen: int
    last: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Lost:
    """No copy is left of these (stage, partition): the dataflow must stop with `DataLost`."""

    partitions: tuple[tuple[int, int], ...]


Effect: TypeAlias = (
    Send
    | Consume
    | Pull
    | Released
    | Trim
    | Install
    | Drop
    | SendToController
    | ReportRefused
    | Publish
    | Resend
    | ViewsLost
    | Lost
    | ChangeEffect
)
