"""Sink: what `stream.sink(...)` takes, and how an egress that is started again goes on with it."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from ..types.errors import OperatorError
from ..types.infer import unify
from ..types.normalize import describe_columns


class Sink:
    """What `stream.sink(...)` takes. `order` is set by it, from its own argument.

    The egress acknowledges what a sink has taken, and then nobody keeps it any more. So what `write` returned from must
    outlive the process. A sink that `blocks` is called in a thread, one call at a time, and the egress gathers
    what comes meanwhile into the next one. One that has `flush_every_s` is flushed so often.
    """

    order: str = "sn"
    blocks: bool = False
    flush_every_s: float | None = None

    def expect(self, schema: pa.Schema | None) -> None:
        """Hear which columns the stream has, as the plan is made; None: nobody said. `PlanError` if it will not do."""

    def open(self, directory: Path) -> int | None:
        """Make ready for rows; `directory` is the run's own. Return the last `upto` of a write that is durable, or 0.

        None: the sink keeps no position. The egress then keeps one for it, noted when `write` returns: a write that
        an egress died in is repeated by the next one.
        """
        return None

    def write(self, rows: pa.RecordBatch, after: int, upto: int) -> None:
        """Take all the output with after < sn <= upto; on return it is durable. Ranges without rows are left out."""
        raise NotImplementedError(f"{type(self).__name__} must define `write(self, rows, after, upto)`")

    def flush(self) -> None:
        """Let readers see what was written, if `write` alone does not."""

    def interrupt(self) -> None:
        """The run stops: a `write` that waits for something need not wait longer, and may raise. From any thread."""

    def close(self) -> None:
        """Finish: the stream has ended; nothing is written after it. It may be called again by another egress."""


class Null(Sink):
    """Throw the output away. It is still counted in the report."""

    def write(self, rows: pa.RecordBatch, after: int, upto: int) -> None:
        pass


def check_alike(first: pa.Schema | None, now: pa.Schema) -> pa.Schema:
    """Return the schema of all the output: what `first` did not tell is told by `now`. Raise if columns changed.

    Only an output that nobody declared can do that: each site takes it from the first rows it sees.
    """
    whole = now if first is None else unify(first, now)
    if whole is None:
        assert first is not None
        raise OperatorError(
            f"the output came with the columns {describe_columns(first)} at first and then with "
            f"{describe_columns(now)}. Declare `output` with the operator before the sink"
        )
    return whole
