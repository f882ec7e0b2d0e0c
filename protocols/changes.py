"""Changes: the controller's side of changes of code: requests, one attempt at a time, and what nodes have passed.

A change is a cut at one position S, the same for all of its stages and all copies. S must be agreed on: a copy that is
past S has emitted rows of the old code after S, and these cannot be taken back. So the controller proposes a position
in the view as it is. The nodes that have copies of the stages, or of any stage after them, are bound to it, or answer
how far they are. If all are bound, the next view has the change. If not, those that are bound are freed, and a later
position is proposed: `lead` steps after the furthest, and twice as many each time. From the fourth proposal on the
ingress is bound first, and the position is that of the last row it has numbered. No node can be past that one.

An attempt ends with its view, because a copy that is dead or gone in the next one may have been past S. Then it is made
again. Nothing of it survives the controller: a program repeats its request under the same number. While an attempt is
open the controller makes views for deaths and arrivals only.

An edition is closed when each member of its stages, and each sink after them, has consumed rows after S: rows may have
other columns from there on. Nodes state that anew in each view, since a view may begin copies at earlier positions.

The view and the nodes that are connected belong to the controller, which passes them to this machine.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from .change_messages import (
    OF_INGRESS,
    OF_RECEIVERS,
    REFUSED,
    Ask,
    Bind,
    Bound,
    Passed,
    Past,
    Prepare,
    Reconfigure,
    ReportChange,
    Unbind,
)
from .machine import Machine
from .messages import Effect, Position
from .view import Edition, View

FREE_PROPOSALS_MAX = 3  # Attempts at one request that may fail before the ingress is bound.


class Changes(Machine):
    """Changes that were requested and are not committed; positions are proposed `lead` steps after the furthest."""

    def __init__(self, lead: int = 2) -> None:
        self.lead = lead
        self.requests: tuple[Reconfigure, ...] = ()
        self.asked: frozenset[str] = frozenset()  # The nodes that were asked to prepare the first request,
        self.prepared: frozenset[str] = frozenset()  # and those that have.
        self.attempt: Bind | None = None
        self.awaits_ingress = False  # The position is not known before the ingress has answered.
        self.proposed_to: frozenset[str] = frozenset()
        self.bound: frozenset[str] = frozenset()
        self.past: frozenset[str] = frozenset()
        self.failed = 0  # Attempts at the first request.
        self.least: Position = 0  # Each position is proposed once in a view, so that an answer is about one attempt.
        self.furthest: Position = 0  # The highest position that any node has reported.
        self.longest_step: Position = 0  # The longest step that any node has reported.
        self.passed: frozenset[tuple[int, str]] = frozenset()  # The edition, and the node, in this view.
        self.retained: Position | None = None  # Of the oldest checkpoint that copies may go back to.

    # What the controller asks.

    def is_sound(self, view: View, request: Reconfigure) -> bool:
        """Whether the request names operator stages, and a scheduler."""
        is_known = request.scheduler in (OF_RECEIVERS, OF_INGRESS)
        return is_known and request.number > 0 and view.are_operators(request.stages)

    def last_number(self, view: View) -> int:
        """The highest number of any change that is known."""
        return max([0, *(e.number for e in view.editions), *(request.number for request in self.requests)])

    def is_pending(self, number: int) -> bool:
        """Whether the change was requested and is not committed."""
        return any(request.number == number for request in self.requests)

    def is_first(self, number: int) -> bool:
        """Whether it is the change that is prepared or attempted now."""
        return bool(self.requests) and self.requests[0].number == number

    def is_answered_by(self, view: View, message: Bound) -> bool:
        """Whether a node is bound to what is proposed now. The ingress may name a later position."""
        attempt = self.attempt
        if attempt is None or (message.view, message.number) != (attempt.view, attempt.number):
            return False
        is_right = message.position >= attempt.position if self.awaits_ingress else message.position == attempt.position
        return is_right and message.node in self.proposed_to

    def is_refused_by(self, message: Past) -> bool:
        """Whether a node is past the position that is proposed now."""
        attempt = self.attempt
        if attempt is None or self.awaits_ingress or message.reached <= message.position:
            return False
        is_this = (message.view, message.number, message.position) == (attempt.view, attempt.number, attempt.position)
        return is_this and message.node in self.proposed_to

    def is_open(self, view: View, message: Passed) -> bool:
        """Whether the edition is not closed, and the node has copies of its stages, in this view."""
        is_now = message.view == view.number
        return is_now and any(
            e.number == message.number and message.node in _members(view, e) for e in view.open_editions
        )

    # What nodes report, and what the program asks for.

    def drop(self, number: int, reason: str) -> Iterator[Effect]:
        """Give up a request. If it was proposed, the nodes are freed, also those that have not answered yet."""
        if self.is_first(number):
            yield from self.end_attempt(self.proposed_to)
            self._forget_first()
        else:
            self.requests = tuple(request for request in self.requests if request.number != number)
        yield ReportChange(number=number, outcome=REFUSED, reason=reason)

    def note_bound(self, view: View, message: Bound) -> Iterator[Effect]:
        assert self.attempt is not None
        self.bound |= {message.node}
        if not self.awaits_ingress:
            yield from self._free_if_refused()
            return
        self.awaits_ingress = False
        self.attempt = replace(self.attempt, position=message.position)
        receivers = self._receivers(view)
        self.proposed_to |= receivers
        yield Ask(to=tuple(sorted(receivers)), message=self.attempt)

    def note_past(self, message: Past) -> Iterator[Effect]:
        self.furthest = max(self.furthest, message.reached)
        self.longest_step = max(self.longest_step, message.step)
        self.past |= {message.node}
        yield from self._free_if_refused()

    # Attempts.

    def propose(self, view: View, present: frozenset[str]) -> Iterator[Effect]:
        """Have the nodes prepare the first request; when all have, and all ends are live, propose a position."""
        if not self.requests or self.attempt is not None or view.number == 0:
            return
        request, living = self.requests[0], frozenset(filter(view.alive, view.nodes))
        if to := (living & present) - self.asked:
            self.asked |= to
            yield Ask(
                to=tuple(sorted(to)),
                message=Prepare(number=request.number, stages=request.stages, spec=request.spec),
            )
        binds_ingress = request.scheduler == OF_INGRESS or self.failed >= FREE_PROPOSALS_MAX
        ends = [stage for stage in view.downstream(request.stages) if view.is_end(stage)] + [0] * binds_ingress
        if not living <= self.prepared & present or not all(view.live_copies(end, 0) for end in ends):
            return
        self.attempt = Bind(
            view=view.number,
            number=request.number,
            stages=request.stages,
            position=self._next_position(view, request, binds_ingress),
        )
        self.awaits_ingress = binds_ingress
        self.proposed_to = frozenset(view.live_copies(0, 0)) if binds_ingress else self._receivers(view)
        yield Ask(to=tuple(sorted(self.proposed_to)), message=self.attempt)

    def end_attempt(self, to: frozenset[str]) -> Iterator[Effect]:
        """End an attempt whose view stays; the nodes `to` are freed."""
        attempt = self.attempt
        if attempt is not None:
            self._forget_attempt()
            self.least = attempt.position + 1
            free = Unbind(view=attempt.view, number=attempt.number, position=attempt.position)
            yield Ask(to=tuple(sorted(to)), message=free)

    def adopt(self, view: View) -> None:
        """Follow a view: it ends any attempt, and nodes state anew what they have passed."""
        if self.attempt is not None:
            self._forget_attempt()
        living = frozenset(filter(view.alive, view.nodes))
        self.asked &= living
        self.prepared &= living
        self.passed = frozenset()
        self.least = 0

    def commit(self) -> Edition | None:
        """Return the edition that the next view must have, if all are bound, and forget its request."""
        attempt = self.attempt
        if attempt is None or self.awaits_ingress or not self.proposed_to <= self.bound:
            return None
        request = self.requests[0]
        self._forget_attempt()
        self._forget_first()
        self.furthest = max(self.furthest, attempt.position)
        return Edition(number=request.number, stages=request.stages, position=attempt.position, spec=request.spec)

    # Closing.

    def to_close(self, view: View) -> Edition | None:
        """Return the first edition that no copy can be before any more, also none that goes back to a checkpoint."""
        for edition in view.open_editions if self.attempt is None else ():
            have_all = all((edition.number, node) in self.passed for node in _members(view, edition))
            # A sink whose process is dead goes on where it was, with the next process.
            are_there = all(view.live_copies(stage, 0) for stage in view.closing_stages(edition) if view.is_end(stage))
            if have_all and are_there and (self.retained is None or self.retained >= edition.position):
                return edition
        return None

    # How it is done.

    def _receivers(self, view: View) -> frozenset[str]:
        """The nodes with copies, also in transfer, of the stages of the first request, or of any after them."""
        stages = view.downstream(self.requests[0].stages)
        return frozenset(node for stage in stages for node in view.members(stage))

    def _next_position(self, view: View, request: Reconfigure, binds_ingress: bool) -> Position:
        """A position that the nodes may not have reached yet, not before an earlier change of a common stage."""
        least = max([0, *(e.position for e in view.editions if e.stages & request.stages)])
        ahead = 0 if binds_ingress else (self.lead * self.longest_step) << max(0, self.failed - 1)
        return max(least, self.least, self.furthest + ahead)

    def _free_if_refused(self) -> Iterator[Effect]:
        """Free the nodes that are bound, when all have answered and one of them is past the position."""
        if self.past and self.proposed_to <= self.bound | self.past:
            yield from self.end_attempt(self.bound)

    def _forget_attempt(self) -> None:
        self.attempt, self.awaits_ingress = None, False
        self.proposed_to = self.bound = self.past = frozenset()
        self.failed += 1

    def _forget_first(self) -> None:
        self.requests = self.requests[1:]
        self.asked = self.prepared = frozenset()
        self.failed = 0


def closed(editions: tuple[Edition, ...], number: int) -> tuple[Edition, ...]:
    """The editions with one of them closed. One that is closed goes when later closed ones have all of its stages."""
    marked = [replace(e, closed=True) if e.number == number else e for e in editions]
    return tuple(e for e in marked if not e.closed or not e.stages <= _stages_closed_after(marked, e.number))


def _stages_closed_after(editions: list[Edition], number: int) -> frozenset[int]:
    return frozenset(stage for e in editions if e.closed and e.number > number for stage in e.stages)


def _members(view: View, edition: Edition) -> frozenset[str]:
    """The nodes with copies of the edition's stages, finished or in transfer, and of the sinks after them."""
    return frozenset(node for stage in view.closing_stages(edition) for node in view.members(stage))
