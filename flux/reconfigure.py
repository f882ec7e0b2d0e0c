"""Reconfigure: change the code and the parameters of steps while rows flow: `flux.change` and what comes of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from .driver.change_request import AddedRequest, StepRequest
from .driver.known_changes import KnownChange

__all__ = ["Change", "change", "filter", "map", "remove"]


def change(
    operator: Any = None,
    migrate: Any = None,
    modules: Sequence[str] = (),
    before: Sequence[AddedRequest] | None = None,
    after: Sequence[AddedRequest] | None = None,
    **parameters: Any,
) -> StepRequest:
    """Say what is to become of a step, for `run.reconfigure`.

    `operator` is the new class, `parameters` replace those of the same name. `migrate(piece)` makes state of the new
    operator of that of the old one: it is given what `install_state` would be given, one piece at a time, and of a
    `KeyedOperator` the state of one key. Classes and functions are of modules that every site can import, or named as
    "module:name". The module is read anew, from its file as it is now; so are `modules`, where it imports them.

    `before` and `after` are lists of `flux.filter(...)` and `flux.map(...)` that rows are to pass before they reach the
    step, and after they have left it; an empty list removes those that an earlier change has added.

    >>> import flux
    >>> flux.change(timeout=30).parameters
    {'timeout': 30}
    """
    first, last = (None if steps is None else tuple(steps) for steps in (before, after))
    return StepRequest(operator, migrate, tuple(modules), parameters, first, last)


def remove() -> StepRequest:
    """Say that a step is to be removed, for `run.reconfigure`: rows pass on unchanged, and its state is dropped.

    A later `flux.change()` of the step brings it back, without state.
    """
    return StepRequest(removed=True)


def filter(function: Any, batch: bool = False) -> AddedRequest:
    """Say that rows are to be kept for which a function is true, as with `stream.filter`; for `flux.change`."""
    return AddedRequest("filter", function, None, batch)


def map(function: Any, output: Any = None, batch: bool = False) -> AddedRequest:
    """Say that a function is to make one row of each, as with `stream.map`; for `flux.change`."""
    return AddedRequest("map", function, output, batch)


class Change:
    """A change of code that is committed: rows after `position` are processed by the new code, in every copy.

    Times are in seconds since it was asked for.
    """

    def __init__(self, known: KnownChange, wait: Callable[[Callable[[], bool], float | None], None]) -> None:
        self._known = known
        self._wait = wait

    @property
    def number(self) -> int:
        """The number of the change in its run."""
        return self._known.number

    @property
    def position(self) -> int:
        """The sequence number of the last row that the old code processes."""
        assert self._known.position is not None
        return self._known.position

    @property
    def committed_s(self) -> float | None:
        """When the change was agreed on and committed."""
        return self._after(self._known.committed_at)

    @property
    def first_s(self) -> float | None:
        """When the copies of one site were past the position; None before."""
        return self._after(self._known.first_at)

    @property
    def delay_s(self) -> float | None:
        """When a live copy of each partition was past the position; None before, and if the stream ends before it."""
        return self._after(self._known.each_at)

    @property
    def complete_s(self) -> float | None:
        """When all copies were past it; None before."""
        return self._after(self._known.complete_at)

    @property
    def held_s(self) -> float | None:
        """For how long at most copies waited at the position; None if the controller died meanwhile."""
        return self._known.held_s

    @property
    def attempts(self) -> int | None:
        """How many positions were proposed until no copy was past one; None if the controller died meanwhile."""
        return self._known.attempts

    def wait_complete(self, timeout: float | None = 60) -> None:
        """Return when all copies are past the position; `TimeoutError` if that takes longer."""
        self._wait(lambda: self._known.complete_at is not None, timeout)

    def _after(self, at: float | None) -> float | None:
        return None if at is None else at - self._known.requested_at

    def __repr__(self) -> str:
        return f"<change {self.number} of {', '.join(self._known.steps)} at position {self.position}>"
