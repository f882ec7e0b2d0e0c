"""Tabled: an operator whose state is one table of keys, made when the first row or the first state has come."""

from __future__ import annotations

from typing import Any

from flux.operator import PooledOperator
from flux.operators.table import Table

__all__ = ["Tabled"]


class Tabled(PooledOperator):
    """It takes state out and forgets it by partition; who derives from it makes `_table`, and installs state."""

    _table: Table | None = None

    def get_partition_state(self, pid: int) -> Any:
        return None if self._table is None else self._table.get(pid)

    def drop_partition(self, pid: int) -> None:
        if self._table is not None:
            self._table.drop(pid)

    def partition_info(self) -> dict[int, int]:
        return {} if self._table is None else self._table.sizes()
