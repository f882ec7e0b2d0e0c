"""A message that no rule accepts is refused with an error that names everyone in it, and changes nothing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from flux.protocols.machine import Fenced, Machine, Refused


def assert_refused(machine: Machine, message: Any, by: str) -> None:
    """`machine`, or the machine in it called `by`, refuses `message` and stays as it is."""
    text = refusal(machine, message, Refused)
    # The message is shown whole, and with it its sender.
    assert text.startswith(f"{by} refuses {message!r}: no rule accepts it in state "), text
    [state] = {inner.describe() for inner in machines_in(machine) if inner.title == by}
    assert state and f"in state {state}. " in text


def assert_fenced(machine: Machine, message: Any, view: int) -> None:
    """`machine` refuses `message` because its sender is dead in `view`, and stays as it is."""
    text = refusal(machine, message, Fenced)
    assert text.startswith(f"{machine.title} refuses {message!r}: its sender is dead in view {view}. "), text


def assert_ignored(machine: Machine, message: Any) -> None:
    """`machine` accepts `message` and does nothing."""
    before = machine.key()
    assert machine.step(message) == []
    assert machine.key() == before


def refusal(machine: Machine, message: Any, kind: type[Refused]) -> str:
    """The text with which `message` is refused; nothing else has come of it."""
    before = machine.key()
    with pytest.raises(Refused) as refused:
        machine.step(message)
    assert type(refused.value) is kind
    assert machine.key() == before
    return str(refused.value)


def machines_in(machine: Machine) -> Iterator[Machine]:
    """A machine and all machines that it is made of."""
    yield machine
    for value in vars(machine).values():
        for inner in value.values() if isinstance(value, dict) else (value,):
            if isinstance(inner, Machine):
                yield from machines_in(inner)
