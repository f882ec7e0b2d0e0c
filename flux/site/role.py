"""Role: what a particular process adds to its shell. A process is a `Shell` with a role: site, ingress or egress."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import trio

from ..protocols.change_messages import Rehearse
from ..protocols.messages import Consume, Effect, State
from ..protocols.node import Node
from ..wire.frames import BadFrame
from ..wire.link import Link
from ..wire.membership import FromController, FromNode
from ..wire.reports import Command, ProcessStopped
from ..wire.transfer import StateChunk


class Role(Protocol):
    """All hooks that a shell calls. A role defines those that it needs."""

    reports_work: bool = False  # Whether the controller needs to know what the process does, for balance.

    async def prepare(self) -> Node | None:
        """Wait for what the driver knows; return the node to begin with, if it is another than at first."""
        return None

    def start(self, nursery: trio.Nursery) -> None:
        """Start what else this process needs."""
        return None

    def may_begin(self, job: Consume) -> bool:
        """Return whether nothing must be done before `job`; else do some of that now."""
        return True

    def perform(self, job: Consume) -> None:
        """Do the work of a `Consume`; enqueue `Consumed` when it is done."""
        raise AssertionError(f"{type(self).__name__} has no work to do: {job!r}")

    def carry_out(self, effect: Effect) -> None:
        """Carry out an effect that only this role knows."""
        raise AssertionError(f"{type(self).__name__} cannot carry out {effect!r}")

    async def rehearse(self, asked: Rehearse) -> str:
        """Prepare a change of code; return why it cannot be made, or nothing."""
        return ""

    def tidy(self) -> bool:
        """Do some of what can wait until there is time; return whether there was anything."""
        return False

    def on_command(self, command: Command) -> None:
        """Obey a command of the driver that only this role knows."""
        return None

    def answer(self, request: FromController) -> FromNode:
        """Return the answer to a question of the controller."""
        raise BadFrame(f"{type(self).__name__} holds no partitions that could be compared: {request!r}")

    def key_counts(self, stage: int) -> Mapping[int, int]:
        """Return the number of keys in the state of each partition of a stage, where that is known."""
        return {}

    def repeat_reports(self) -> None:
        """Report again what a driver that was started again must know."""
        return None

    def stop(self) -> ProcessStopped:
        """End the work; return the last report."""
        return ProcessStopped()

    def send_state(self, to: str, message: State) -> None:
        """Send a copy's state, as it is now, to the site that is to hold it."""
        raise AssertionError(f"{type(self).__name__} has no state to send")

    def take_chunk(self, link: Link, chunk: StateChunk, body: Any) -> None:
        """Take a chunk of the state of a copy in transfer; enqueue `State` with the last."""
        raise BadFrame(f"{link.peer} sent state, and {type(self).__name__} holds no partitions")

    def forget_chunks(self, peer: str) -> None:
        """Drop what has arrived of transfers from `peer`: the rest does not arrive."""
        return None
