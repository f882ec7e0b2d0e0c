"""Code changes on one site: a change is prepared before it is agreed on, taken up with its view, and forgotten at last.

To prepare means to import the code, to make the operator, and to rehearse: in a fork, where that is possible, copies of
the states that are here are brought to the new edition. What goes wrong is the answer, and nothing has changed.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NoReturn

from ..hosting import Hosted, StepEdition, host
from ..hosting.edition_code import EditionCode
from ..hosting.step_editions import changed_step, rehearse
from ..model.gc_control import gc_paused
from ..model.operator import has_transferable_state
from ..plan.change_spec import ChangeSpec, StepChange, read_spec
from ..protocols.change_messages import Rehearse
from ..protocols.view import Edition, View
from ..system import threads
from ..types.errors import RAISED, FluxError
from ..wire.frames import BadFrame
from .shell import Shell
from .state_transfer import snapshot
from .steps import Steps

_REHEARSAL_S = 0.25  # In a fork, for all partitions of a step; one at least.


@dataclass(frozen=True, slots=True)
class _Made:
    """A step of a change, and a host that was opened for it."""

    change: StepChange
    edition: StepEdition
    opened: Hosted


class SiteChanges:
    """The changes of the steps in `segments`.

    `may_fork` says whether a fork can read the states of a stage, and `installed` which partitions of it are here.
    """

    def __init__(
        self,
        shell: Shell,
        segments: Mapping[int, Steps],
        may_fork: Callable[[int], bool],
        installed: Callable[[int], list[int]],
    ) -> None:
        self._shell = shell
        self._segments = segments
        self._may_fork = may_fork
        self._installed = installed
        self._code = EditionCode()
        self._prepared: dict[int, list[_Made]] = {}  # By the number of the change.
        self._view: View | None = None
        self._known: set[int] = set()  # Editions that were taken up.

    async def prepare(self, asked: Rehearse) -> str:
        """Prepare a change; return why it cannot be made, or nothing."""
        self.follow()  # What this change is made of is the edition before, which may be in the last view.
        try:
            spec = read_spec(asked.spec)
            make = partial(self._make, asked.number, spec)
            has_code = any(change.operator or change.migrate for change in spec.steps)
            with gc_paused():  # To look through large state for garbage would hold up the rows.
                # To import code may take long, and rows have priority.
                made = await threads.call_in_thread(make) if has_code else make()
                await self._rehearse(made)
        except snapshot.SnapshotLost as lost:
            return f"the rehearsal of the change did not end: {lost}"
        except (FluxError, BadFrame) as error:
            return str(error)
        except RAISED as error:
            return f"{type(error).__name__}: {error}"
        self._prepared = {asked.number: made}
        return ""

    def change_some_state(self) -> bool:
        """Change some state that is still of an edition before; return whether there was any."""
        return bool(self._known) and any(steps.change_some_state() for steps in self._segments.values())

    def follow(self) -> None:
        """Take up what the view has, and forget what it has closed; if that is impossible, this process must end."""
        view = self._shell.node.view
        if view is None or view is self._view:
            return
        self._view = view
        for edition in view.editions:
            if edition.number not in self._known:
                self._take_up(edition)
        for stage, steps in self._segments.items():
            closed = [e.number for e in view.editions if stage in e.stages and e.closed]
            if closed:
                steps.forget_before(max(closed))

    def _take_up(self, edition: Edition) -> None:
        try:
            made = self._prepared.pop(edition.number, None) or self._make(edition.number, read_spec(edition.spec))
        except (FluxError, BadFrame, *RAISED) as error:
            self._refuse(edition, error)
        self._known.add(edition.number)
        for stage, steps in self._segments.items():
            of_stage = {each.change.place: (each.edition, each.opened) for each in made if each.change.stage == stage}
            if of_stage:
                steps.add_edition(edition.number, of_stage)

    def _refuse(self, edition: Edition, error: BaseException) -> NoReturn:
        """End: this process cannot run the code that the others run; they rebuild elsewhere what it would hold."""
        why = f"it cannot make change {edition.number} of the code, which was made before it came: {error}"
        self._shell.log(f"{self._shell.name} ends: {why}", logging.ERROR)
        self._shell.end_as_dead(why)

    def _make(self, number: int, spec: ChangeSpec) -> list[_Made]:
        """Make the steps that the edition of this number changes, and open them without partitions."""
        made = []
        for change in spec.steps:
            editions = self._segments[change.stage].editions[change.place]
            if editions.knows(change.since):
                continue  # It is as an earlier edition left it.
            edition = changed_step(editions.step, editions.edition(number), change, self._code)
            opened = host(edition.step)
            opened.open(())
            made.append(_Made(change, edition, opened))
        return made

    async def _rehearse(self, made: Sequence[_Made]) -> None:
        for each in made:
            stage, change = each.change.stage, each.edition.change
            if change.drops or (change.is_none and not change.keeps and each.opened.holds_states_itself):
                continue  # There is no state to be taken over, or nothing of the user's is called for it.
            if change.is_none and not each.change.operator and has_transferable_state(each.edition.step):
                self._play_without_state(each)
                continue
            editions = self._segments[stage].editions[each.change.place]
            # A copy that stands before an earlier change goes through that one first.
            held = [pid for pid in self._installed(stage) if editions.has_begun_last(pid)]
            budget = snapshot.Budget()
            try:
                self._play(each, held, budget.note)
                continue
            except snapshot.TooMuch:
                pass
            if not self._may_fork(stage):
                continue  # What was played has to do: rows would wait for the rest.
            play = partial(self._play, each, held, partial(_is_time_left, time.monotonic() + _REHEARSAL_S))
            fork = snapshot.Fork(_nothing_of(play), f"a change of {each.edition.step.name} is rehearsed")
            try:
                while await fork.read() is not None:
                    pass
            finally:
                fork.close()

    def _play_without_state(self, made: _Made) -> None:
        """Call `on_change` of an operator without state: that state can be copied is found out all the time."""
        step = self._segments[made.change.stage].editions[made.change.place].edition(made.change.since).step
        if made.edition.change.keeps and step.parameters != made.edition.step.parameters:
            new = host(step)
            new.open(())
            new.on_change(0, step, made.edition.step)
            new.close()

    def _play(self, made: _Made, held: Sequence[int], goes_on: Callable[[int], object]) -> None:
        """Rehearse a change with partitions; `goes_on` is given the size of what was encoded, and may end it."""
        edition, editions = made.edition, self._segments[made.change.stage].editions[made.change.place]
        # An operator that goes on in the next edition begins as it was.
        new = host(editions.edition(made.change.since).step if edition.change.keeps else edition.step)
        new.open(())
        for size in rehearse(editions, new, edition, held):
            if goes_on(size) is False:
                break
        new.close()


def _is_time_left(until_s: float, size_bytes: int) -> bool:
    return time.monotonic() < until_s


def _nothing_of(play: Callable[[], None]) -> Iterator[list[memoryview]]:
    """Play, and yield nothing: only what is raised matters."""
    play()
    yield from ()
