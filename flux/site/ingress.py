"""The ingress process: it takes rows from the source, numbers them as its machine says, partitions them."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

import numpy as np
import trio

from ..hashing import partition_of
from ..plan.plan import INGRESS
from ..protocols.ingress import Ingress
from ..protocols.messages import Effect, Pull, Released, Sourced, SourceEnded
from ..protocols.node import Node
from ..punctuation import Punctuation
from ..sources import Source, SourceBatch, SourceContext
from ..wire.rows import Rows
from .shell import Shell, Surroundings

_REPORT_EVERY_S = 0.05


class IngressProcess(Shell):
    """The process in front of the dataflow."""

    def __init__(self, surroundings: Surroundings, source: Source) -> None:
        super().__init__(surroundings, Node(INGRESS, [Ingress(INGRESS, surroundings.plan.pool_rows)]))
        self._source = source
        self._pulls, self._pulled = trio.open_memory_channel[int](1)
        self._received: deque[tuple[int, Callable[[], None]]] = deque()
        self._numbered: list[tuple[float, int, int]] = []  # (when, upto, rows), for the report.
        self._reported_at = 0.0

    def start(self, nursery: trio.Nursery) -> None:
        nursery.start_soon(self._pump)

    def carry_out(self, effect: Effect) -> None:
        if isinstance(effect, Pull):
            self._pulls.send_nowait(effect.after)
        elif isinstance(effect, Released):
            while self._received and self._received[0][0] <= effect.upto:
                self._received.popleft()[1]()
        else:
            super().carry_out(effect)

    async def _pump(self) -> None:
        try:
            async for batch in self._source.batches(SourceContext(self.surroundings.directory)):
                if batch.rows.num_rows:
                    self.tell(self._number(await self._pulled.receive(), batch))
                elif batch.received is not None:
                    batch.received()
            after = await self._pulled.receive()
            end = Rows(None, (Punctuation(after + 1, "end"),))
            self.tell(Sourced(after=after, upto=after + 1, rows=0, body=end))
            await self._pulled.receive()
            self.tell(SourceEnded())
            self._report()
        except Exception as error:
            self.fail(error)

    def _number(self, after: int, batch: SourceBatch) -> Sourced:
        count = batch.rows.num_rows
        upto = after + count
        first = self.plan.segments[0]
        columns = [batch.rows.column(name) for name in first.columns]
        rows = Rows.of(
            batch.rows,
            np.arange(after + 1, upto + 1, dtype=np.int64),
            None,
            np.zeros(count, dtype=np.uint16),
            partition_of(columns, first.partitions),
        )
        if batch.received is not None:
            self._received.append((upto, batch.received))
        self._numbered.append((time.monotonic(), upto, count))
        if self._numbered[-1][0] > self._reported_at + _REPORT_EVERY_S:
            self._report()
        return Sourced(after=after, upto=upto, rows=count, body=rows)

    def _report(self) -> None:
        if self._numbered:
            self._reported_at = self._numbered[-1][0]
            self.program.send({"kind": "inputs", "log": self._numbered})
            self._numbered = []
