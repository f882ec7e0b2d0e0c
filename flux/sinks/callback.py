"""The sink `Callback`: the output is passed to a function."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa

from ..model.plain_calls import check_result
from ..types.errors import PlanError
from .sink import Sink


class Callback(Sink):
    """Call `fn(rows)` with each piece of the output, a `pyarrow.RecordBatch`, in order, in the egress process.

    The egress is a process of its own: changes that `fn` makes to the program's variables are not seen in the program.
    It waits for `fn`; what `fn` raises ends the run.

    Each row is passed at least once: if the egress is killed while `fn` works, the next egress calls it again with the
    same rows, perhaps cut differently. For exactly once, `fn` is an object that keeps the position together with the
    rows, in one transaction. ``fn(rows, upto)`` takes all output after the last `upto`. ``fn.position()`` returns the
    last `upto` it has, 0 at first; it is called when an egress starts.

    >>> seen = []
    >>> sink = Callback(lambda rows: seen.extend(rows.to_pylist()))
    >>> sink.write(pa.record_batch({"n": [1, 2]}), after=0, upto=2)
    >>> seen
    [{'n': 1}, {'n': 2}]
    """

    def __init__(self, fn: Callable[..., Any]) -> None:
        if not callable(fn):
            raise PlanError(f"Callback: fn must be callable, as fn(rows); it is {fn!r}")
        self._fn = fn
        self._position: Callable[[], int] | None = getattr(fn, "position", None)

    def open(self, directory: Path) -> int | None:
        if self._position is None:
            return None
        position = self._position()
        if isinstance(position, bool) or not isinstance(position, int) or position < 0:
            raise PlanError(
                f"Callback: fn.position() must give the last `upto` that fn took, or 0; it gave {position!r}"
            )
        return position

    def takes(self, schema: pa.Schema, before: pa.Schema | None) -> bool:
        return True

    def write(self, rows: pa.RecordBatch, after: int, upto: int) -> None:
        check_result(self._fn(rows) if self._position is None else self._fn(rows, upto))
