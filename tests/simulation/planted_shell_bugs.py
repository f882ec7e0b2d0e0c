"""Bugs of the code around the machines, to be put in for a test: each breaks what one part promises another."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import trio

from flux.controller import failure_detector
from flux.controller.controller_process import ControllerProcess
from flux.site.egress.sink_writer import SinkWork, SinkWriter
from flux.site.heartbeat import Heartbeat
from flux.site.ingress.ingress_process import IngressProcess
from flux.site.peers import Peers
from flux.site.shell import Shell
from flux.spark.sink.outlet_store import OutletStore
from flux.spark.sink.reader import OutletReader
from flux.spark.source.staging_store import StagingStore, _read_mapped, resize
from flux.storage.journal import Journal
from flux.system import filesystem
from flux.wire.connections import dial

_JOURNAL_LATE_S = 0.002


def publish_before_journal() -> AbstractContextManager[Any]:
    """The controller sends a view, and then writes it to its journal."""

    def publish(self: Any, effect: Any) -> None:
        for node in effect.to:
            self._send_view(node, effect.view)
        self._flush()  # Without this nothing leaves the process before its next turn, and the order would not matter.
        self._views.append(effect.view)
        self._report_view(effect.view)

    return patch.object(ControllerProcess, "_publish", publish)


class _Later:
    """A journal whose record is written when `write` is called."""

    def __init__(self, journal: Any) -> None:
        self._journal = journal
        self.write: Callable[[], None] = lambda: None

    def number(self, *values: Any, **named: Any) -> None:
        self.write = partial(self._journal.number, *values, **named)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._journal, name)


def send_before_journal() -> AbstractContextManager[Any]:
    """The ingress sends rows, and a moment later writes their numbers to its journal."""
    own = IngressProcess._number

    async def number(self: Any, journal: Any, source_input: Any, batch: Any) -> None:
        later = _Later(journal)
        await own(self, later, source_input, batch)  # type: ignore[arg-type]
        await trio.sleep(_JOURNAL_LATE_S)
        later.write()

    return patch.object(IngressProcess, "_number", number)


def take_before_sink() -> AbstractContextManager[Any]:
    """The egress notes rows as taken, and then gives them to the sink."""

    def write(self: Any, work: SinkWork) -> None:
        with self._in_use:
            self.progress.give(work.upto, len(work.rows), work.end, work.reached)
            self.progress.take()
            if len(work.rows):
                self.sink.write(self._alike(work.rows.user), work.after, work.upto)
            if work.end:
                self.sink.close()

    return patch.object(SinkWriter, "write", write)


def beat_on_one_connection() -> AbstractContextManager[Any]:
    """The heartbeat ends with its first connection."""

    async def live(self: Any) -> None:
        try:
            with await dial(self._where, self._own) as sock:
                await self._beat_on(sock)
        except OSError:
            return

    return patch.object(Heartbeat, "_live", live)


def publish_an_unnamed_attempt() -> AbstractContextManager[Any]:
    """The staging area reads the last attempt at a partition that it has, be it named by the commit or not."""

    def read(self: Any, batch: Any) -> Any:
        folder = self._root / batch.query / str(batch.batch_id)
        return resize(_read_mapped([sorted(folder.glob(f"{each.partition}-*.arrow"))[-1] for each in batch.attempts]))

    return patch.object(StagingStore, "read", read)


def read_once() -> AbstractContextManager[Any]:
    """What a journal keeps when it is shortened is read by one call, which may return a part."""

    def read(fd: int, begin: int, end: int) -> bytes:
        return filesystem.calls.pread(fd, end - begin, begin)

    return patch.object(filesystem, "read_range", read)


def take_the_unreadable_for_empty() -> AbstractContextManager[Any]:
    """A file that cannot be read is taken for an empty one."""
    own = filesystem.read_whole

    def read(path: Path) -> bytes:
        try:
            return own(path)
        except FileNotFoundError:
            raise
        except OSError:
            return b""

    return patch.object(filesystem, "read_whole", read)


def fail_for_want_of_memory() -> AbstractContextManager[Any]:
    """A site without memory reports an error that ends the run, though others have all that it has."""
    return patch.object(Shell, "_end_if_out_of_memory", lambda self, error: None)


def leave_the_old_file_open() -> AbstractContextManager[Any]:
    """A journal that is shortened has its old file open for ever."""
    own = Journal.shorten

    def shorten(self: Any, *values: Any, **named: Any) -> int:
        filesystem.calls.open(self.path, os.O_RDONLY)
        return own(self, *values, **named)

    return patch.object(Journal, "shorten", shorten)


def keep_links_to_the_dead() -> AbstractContextManager[Any]:
    """A node keeps its links to nodes that have died."""
    own = Peers.link_up

    def link_up(self: Any, view: Any, addresses: Any) -> None:
        dead = {peer: link for peer, link in self.links.items() if not view.alive(peer)}
        own(self, view, addresses)
        self.links.update(dead)

    return patch.object(Peers, "link_up", link_up)


def delete_what_is_planned() -> AbstractContextManager[Any]:
    """The reader of an outlet deletes the rows of a batch that is planned, not of one that is done."""
    own = OutletStore.forget

    def commit(self: Any, end: Any) -> None:
        own(self.store, self.store.end)

    return patch.object(OutletReader, "commit", commit)


def never_suspect() -> AbstractContextManager[Any]:
    """The controller does not look for nodes that have fallen silent."""

    async def look_at_nothing(self: Any) -> None:
        return

    return patch.object(ControllerProcess, "_detect_silent_nodes", look_at_nothing)


def suspect_at_once() -> AbstractContextManager[Any]:
    """The controller takes a node for dead that is stopped for as long as a single beat takes."""
    return patch.object(failure_detector, "MISSED_MAX", 1)


PLANTED = (
    publish_before_journal,
    send_before_journal,
    take_before_sink,
    beat_on_one_connection,
    publish_an_unnamed_attempt,
    read_once,
    leave_the_old_file_open,
    keep_links_to_the_dead,
    delete_what_is_planned,
)
