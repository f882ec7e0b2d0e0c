"""State mover: how a new copy of a partition gets to a site (thesis 3.2.4, 3.4.3.1; rules 3, 10, 16, 17).

The view names the copies in transfer, each with a site and a donor. The site asks the donor for the state, and
acknowledges nothing until the state has arrived. The donor answers as soon as its operator is between two steps, so
that state, position and unacknowledged output are of one instant. That position may be far before the one that the
site itself has reached: a donor that lags need not work off its backlog first. From the view that names the copy on,
all producers keep for the site what they keep for the donor (rule 3). No other node waits for it.

If the donor dies first, the site reports it, and the controller retries from another copy, or gives up. No view
cancels a copy before its site has reported or is dead, so a state that has arrived is always wanted. Reports are
repeated to a controller that was started again: the last one may not have received them.

This machine keeps the requests and the states that have arrived. The pooler cuts and installs, because it knows when
the operator is idle.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator

from .machine import Machine, Rule, always
from .messages import (
    CopyFailed,
    CopyReady,
    Effect,
    RequestState,
    Send,
    SendToController,
    Standby,
    State,
    View,
)


class StateMover(Machine):
    """Copies of stage `stage` in transfer to and from node `name`."""

    def __init__(self, name: str, stage: int) -> None:
        self.name = name
        self.stage = stage
        self.view = 0
        self.unordered = False
        self.standby: dict[int, Standby] = {}  # Copies of this stage in transfer, here or elsewhere.
        self.orphans: frozenset[int] = frozenset()  # Those of them whose donor is dead.
        self.awaited: frozenset[int] = frozenset()  # Those whose state was requested and has not arrived.
        self.arrived: dict[int, State] = {}  # Those whose state has arrived and cannot be installed yet.
        self.wanted: dict[int, RequestState] = {}  # Those whose state was requested here and not sent yet.
        self.given: frozenset[int] = frozenset()  # Those whose state was requested here.

    @property
    def title(self) -> str:
        return f"State mover of stage {self.stage} on {self.name}"

    # For the pooler.

    @property
    def is_receiving(self) -> bool:
        """Whether a copy in transfer to this site is not installed yet: what its rows are is not known."""
        return bool(self.awaited or self.arrived)

    def is_missing(self, installed: Container[int]) -> bool:
        """Whether a copy is to be here and is not installed."""
        return any(version not in installed for version in self._mine())

    def ask(self, installed: Container[int]) -> Iterator[Effect]:
        """Ask for the state of every copy that is new here; report those whose donor is dead."""
        for version in self._missing(installed):
            if version in self.orphans:
                yield SendToController(message=CopyFailed(node=self.name, version=version))
            elif version not in self.awaited:
                yield from self._want(version)

    def report(self, installed: Container[int]) -> Iterator[Effect]:
        """Repeat the reports that a controller that was started again may not know."""
        for version in self._mine():
            if version in installed:
                yield SendToController(message=CopyReady(node=self.name, version=version))
        for version in self._missing(installed):
            if version in self.orphans:
                yield SendToController(message=CopyFailed(node=self.name, version=version))

    # Guards.

    def is_ours_to_give(self, message: RequestState) -> bool:
        standby = self.standby.get(message.version)
        if standby is None or (standby.donor, standby.node) != (self.name, message.sender):
            return False
        return message.version not in self.given

    def is_awaited(self, message: State) -> bool:
        if message.version not in self.awaited or self.standby[message.version].donor != message.sender:
            return False
        return message.position >= 0 and self.is_ahead_rightly(message)

    def is_ahead_rightly(self, message: State) -> bool:
        return all(self.unordered and taken.position > message.position for taken in message.ahead)

    # Actions.

    def note_want(self, message: RequestState) -> Iterable[Effect]:
        self.wanted[message.version] = message
        self.given |= {message.version}
        return ()

    def note_state(self, message: State) -> Iterable[Effect]:
        self.awaited -= {message.version}
        self.arrived[message.version] = message
        return ()

    def adopt(self, view: View) -> Iterable[Effect]:
        self.view = view.number
        self.unordered = self.stage in view.unordered
        self.standby = {s.version: s for s in view.standby if s.stage == self.stage}
        self.orphans = frozenset(v for v, standby in self.standby.items() if not view.alive(standby.donor))
        self.awaited = frozenset(version for version in self.awaited if version in self.standby)
        self.wanted = {version: want for version, want in self.wanted.items() if version in self.standby}
        self.given = frozenset(version for version in self.given if version in self.standby)
        return ()

    # How it is done.

    def _mine(self) -> list[int]:
        return sorted(version for version, standby in self.standby.items() if standby.node == self.name)

    def _missing(self, installed: Container[int]) -> list[int]:
        """The copies that are to be here and whose state has not arrived."""
        return [version for version in self._mine() if version not in installed and version not in self.arrived]

    def _want(self, version: int) -> Iterator[Effect]:
        self.awaited |= {version}
        want = RequestState(sender=self.name, view=self.view, stage=self.stage, version=version)
        yield Send(to=self.standby[version].donor, message=want)


StateMover.RULES = (
    Rule(on=RequestState, guard=StateMover.is_ours_to_give, action=StateMover.note_want, cites="3.4.3.1: cu-start"),
    Rule(on=State, guard=StateMover.is_awaited, action=StateMover.note_state, cites="fig. 3.7; rules 10, 16"),
    Rule(on=View, guard=always, action=StateMover.adopt, cites="3.4.3.1; rules 12, 17"),
)
