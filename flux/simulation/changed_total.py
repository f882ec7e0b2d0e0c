"""Changed total: the code that a simulated run changes to, and the state that it makes of the old one."""

# ruff: noqa: RUF012 - operators declare `output` as users do, without ClassVar.

from __future__ import annotations

from typing import Any

from ..model.operator import Context, KeyedOperator

MIGRATED, UPGRADED = 10_000, 20_000  # What is added to the total of a key.


def migrate(state: list[int]) -> list[int]:
    """Return the state of a key after a change."""
    nth, total = state
    return [nth, total + MIGRATED]


class SecondTotal(KeyedOperator):
    """Does what `RunningTotal` does, with state of another version."""

    output = {"source": "int64", "n": "int64", "nth": "int64", "total": "int64"}
    state_version = 2

    def open(self, context: Context) -> None:
        self.bonus = context.parameters.get("bonus", 0)

    def upgrade_state(self, piece: Any, version: int) -> Any:
        """Return the state of a key of the first version."""
        nth, total = piece
        return {"nth": nth, "total": total + UPGRADED}

    def on_tuple(self, key: Any, row: Any, state: Any) -> Any:
        held = state or {"nth": 0, "total": 0}
        made = {"nth": held["nth"] + 1, "total": held["total"] + row.n + self.bonus}
        return made, [{"source": row.source, "n": row.n, "nth": made["nth"], "total": made["total"]}]


def migrate_second(state: dict[str, int]) -> dict[str, int]:
    """Return the state of a key of the second version after a change."""
    return state | {"total": state["total"] + MIGRATED}
