"""What the controller, the nodes and the program say of a change of code while the dataflow runs.

A change is made at one position S, for all the stages that it concerns. The program asks with `Reconfigure`. The
controller has every node prepare it, and then proposes a position with `Bind`. If every node that matters is bound,
the next view has the change as an `Edition`; if one is past S, the controller frees the others and proposes a later
one. What the code is, its `spec`, is opaque here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

COMMITTED, CLOSED, REFUSED, SUPERSEDED = "committed", "closed", "refused", "superseded"
OF_RECEIVERS, OF_INGRESS = "sn", "epoch"  # Schedulers: whose progress gives the position.


# --- to the controller only -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Reconfigure:
    """A request to change the code of `stages`. Its number is above that of every request before it.

    The `scheduler` says which position is chosen: "sn" the next one that no target has begun, and no stage after one
    has received; "epoch" the next one of the ingress.
    """

    number: int
    stages: frozenset[int]
    spec: bytes = b""
    scheduler: str = OF_RECEIVERS


@dataclass(frozen=True, slots=True, kw_only=True)
class AbortChange:
    """A request to give up change `number`, unless it is committed."""

    number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptOverdue:
    """The attempt at change `number` has been open for a second, and other changes of the view wait for its end."""

    number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointRetained:
    """The oldest checkpoint to which copies may go back is at `position`."""

    position: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """`node` can make change `number`."""

    node: str
    number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Cannot:
    """`node` cannot make change `number`."""

    node: str
    number: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """`node` consumes nothing after `position` in the stages of change `number`, until a view or an `Unbind` arrives.

    From the ingress: it numbers nothing after `position`, which may be beyond the one that was proposed.
    """

    node: str
    view: int
    number: int
    position: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Past:
    """`node` is past the proposed `position`: it has reached a later one, in steps that take up to `step` positions."""

    node: str
    view: int
    number: int
    position: int
    reached: int
    step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Passed:
    """All copies on `node`, in the `view`, have consumed rows after the position of change `number`."""

    node: str
    view: int
    number: int


# --- to a node only ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepare:
    """Import, construct and rehearse change `number`; answer `Prepared` or `Cannot`."""

    number: int
    stages: frozenset[int]
    spec: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rehearsed:
    """The shell has done what `Rehearse` asks for; `problem` says why the change cannot be made, if it cannot."""

    number: int
    problem: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bind:
    """Consume nothing after `position` in `stages` until a view or an `Unbind` arrives; answer `Bound` or `Past`."""

    view: int
    number: int
    stages: frozenset[int]
    position: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Unbind:
    """The proposal with these numbers has failed. Whatever else the node is bound to stays."""

    view: int
    number: int
    position: int


# --- effects ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """Send `message` to the nodes `to`, after the views that were sent to them."""

    to: tuple[str, ...]
    message: Prepare | Bind | Unbind


@dataclass(frozen=True, slots=True, kw_only=True)
class Rehearse:
    """Import, construct and rehearse what `spec` says for these stages; answer `Rehearsed`."""

    number: int
    stages: frozenset[int]
    spec: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportChange:
    """Report to the program what became of change `number`: one of the outcomes above."""

    number: int
    outcome: str
    position: int = 0
    reason: str = ""


ChangeRequest: TypeAlias = Reconfigure | AbortChange | AttemptOverdue | CheckpointRetained
ChangeReport: TypeAlias = Prepared | Cannot | Bound | Past | Passed
ChangeOrder: TypeAlias = Prepare | Rehearsed | Bind | Unbind
ChangeEffect: TypeAlias = Ask | Rehearse | ReportChange
