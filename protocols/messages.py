"""The messages machines take, the effects they give back, and the views they share.

A *position* is a sequence number: "everything up to and including this sn". A producer cuts its
output only between sequence numbers, so a position needs no sub-number (departure from rule 18 of
the position protocol: the run that holds one tuple's descendants is never split).

A *body* is opaque here: the rows and punctuations of a range of sequence numbers. Machines keep and
hand on bodies, and never look inside; only `rows`, the count for which the pool is charged, is known.

A *channel* is one producer partition feeding one consumer copy. Channels are named in blocks, each
the product of some producer partitions and some consumer partitions.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, TypeAlias

Body: TypeAlias = Any
Position: TypeAlias = int

BODY = {"body": True}  # Marks fields that hold a body: recordings and the wire treat them apart.


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """Channels from each of `producers` to each of `consumers` (partition numbers)."""

    producers: tuple[int, ...]
    consumers: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """Who is in the dataflow and which copy of which partition lives where (thesis 3.2.3.1).

    `copies[stage][partition]` are the nodes of the partition's copies, primary first; the node of a
    dead copy stays listed, and `dead` says that it is gone. Stage 0 is the ingress, the last the egress.
    """

    number: int
    nodes: tuple[str, ...]
    dead: frozenset[str]
    copies: tuple[tuple[tuple[str, ...], ...], ...]

    def alive(self, node: str) -> bool:
        """Whether `node` belongs to the dataflow and has not failed."""
        return node in self.nodes and node not in self.dead

    def live_copies(self, stage: int, partition: int) -> tuple[str, ...]:
        """The nodes of the partition's surviving copies, primary first."""
        return tuple(node for node in self.copies[stage][partition] if node not in self.dead)

    def holders(self, stage: int) -> tuple[str, ...]:
        """The live nodes with a copy of any partition of `stage`, each once, in a fixed order."""
        held = {node for copies in self.copies[stage] for node in copies}
        return tuple(sorted(held - self.dead))

    def lost(self) -> tuple[tuple[int, int], ...]:
        """Every (stage, partition) without a surviving copy."""
        return tuple(
            (stage, partition)
            for stage, partitions in enumerate(self.copies)
            for partition in range(len(partitions))
            if not self.live_copies(stage, partition)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Output of a producer for the sequence numbers in (after, upto], as its buffer keeps it."""

    after: Position
    upto: Position
    rows: int
    body: Body = field(metadata=BODY)


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """Received rows of one lane for (after, upto], as a consumer keeps them until its frontier."""

    after: Position
    upto: Position
    body: Body = field(metadata=BODY)


# --- between producer and consumer nodes -------------------------------------------------------
# Each names its sender and the number of the view it was sent in (rules 9, 11).


@dataclass(frozen=True, slots=True, kw_only=True)
class Data:
    """Rows of one lane: all that its channels carry in (after, upto]. Thesis: data, with progress."""

    sender: str
    view: int
    edge: int
    stint: int
    after: Position
    upto: Position
    body: Body = field(metadata=BODY)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ack:
    """The sender's copies of the consumer have consumed everything up to `position`. Thesis: ack."""

    sender: str
    view: int
    edge: int
    position: Position


@dataclass(frozen=True, slots=True, kw_only=True)
class Attach:
    """Feed me these channels from exactly behind `position`, as lane `stint`. Thesis: reverse."""

    sender: str
    view: int
    edge: int
    stint: int
    position: Position
    channels: tuple[Block, ...]


PeerMessage: TypeAlias = Data | Ack | Attach


# --- between a machine and the shell around it ---------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Sourced:
    """The source's next rows, numbered (after, upto] as the last `Pull` asked. Ingress only."""

    after: Position
    upto: Position
    rows: int
    body: Body = field(metadata=BODY)


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceEnded:
    """The source has no more rows. Ingress only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Consumed:
    """The operator is through everything up to `upto`; `body` is what it emitted.

    At the egress: the sink has made everything up to `upto` durable.
    """

    stage: int
    upto: Position
    rows: int
    body: Body = field(metadata=BODY)


@dataclass(frozen=True, slots=True, kw_only=True)
class Closed:
    """The connection to `node` broke. To the controller only."""

    node: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Hello:
    """`node` is up and waits for the first view. To the controller only."""

    node: str


Message: TypeAlias = PeerMessage | View | Sourced | SourceEnded | Consumed | Closed | Hello

# --- effects ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Send:
    """Send `message` to node `to`; it may be the sender itself.

    A `Data` carries the body of a whole run: only the rows of `channels` behind `message.after` go.
    """

    to: str
    message: PeerMessage
    channels: tuple[Block, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Consume:
    """Give the operator of `stage` the rows of `frames` in (after, upto], merged; answer `Consumed`."""

    stage: int
    after: Position
    upto: Position
    frames: tuple[Frame, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pull:
    """Take the next rows from the source, number them from `after` + 1; answer `Sourced`."""

    after: Position


@dataclass(frozen=True, slots=True, kw_only=True)
class Released:
    """Every live copy has consumed the ingress's rows up to `upto`: their source may forget them."""

    upto: Position


@dataclass(frozen=True, slots=True, kw_only=True)
class Publish:
    """Send `view` to every node that is alive in it."""

    view: View


@dataclass(frozen=True, slots=True, kw_only=True)
class Lost:
    """No copy is left of these (stage, partition): the dataflow must stop with `DataLost`."""

    partitions: tuple[tuple[int, int], ...]


Effect: TypeAlias = Send | Consume | Pull | Released | Publish | Lost
