"""The journal of views: every view is in it before anybody is sent it, with where its nodes listen.

A controller that is started again begins with the last one, and sends each node those it has not seen. The journal
survives the death of the process; of the machine only with `fsync`, which costs milliseconds for each view.

Views list every node that ever was, and there may be thousands: but for the last one they are kept as they are in the
journal, and read when a node has not seen them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgpack

from ..errors import FluxError
from ..journal import Journal
from ..protocols.messages import View
from ..wire.codec import from_plain, to_plain


class Views:
    """The views published so far, in order; kept at `path`."""

    def __init__(self, path: Path, *, fsync: bool = False) -> None:
        self._path = path
        self._journal, records = Journal.open(path, fsync=fsync)
        self._records = [record.content for record in records]
        self.last: View | None = None
        self.addresses: dict[str, str] = {}  # Of those that live.
        if self._records:
            self.last, self.addresses = _decode(path, self._records[-1])

    def append(self, view: View) -> None:
        """Make `view` the last one; on return it and the addresses are safe."""
        self.addresses = {node: where for node, where in self.addresses.items() if node not in view.dead}
        content = msgpack.packb([to_plain(view, _no_body), self.addresses])
        self._journal.append(content)
        self._records.append(content)
        self.last = view

    def behind(self, number: int, node: str) -> list[View]:
        """The views with a higher number that list `node`, in order."""
        found: list[View] = []
        for content in reversed(self._records):
            view, _ = _decode(self._path, content)
            if view.number <= number:
                break
            if node in view.nodes:
                found.append(view)
        return found[::-1]


def _decode(path: Path, content: bytes) -> tuple[View, dict[str, str]]:
    plain, addresses = msgpack.unpackb(content, use_list=False)
    view = from_plain(plain, _no_body)
    if not isinstance(view, View):
        raise FluxError(f"{path} is the journal of a controller, and holds {view!r:.200}. Remove it and run anew")
    return view, addresses


def _no_body(body: Any) -> Any:
    raise AssertionError("a view has no body")
