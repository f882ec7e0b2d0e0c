"""A source that cannot give a row again; shared by the tests of ingresses that are started again."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pyarrow as pa
import trio

from flux.sources import Source, SourceBatch, SourceContext


class Live(Source):
    """Rows that come once: whoever asks gets the next ones."""

    schema = pa.schema({"n": pa.int64()})
    replays = False

    def __init__(self, batches: list[list[int]]) -> None:
        self.left = batches

    async def batches(self, context: SourceContext, after: Any = None) -> AsyncIterator[SourceBatch]:
        assert after is None
        while self.left:
            await trio.lowlevel.checkpoint()
            yield SourceBatch(pa.record_batch({"n": self.left.pop(0)}))
