"""Reports: what a process tells the program that leads the run, or the controller that takes its part."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from ..wire.link import FrameBody, Link

# Each says totals, so the next one says all that the last did.
_TOTALS = ("rows", "inputs", "shed", "load")


class ReportLink(Link):
    """A link for reports; its first frame says so, because a controller may take the program's part.

    `again` if it takes the place of another that has broken: rows flow on while nobody leads the run, maybe for hours.
    Until somebody does, totals are not kept; the process repeats the last of them then.
    """

    def __init__(self, *, again: bool = False) -> None:
        super().__init__("program")
        self._again_until_connected = again
        self.send({"kind": "up"})

    def send(self, header: dict[str, Any], body: FrameBody = None, bulk: bool = False) -> None:
        if self._is_kept(header):
            super().send(header, body, bulk)

    def send_batch(self, header: dict[str, Any], batch: pa.RecordBatch | None, encoded: FrameBody = None) -> None:
        if self._is_kept(header):
            super().send_batch(header, batch, encoded)

    def _is_kept(self, header: dict[str, Any]) -> bool:
        return self.connected or not self._again_until_connected or header["kind"] not in _TOTALS
