"""Sink: the base class of what `stream.sink(...)` takes, and how a restarted egress resumes it."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from ..types.errors import OperatorError
from ..types.infer import unify
from ..types.normalize import describe_columns


class Sink:
    """What `stream.sink(...)` takes; that call sets `order`, from its own argument.

    The egress acknowledges what `write` has taken, and then no other process keeps it. So the rows must outlive the
    process when `write` returns. A sink that `blocks` is called in a thread, one call at a time; the egress buffers
    what arrives meanwhile for the next call. A sink that has `flush_every_s` is flushed at that interval.
    """

    order: str = "sn"
    blocks: bool = False
    flush_every_s: float | None = None

    def expect(self, schema: pa.Schema | None) -> None:
        """Check the columns of the stream when the plan is made; None: not declared. Raise `PlanError` if invalid."""

    def open(self, directory: Path) -> int | None:
        """Prepare for rows; `directory` is the run's own. Return the last `upto` of a durable write, or 0.

        None: the sink keeps no position. The egress then notes one when `write` returns: if an egress dies during a
        write, the next one repeats it.
        """
        return None

    def write(self, rows: pa.RecordBatch, after: int, upto: int) -> None:
        """Write all the output with after < sn <= upto; on return it is durable. Not called for ranges without rows."""
        raise NotImplementedError(f"{type(self).__name__} must define `write(self, rows, after, upto)`")

    def flush(self) -> None:
        """Make visible to readers what was written, if `write` alone does not."""

    def takes(self, schema: pa.Schema, before: pa.Schema | None) -> bool:
        """Return whether rows may have these columns from some row on: the code before the sink changes.

        `before` are the columns up to there, None if they are not declared.
        """
        return False

    def interrupt(self) -> None:
        """End the wait of a blocked `write`, which may raise: the run stops. Called from any thread."""

    def close(self) -> None:
        """Finish: the stream has ended, and nothing more is written. A restarted egress may call it again."""


class Null(Sink):
    """Drop the output. It is still counted in the report."""

    def write(self, rows: pa.RecordBatch, after: int, upto: int) -> None:
        pass

    def takes(self, schema: pa.Schema, before: pa.Schema | None) -> bool:
        return True


def check_alike(first: pa.Schema | None, now: pa.Schema) -> pa.Schema:
    """Return the schema of all the output: types that are unknown in `first` are taken from `now`.

    Raise if the columns have changed. Only an undeclared output can: each site infers it from its first rows.
    """
    whole = now if first is None else unify(first, now)
    if whole is None:
        assert first is not None
        raise OperatorError(
            f"the output had the columns {describe_columns(first)} at first and then "
            f"{describe_columns(now)}. Declare `output` with the operator before the sink"
        )
    return whole
