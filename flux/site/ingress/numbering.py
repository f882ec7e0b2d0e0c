"""Numbering: whose turn it is to number rows or punctuations, after which number, and whether it may be given.

The machine asks for rows one pull at a time. Several tasks answer: one for each source, the clock, and the check for
idle sources. One of them has the turn. A journal that lost its end with the power of its machine does not know the last
numbers; they may be given again only to the same rows (rule 39).
"""

from __future__ import annotations

from collections.abc import Sequence

import trio

from ...types.errors import FluxError
from .source_input import SourceInput


class Numbering:
    """The turns of one ingress. `depends_on_time` if numbers are given to watermarks, `sheds` if rows may get none."""

    def __init__(self, inputs: Sequence[SourceInput], depends_on_time: bool, sheds: bool) -> None:
        self.turn = trio.Lock()  # Held by the task whose rows or punctuations are numbered next.
        self._inputs = inputs
        self._depends_on_time = depends_on_time
        self._sheds = sheds
        self._pulls, self._pulled = trio.open_memory_channel[int](1)
        self._given_upto = 0  # Numbers that nodes have seen; the journal may have lost what they were given to.

    def offer(self, after: int, given_upto: int) -> None:
        """Note that the machine asks for what comes after a number."""
        self._given_upto = given_upto
        self._pulls.send_nowait(after)

    async def next(self) -> int:
        """Return the number after which the machine asks for more, when it does."""
        return await self._pulled.receive()

    def give_back(self, after: int) -> None:
        """Leave to another task what the machine asked for: nothing was numbered."""
        self._pulls.send_nowait(after)

    def check(self, numbered_upto: int, why_not: str | None) -> None:
        """Raise if the next number was given before, and `why_not` says why it cannot be given to the same row."""
        if why_not is None or numbered_upto >= self._given_upto:
            return
        raise FluxError(
            f"the ingress's journal has lost its end, as it may when a machine loses power: it has the numbers up to "
            f"{numbered_upto:,}, and other processes have seen numbers up to {self._given_upto:,}. The rows between "
            f"cannot be given the same numbers again, because {why_not}. Output up to now is right; run the flow again"
        )

    def why_not_again(self, source_input: SourceInput) -> str | None:
        """Return why rows do not get the same numbers when they are read again; None if they do.

        The rows of one source that replays are numbered one by one. Other numbers depend on when rows arrived.
        """
        if len(self._inputs) > 1:
            return "it depends on chance which of the sources was read first"
        if not source_input.source.replays:
            return f"the source {source_input.name} does not replay"
        if self._depends_on_time or source_input.source.clock_ms is not None:
            return "watermarks or clock readings were among them, and where is not known"
        return "some rows were shed, and which is not known" if self._sheds else None
