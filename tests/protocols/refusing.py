"""A message that no rule accepts is refused, says by whom, and changes nothing."""

from __future__ import annotations

from typing import Any

import pytest

from flux.protocols.machine import Machine, Refused


def assert_refused(machine: Machine, message: Any, by: str) -> None:
    """`machine`, or the machine in it called `by`, refuses `message` and stays as it is."""
    before = machine.key()
    with pytest.raises(Refused, match=f"^{by} refuses {type(message).__name__}.*no rule accepts it"):
        machine.step(message)
    assert machine.key() == before


def assert_ignored(machine: Machine, message: Any) -> None:
    """`machine` accepts `message` and does nothing."""
    before = machine.key()
    assert machine.step(message) == []
    assert machine.key() == before
