"""The controller process: it hears from every node, and tells its machine when a connection breaks."""

from __future__ import annotations

import socket
import time
from typing import Any

import trio

from ..errors import DataLost
from ..protocols.controller import Controller
from ..protocols.messages import Closed, Done, Failed, Hello, Lost, Publish
from ..site.recording import SUFFIX, Recorder
from ..site.shell import Surroundings, leave
from ..wire import address, frames
from ..wire.codec import from_plain, to_plain
from ..wire.link import Link, accept_loop

CONTROLLER = "controller"


class ControllerProcess:
    """The process that owns the view."""

    def __init__(self, surroundings: Surroundings, listener: socket.socket) -> None:
        self.surroundings = surroundings
        self.machine = Controller(surroundings.plan.view(), surroundings.plan.rebuild_at_once)
        self.program = Link("program")
        self._listener = listener
        self._links: dict[str, Link] = {}
        self._addresses: dict[str, str] = {}
        self._recorder: Recorder | None = None
        if surroundings.record is not None:
            self._recorder = Recorder(surroundings.record / f"{CONTROLLER}{SUFFIX}", self.machine)

    async def run(self) -> None:
        """Live until the program says stop."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            where = self.surroundings.address("program")
            self.program.connect(await address.connect(where), self.surroundings.greeting(CONTROLLER))
            nursery.start_soon(self.program.write)
            nursery.start_soon(self._read_program)
            nursery.start_soon(accept_loop, self._listener, self._accepted)

    def _accepted(self, sock: socket.socket) -> None:
        self._nursery.start_soon(self._serve, sock)

    async def _serve(self, sock: socket.socket) -> None:
        link = Link("a process that has not greeted", sock)
        self._nursery.start_soon(link.write)
        try:
            while (frame := await link.receive()) is not None:
                header, _ = frame
                self._hear(link, header)
        except frames.BadFrame as error:
            self._log(f"closed the connection to {link.peer}: {error}")
        link.close()
        if self._links.pop(link.peer, None) is not None:
            self._step(Closed(node=link.peer))

    def _hear(self, link: Link, header: dict[str, Any]) -> None:
        if link.peer not in self._links:
            if not self.surroundings.greets(header) or header["node"] in self._links:
                raise frames.BadFrame("it does not know this run's token, or is there already")
            link.peer = header["node"]
            self._links[link.peer] = link
        elif header.get("kind") == "here":
            self._addresses[link.peer] = header["address"]
        elif header.get("kind") == "tell":
            message = from_plain(header["m"], lambda body: body)
            if not isinstance(message, Hello | Done | Failed) or message.node != link.peer:
                raise frames.BadFrame(f"expected a message of {link.peer}, got {message!r:.200}")
            self._step(message)
        else:
            raise frames.BadFrame(f"expected what a node tells, got {header!r:.200}")

    def _step(self, message: Hello | Closed | Done | Failed) -> None:
        if isinstance(message, Closed):
            self.program.send({"kind": "closed", "node": message.node, "at": time.monotonic()})
        effects = self.machine.step(message)
        if self._recorder is not None:
            self._recorder.record(message, effects)
        for effect in effects:
            if isinstance(effect, Publish):
                self._publish(effect)
            elif isinstance(effect, Lost):
                self._report_lost(effect)
            else:
                # The journal, and a controller that is started again, come with issue 4.
                raise AssertionError(f"this controller was never started again, and cannot {effect}")

    def _report_lost(self, lost: Lost) -> None:
        error = DataLost([_name(self.surroundings, *place) for place in lost.partitions]).to_dict()
        self.program.send({"kind": "error", "node": CONTROLLER, "error": error})

    def _publish(self, publish: Publish) -> None:
        view = publish.view
        header = {
            "kind": "view",
            "view": to_plain(view, lambda body: body),
            "addresses": self._addresses,
        }
        for node in publish.to:
            self._links[node].send(header)
        whole = not view.standby and not any(
            node in view.dead for partitions in view.copies for copies in partitions for node in copies
        )
        self.program.send({"kind": "view", "number": view.number, "whole": whole, "at": time.monotonic()})

    async def _read_program(self) -> None:
        while (frame := await self.program.receive()) is not None:
            header, _ = frame
            if header["kind"] == "stop":
                self.program.send({"kind": "bye"})
                await self.program.drain()
                break
        leave(0)

    def _log(self, text: str) -> None:
        self.program.send({"kind": "log", "node": CONTROLLER, "text": text})


def _name(surroundings: Surroundings, stage: int, partition: int) -> list[Any]:
    return [surroundings.plan.segments[stage - 1].steps[0].name, partition]
