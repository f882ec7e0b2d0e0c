"""Temporary removal of a rule from the production machines: a method or a row of a table is replaced."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

from ...protocols.machine import Machine
from ...protocols.messages import Effect, Send
from .. import world as world_module
from ..invariants import Checker, all_checkers
from ..process import Watch


class Patch(ExitStack):
    """Replaces attributes, and restores them when the patch ends."""

    def put(self, owner: Any, name: str, other: Any) -> None:
        """Replace an attribute by `other`; if it is a method of a machine, also in the machine's table."""
        own = vars(owner)[name]
        self.callback(setattr, owner, name, own)
        setattr(owner, name, other)
        if isinstance(owner, type) and issubclass(owner, Machine) and name != "RULES":
            self._put_in_table(owner, own, other)

    def _put_in_table(self, machine: type[Machine], own: Any, other: Any) -> None:
        rows = tuple(
            replace(
                rule,
                guard=other if rule.guard is own else rule.guard,
                action=other if rule.action is own else rule.action,
            )
            for rule in machine.RULES
        )
        if rows != machine.RULES:
            self.put(machine, "RULES", rows)


def change_sent(kind: type[Any], change: Callable[[Any], Any], method: Callable[..., Any]) -> Callable[..., Any]:
    """Return the method with every message of a kind that it sends changed; a message changed to None is not sent."""

    def with_changes(*arguments: Any) -> Iterator[Effect]:
        for effect in method(*arguments):
            is_one = isinstance(effect, Send) and isinstance(effect.message, kind)
            message = change(effect.message) if is_one else None
            if not is_one or message is not None:
                yield replace(effect, message=message) if is_one else effect

    return with_changes


def disable_checker(patch: Patch, checker: type[Checker]) -> None:
    """Leave out a checker that would fail at once, so that the story shows the consequences."""
    patch.put(world_module, "_ALL", Watch(kept for kept in all_checkers() if not isinstance(kept, checker)))
