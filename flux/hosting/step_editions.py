"""Step editions: a step as a change of code makes it, from what the change says; and its rehearsal."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import partial
from types import GeneratorType
from typing import Any

from ..model.operator import OperatorStep, operator_class
from ..model.stateless import Filter, Map, PassThrough
from ..plan.change_spec import FILTER, AddedStep, StepChange
from ..types.errors import ChangeError, FluxError
from ..wire.state_codec import decode, encode
from . import checked_operator, operator_form
from .edition_code import EditionCode
from .hosted import Hosted
from .hosted_editions import StepEdition
from .state_change import StateChange


def changed_step(planned: OperatorStep, before: StepEdition, change: StepChange, code: EditionCode) -> StepEdition:
    """Return a step as `change` makes it of what it was `planned` as; `before` is the edition before this one.

    `ChangeError` if it cannot be changed so.
    """
    first, last = (tuple(_added(planned, each, code) for each in steps) for steps in (change.before, change.after))
    if change.removed:
        step = replace(planned, factory=PassThrough, parameters={}, output=change.schema, key_columns=())
        return StepEdition(step, StateChange(drops=True), first, last)
    factory = code.load(change.operator, change.sources) if change.operator else planned.factory
    parameters = planned.parameters | change.parameters
    try:
        checked_operator(factory, planned.name)
        form = operator_form(factory, planned.name)
    except ChangeError:
        raise
    except FluxError as error:
        raise ChangeError(str(error)) from error
    output = before.step.output if change.schema is None else change.schema
    step = replace(planned, factory=factory, parameters=parameters, output=output)
    if before.step.factory is PassThrough:
        return StepEdition(step, StateChange(drops=True), first, last)
    was = operator_form(before.step.factory, planned.name)
    if form is not was:
        raise ChangeError(
            f"step {planned.name!r} is a flux.{was.__name__}, and {change.operator} a flux.{form.__name__}: their "
            "state is not of one kind. A change keeps the form of an operator"
        )
    _check_changeable(before.step, planned, change)
    return StepEdition(step, _state_change(before.step, step, change, code), first, last)


def _added(planned: OperatorStep, added: AddedStep, code: EditionCode) -> OperatorStep:
    """Return a step that stands before or after another one at its place."""
    fn = code.load(added.function, added.sources)
    kind = Filter if added.kind == FILTER else Map
    factory = partial(kind, fn, added.by_batch)
    name = f"{added.kind}({added.function.partition(':')[2]})"
    return replace(planned, factory=factory, parameters={}, name=name, key_columns=(), output=added.schema, route=None)


def _check_changeable(before: OperatorStep, planned: OperatorStep, change: StepChange) -> None:
    """Raise unless the operator goes on with its state when these parameters change."""
    may_change = getattr(_declaring(before), "changeable", None)
    changed = {**planned.parameters, **change.parameters}
    names = [
        name for name, value in changed.items() if name not in before.parameters or before.parameters[name] != value
    ]
    fixed = [name for name in names if may_change is not None and name not in may_change]
    if fixed and not change.operator:
        goes_on = f"; it goes on with another {' or '.join(may_change)}" if may_change else ""
        raise ChangeError(
            f"step {planned.name!r}: its state depends on {', '.join(fixed)}, which cannot be changed{goes_on}. Give "
            "the change another operator, with migrate=..., or start the flow anew"
        )


def _state_change(before: OperatorStep, step: OperatorStep, change: StepChange, code: EditionCode) -> StateChange:
    if change.migrate:
        migrate = code.load(change.migrate, change.migrate_sources)
        if not callable(migrate):
            raise ChangeError(f"step {step.name!r}: migrate is {change.migrate}, which cannot be called")
        return StateChange(migrate=migrate)
    old, new = _declaring(before), _declaring(step)
    was, is_now = state_version(old), state_version(new)
    if was == is_now:
        return StateChange(keeps=old is new and (before.parameters == step.parameters or hasattr(new, "on_change")))
    if not hasattr(new, "upgrade_state"):
        raise ChangeError(
            f"step {step.name!r}: its state has version {was}, and that of {change.operator} has version {is_now}. "
            "Define upgrade_state(self, piece, version) with the new operator, or give the change migrate=..."
        )
    return StateChange(from_version=was)


def _declaring(step: OperatorStep) -> Any:
    declaring = operator_class(step.factory, step.name)
    return declaring if isinstance(declaring, type) else type(declaring)


def state_version(declaring: Any) -> int:
    """Return the version of an operator's state."""
    return int(getattr(declaring, "state_version", 1))


def rehearse(old: Hosted, new: Hosted, edition: StepEdition, partitions: Iterable[int]) -> Iterator[int]:
    """Bring copies of the states of partitions to a new edition, in a host that has no rows; raise what that raises.

    `new` was opened for this: as the next edition, or, if the operator keeps its state, as the one before. Yields the
    size of what was encoded, again and again; what follows the last one that is taken is left out.
    """
    has_changed = False
    for pid in partitions:
        whose = f"step {old.step.name!r}, partition {pid}"
        words = old.words_of(pid)
        new.init_trans(pid)
        for packed in _encoded(old, pid, whose):
            yield len(packed)
            new.install_partition_state(pid, new.changed(pid, decode(packed, words=words), edition.change))
        new.end_trans(pid)
        if edition.change.keeps and not (has_changed and not new.has_instance_by_partition):
            new.on_change(pid, new.step, edition.step)
            has_changed = True
        for packed in _encoded(new, pid, whose):
            yield len(packed)
        new.drop_partition(pid)


def _encoded(hosted: Hosted, pid: int, whose: str) -> Iterator[bytes]:
    state = hosted.get_partition_state(pid)
    for piece in state if isinstance(state, GeneratorType) else [state]:
        yield encode(piece, whose, words=hosted.words_of(pid))
