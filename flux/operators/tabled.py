"""Tabled: an operator whose state is one table of keys, made when the first row or the first state has come."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from flux.operator import PooledOperator
from flux.operators.keys import KeyTable

__all__ = ["Tabled"]


class Tabled(PooledOperator):
    """It takes state out and forgets it by partition; who derives from it makes `_table`, and installs state."""

    _table: KeyTable | None = None

    def get_partition_state(self, pid: int) -> Iterator[Any]:
        if self._table is not None:
            yield from self._table.pieces(pid)

    def drop_partition(self, pid: int) -> None:
        if self._table is not None:
            self._table.drop(pid)

    def partition_info(self) -> dict[int, int]:
        return {} if self._table is None else self._table.sizes()
