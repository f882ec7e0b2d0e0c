"""Bounds check: what the processes of a run keep while nothing happens must not grow with what has happened.

Each keeps its journal open and what its sink needs, a connection and one for heartbeats to each live process, and no
rows. On links only frames are kept that the other end has not acknowledged, because it does so for several at once.
Views that every node has seen are not needed any more, and journals are shortened as they grow.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from ..plan.plan import CONTROLLER, EGRESS, INGRESS
from ..protocols.inspection import buffered_rows
from ..site.shell import Shell
from ..wire.link import Link
from .kernel import WorldProcess
from .simulated_disk import OpenFile, SimulatedDisk
from .simulated_network import SimulatedSocket

__all__ = ["beyond_bounds"]

_FILES_MAX = {CONTROLLER: 1, INGRESS: 1, EGRESS: 2}  # Sites have none open.
_CONNECTIONS_MAX = 2  # Between two processes.
_KEPT_FRAMES_MAX = 65  # The other end acknowledges 64 at once, and what it has not read yet is heartbeats.
_RECORDS_BYTES = 4_000  # Some records more than the size from which on a journal is shortened.


def beyond_bounds(
    live: Mapping[str, WorldProcess], program: WorldProcess, disk: SimulatedDisk, shorten_at_bytes: int
) -> str | None:
    """Return what is too much in a run in which nothing has changed for a while; None if nothing is."""
    found = [text for process in (*live.values(), program) for text in _too_much(process, live)]
    found += _long_journals(live[CONTROLLER].runnable, disk, shorten_at_bytes)
    return "; ".join(found) or None


def _too_much(process: WorldProcess, live: Mapping[str, WorldProcess]) -> Iterator[str]:
    files = sorted(each.path for each in process.owned if isinstance(each, OpenFile))
    if len(files) > _FILES_MAX.get(process.role, 0):
        yield f"{process.name} has the files {files} open"
    sockets = [each for each in process.owned if isinstance(each, SimulatedSocket)]
    peers = Counter("nothing" if each.peer is None else each.peer.role for each in sockets if each.path is None)
    for role, count in peers.items():
        if count > (_CONNECTIONS_MAX if role in live or role == "program" else 0):
            yield f"{process.name} has {count} connections to {role}"
    shell = getattr(process.runnable, "shell", None)
    if isinstance(shell, Shell):
        yield from _kept_by(shell, live)


def _kept_by(shell: Shell, live: Mapping[str, WorldProcess]) -> Iterator[str]:
    if rows := buffered_rows(shell.node):
        yield f"{shell.name} buffers {rows} rows"
    if shell.jobs:
        yield f"{shell.name} has {len(shell.jobs)} jobs"
    for peer in shell.peers.links.keys() - {process.name for process in live.values()}:
        yield f"{shell.name} has a link to {peer}, which is dead"
    for link in shell.peers.links.values():
        yield from _queued(shell.name, link)


def _queued(name: str, link: Link) -> Iterator[str]:
    waiting = len(link._waiting) + len(link._bulk) + len(link._replay)
    if waiting or len(link._kept) > _KEPT_FRAMES_MAX:
        yield f"{name} has {waiting} frames to send to {link.peer}, and {len(link._kept)} without acknowledgement"


def _long_journals(controller: Any, disk: SimulatedDisk, shorten_at_bytes: int) -> Iterator[str]:
    views = controller._views
    needed = [kept for kept in views._kept if kept.number > views._seen.by_all]
    if len(needed) > 1:
        yield f"the controller keeps {len(needed)} views, and every node has seen {views._seen.by_all}"
    kept_bytes = sum(len(kept.content) for kept in views._kept)
    for path, size in disk.sizes().items():
        most = 2 * (shorten_at_bytes + kept_bytes * path.endswith("controller.journal")) + _RECORDS_BYTES
        if ".journal" in path and size > most:
            yield f"{path} has {size} bytes, and is to be shortened from {shorten_at_bytes} on"
