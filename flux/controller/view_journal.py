"""The journal of views: every view, with the addresses of its nodes, is in it before it is sent to any node.

A restarted controller begins with the last view, and sends each node those it has not seen. The journal survives the
death of the process; that of the machine only with `fsync`, which costs milliseconds for each view.

A view that every live node has seen is not requested again (rule 33). When the file has grown past `SHORTEN_BYTES`, and
half of it is such views, a new file with the remaining records replaces it. It reads like any other journal, and begins
later. But for the last one, views are kept as they are in the journal, and decoded when a node has not seen them.
"""

from __future__ import annotations

from collections import deque
from pathlib import Path
from typing import Any, NamedTuple

import msgpack

from ..protocols.messages import View
from ..protocols.view_retention import ViewRetention
from ..storage.journal import Journal, Record, reading
from ..wire.codec import from_plain, to_plain

SHORTEN_BYTES = 256 << 10


class _Kept(NamedTuple):
    """A view that a node may request, or the last: its number, its position in the file, and its record there."""

    number: int
    position: int
    content: bytes


class ViewJournal:
    """The views that are still needed, in order; kept at `path`."""

    def __init__(self, path: Path, *, fsync: bool = False) -> None:
        self.path = path
        self._journal, records = Journal.open(path, fsync=fsync)
        self.last: View | None = None
        self.addresses: dict[str, str] = {}  # Of live nodes.
        self._kept: deque[_Kept] = deque()
        if records:
            self.last, self.addresses = _decode(path, records[-1])
            for record in records:
                self._kept.append(_Kept(_unpack(path, record)[0], record.position, record.content))
        self._seen = ViewRetention(self.last)

    def append(self, view: View) -> None:
        """Append `view`; on return it and the addresses are in the file."""
        self.addresses = {node: where for node, where in self.addresses.items() if node not in view.dead}
        content = msgpack.packb([view.number, to_plain(view, _no_body), self.addresses])
        self._kept.append(_Kept(view.number, self._journal.append(content), content))
        self.last = view
        self._seen.publish(view)
        self._forget()

    def record_seen(self, node: str, number: int) -> None:
        """Record that `node` has seen the views up to `number`, or will have before it joins another controller."""
        self._seen.take(node, number)

    def views_after(self, number: int, node: str) -> list[View]:
        """Return the views with a higher number that list `node`, in order."""
        kept = [Record(each.position, each.content) for each in self._kept if each.number > number]
        later = [_decode(self.path, record)[0] for record in kept]
        return [view for view in later if node in view.nodes]

    def _forget(self) -> None:
        while len(self._kept) > 1 and self._kept[0].number <= self._seen.by_all:
            self._kept.popleft()
        keep_from = self._kept[0].position
        if self._journal.size > max(SHORTEN_BYTES, 2 * (self._journal.size - keep_from)):
            forward = self._journal.shorten((), keep_from, fsync=True)
            self._kept = deque(kept._replace(position=kept.position - forward) for kept in self._kept)


def _unpack(path: Path, record: Record) -> tuple[int, Any, dict[str, str]]:
    with reading(path, record):
        number, plain, addresses = msgpack.unpackb(record.content, use_list=False)
        return int(number), plain, dict(addresses)


def _decode(path: Path, record: Record) -> tuple[View, dict[str, str]]:
    _, plain, addresses = _unpack(path, record)
    with reading(path, record):
        view = from_plain(plain, _no_body)
        if not isinstance(view, View):
            raise ValueError(f"expected a view, got {view!r:.200}")
    return view, addresses


def _no_body(body: Any) -> Any:
    raise AssertionError("a view has no body")
