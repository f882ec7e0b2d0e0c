"""Recording: every message that a process's machine took and every effect it gave, and their replay.

The first record describes the machine. Replaying the rest through `flux.protocols` must give the same effects, because
the process around a machine decides nothing. A body is recorded as a number.
"""

from __future__ import annotations

from collections.abc import Iterator
from io import FileIO
from pathlib import Path
from typing import Any, BinaryIO

import msgpack

from ..protocols.controller import Controller
from ..protocols.egress import Egress
from ..protocols.ingress import Ingress
from ..protocols.machine import Machine
from ..protocols.messages import VERSION
from ..protocols.node import Node
from ..protocols.pooler import Pooler
from ..storage.disk import append, disk_error
from ..storage.private import private_opener
from ..types.errors import FluxError
from ..wire.codec import from_plain, to_plain

SUFFIX = ".recording"
_KEPT = "Output up to now is right; run the flow without record=... to do without"


class Recorder:
    """Writes one process's recording."""

    def __init__(self, path: Path, machine: Machine) -> None:
        self._path = path
        self._size = 0
        try:
            # Without a buffer: a killed process has written every step.
            self._file: BinaryIO = FileIO(path, "wb", opener=private_opener)
        except OSError as error:
            raise disk_error("a recording", path, error, _KEPT) from error
        self._write({"version": VERSION, **_describe(machine)})

    def record(self, message: Any, effects: list[Any]) -> None:
        """Write one step of the machine."""
        self._write([to_plain(message, _token), [to_plain(effect, _token) for effect in effects]])

    def _write(self, record: Any) -> None:
        try:
            packed = msgpack.packb(record)
            append(self._file.fileno(), packed, self._size)
            self._size += len(packed)
        except OSError as error:
            raise disk_error("a recording", self._path, error, _KEPT) from error


class Mismatch(Exception):
    """A replayed step gave other effects than the recorded one."""


def replay(path: Path) -> int:
    """Feed a recording's messages to a fresh machine; return the steps, or raise `Mismatch`.

    The last record may be truncated: its process was killed while it wrote.
    """
    records = _records(path)
    described = next(records)
    if described.get("version") != VERSION:
        raise FluxError(
            f"the recording {path} is of protocol version {described.get('version', 'below 5')}, and this release of "
            f"Flux replays version {VERSION}. Replay it with the release that wrote it"
        )
    machine = _build(described)
    steps = 0
    for plain, recorded in records:
        effects = machine.step(from_plain(plain, _itself))
        again = [to_plain(effect, _itself) for effect in effects]
        if msgpack.packb(again) != msgpack.packb(recorded):
            raise Mismatch(f"{path.name}, step {steps + 1}: on {plain} recorded {recorded}, replayed {again}")
        steps += 1
    return steps


def _itself(token: Any) -> Any:
    return token  # A body in a replay is the number that stood for it, or several are a tuple of them.


def _token(body: Any) -> Any:
    if isinstance(body, tuple):
        return [_token(part) for part in body]
    return None if body is None else body.token


def _records(path: Path) -> Iterator[Any]:
    with path.open("rb") as file:
        yield from msgpack.Unpacker(file, use_list=False)


def _describe(machine: Machine) -> Any:
    if isinstance(machine, Controller):
        numbers = {"at_once": machine.at_once, "number_from": machine.number_from}
        return {"controller": to_plain(machine.view, _token), **numbers}
    assert isinstance(machine, Node)
    parts = [[type(part).__name__, *_parameters(stage, part)] for stage, part in machine.machines.items()]
    return {"node": machine.name, "incarnation": machine.incarnation, "machines": parts}


def _parameters(stage: int, part: Ingress | Pooler | Egress) -> tuple[Any, ...]:
    """Return the parameters of a machine after its name; for a restarted ingress or egress, where it resumes."""
    if isinstance(part, Egress):
        return stage, part.cons.acked, [to_plain(taken, _token) for taken in part.ahead]
    buffer = part.prod.buffer
    if isinstance(part, Ingress):
        return buffer.bound_rows, part.released, buffer.transfer_rows_max, part.numbered
    return stage, buffer.bound_rows, buffer.transfer_rows_max, part.cons.step_most


def _build(described: Any) -> Machine:
    if "controller" in described:
        view = from_plain(described["controller"], _itself)
        return Controller(view, described["at_once"], described["number_from"])
    name = described["node"]
    makers: dict[str, Any] = {"Ingress": Ingress, "Pooler": Pooler, "Egress": _egress}
    machines = [makers[kind](name, *parameters) for kind, *parameters in described["machines"]]
    return Node(name, machines, described["incarnation"])


def _egress(name: str, stage: int, durable: int, ahead: Any) -> Egress:
    return Egress(name, stage, durable, tuple(from_plain(taken, _itself) for taken in ahead))
